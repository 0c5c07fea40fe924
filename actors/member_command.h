// MemberCommand: what an operator wants of the members, and the epoch that it makes of the one in force.
//
// Pure functions, any thread. Invariants: a command that is repeated changes nothing the second time (but kReplace,
// which begins another life of the member each time and moves nothing); members keep their places; nobody is declared
// out but by a command. Failure: MEMBER_UNKNOWN, MEMBER_CONFLICT (the command does not fit the state that the member is
// in), or REQUEST_MALFORMED, with what to do instead.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "actors/placement.h"
#include "common/error.h"
#include "schema/epoch_codec.h"

namespace gradtap::actors {

enum class MemberAction : std::uint8_t {
  kAdd,      // a new member, or one that was out, or one whose draining is called off
  kDrain,    // its shards go to the others
  kRetire,   // a drained member leaves the cluster
  kRemove,   // a member leaves as it stands; what it held is copied from the other owners
  kReplace,  // another machine, or an empty disk, under the same name
};
[[nodiscard]] std::optional<MemberAction> member_action(std::string_view word);
[[nodiscard]] std::string_view member_action_name(MemberAction action);

struct MemberCommand {
  MemberAction action = MemberAction::kAdd;
  std::string name;
  std::string link;  // kAdd; kReplace: empty keeps it. The same of the next two
  std::string http;
  std::string domain;
  std::uint32_t capacity = 0;  // 0: 1, or as it is
  bool force = false;          // kDrain: fewer members than replicas may stay; kRemove: although something may be lost
  bool check = false;          // say what would happen, change nothing
};
// JSON of the request: {"action", "name", "link", "http", "domain", "capacity", "force", "check"}.
[[nodiscard]] Result<MemberCommand> parse_member_command(std::string_view text);

// The next epoch, without its digest of the previous one and its proposer; nothing when the command is fulfilled
// already. `shards`: of the job, 0 when there is none yet.
[[nodiscard]] Result<std::optional<schema::EpochRecord>> next_epoch(const schema::EpochRecord& now,
                                                                    const MemberCommand& command, std::size_t shards);
// The same members with the map of another number of shards.
[[nodiscard]] schema::EpochRecord with_shards(const schema::EpochRecord& now, std::size_t shards);

// Shards (with multiplicity) that members hold in `after` and not in `before`.
[[nodiscard]] std::size_t shards_moved(const ShardPlacement& before, const ShardPlacement& after);

}  // namespace gradtap::actors
