#include "actors/member_command.h"

#include <algorithm>
#include <array>
#include <utility>

#include <arpa/inet.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "common/config.h"
#include "replica/json_fields.h"

namespace gradtap::actors {

namespace {

using schema::EpochMember;
using schema::EpochRecord;
using schema::MemberState;

constexpr std::size_t kTextMax = schema::kEpochTextMax;
constexpr std::size_t kRequestBytesMax = 16 << 10;
constexpr std::array<std::string_view, 5> kWords{"add", "drain", "retire", "remove", "replace"};

bool is_name(std::string_view text) {
  return !text.empty() && text.size() <= 64 &&
         text.find_first_not_of("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-") ==
             std::string_view::npos;
}

bool is_ip(const std::string& text) {
  std::array<std::uint8_t, 16> bytes{};
  return ::inet_pton(AF_INET, text.c_str(), bytes.data()) == 1 ||
         ::inet_pton(AF_INET6, text.c_str(), bytes.data()) == 1;
}

Status check_places(const MemberCommand& command) {
  if (!command.link.empty()) {
    const auto place = parse_host_port(command.link);
    if (!place || place->port == 0 || !is_ip(place->host))
      return fail(ErrorCode::kRequestMalformed, "the address of the node link is none", "link", "ADDRESS:PORT",
                  command.link);
  }
  if (!command.http.empty()) {
    constexpr std::string_view kScheme = "http://";
    const bool scheme = command.http.starts_with(kScheme);
    const auto place = parse_host_port(scheme ? std::string_view(command.http).substr(kScheme.size()) : "");
    if (!place || place->port == 0)
      return fail(ErrorCode::kRequestMalformed, "the address of the gateway is none", "http", "http://HOST:PORT",
                  command.http);
  }
  return {};
}

ShardPlacement map_of(const EpochRecord& record, std::size_t shards) {
  if (record.owners.size() == shards) return record.owners;
  return place_shards(record.members, record.replicas, shards, {});
}

EpochRecord follow(const EpochRecord& now, std::vector<EpochMember> members, std::size_t shards, std::string cause) {
  EpochRecord next = now;
  next.number = now.number + 1;
  next.previous = Sha256{};
  next.owners = place_shards(members, now.replicas, shards, map_of(now, shards));
  next.members = std::move(members);
  next.cause = std::move(cause);
  return next;
}

std::size_t count_in(const std::vector<EpochMember>& members) {
  return static_cast<std::size_t>(std::count_if(
      members.begin(), members.end(), [](const EpochMember& member) { return member.state == MemberState::kIn; }));
}

Status free_address(const std::vector<EpochMember>& members, const EpochMember& added) {
  for (const EpochMember& other : members)
    if (other.name != added.name && other.state != MemberState::kOut && other.link == added.link)
      return fail(ErrorCode::kMemberConflict, "another member has this address", added.link, "an address of its own",
                  other.name, "correct --link");
  return {};
}

// What the command gives takes the place of what was.
void take_over(EpochMember& member, const MemberCommand& command, std::uint64_t epoch) {
  if (!command.link.empty()) member.link = command.link;
  if (!command.http.empty()) member.http = command.http;
  if (!command.domain.empty()) member.domain = command.domain;
  if (command.capacity != 0) member.capacity = command.capacity;
  member.state = MemberState::kIn;
  member.since_epoch = epoch;
}

}  // namespace

std::optional<MemberAction> member_action(std::string_view word) {
  for (std::size_t i = 0; i < kWords.size(); ++i)
    if (kWords[i] == word) return static_cast<MemberAction>(i);
  return std::nullopt;
}

std::string_view member_action_name(MemberAction action) {
  return kWords[static_cast<std::size_t>(action)];
}

Result<MemberCommand> parse_member_command(std::string_view text) {
  const std::string where = "member command";
  if (text.size() > kRequestBytesMax)
    return fail(ErrorCode::kRequestTooLarge, "the command is too large", where, std::to_string(kRequestBytesMax),
                std::to_string(text.size()));
  GRADTAP_LET(body, replica::parse_json_object(text, where));
  MemberCommand command;
  GRADTAP_LET(word, replica::json_text(body, "action", where));
  const auto action = member_action(word);
  if (!action)
    return fail(ErrorCode::kRequestMalformed, "the action is unknown", where,
                fmt::format("one of {}", fmt::join(kWords, ", ")), word.substr(0, 32));
  command.action = *action;
  GRADTAP_LET(name, replica::json_text(body, "name", where));
  if (!is_name(name))
    return fail(ErrorCode::kRequestMalformed, "the name of the member is none", where, "1 to 64 of A-Z a-z 0-9 . _ -",
                name.substr(0, 80));
  command.name = name;
  for (const auto& [key, target] :
       {std::pair{"link", &command.link}, std::pair{"http", &command.http}, std::pair{"domain", &command.domain}}) {
    if (!body.contains(key)) continue;
    GRADTAP_LET(value, replica::json_text(body, key, where));
    if (value.size() > kTextMax || value.find_first_of(std::string_view("\0\n\r", 3)) != std::string::npos)
      return fail(ErrorCode::kRequestMalformed, "a text of the command is too long or has line breaks", key);
    *target = value;
  }
  if (body.contains("capacity")) {
    GRADTAP_LET(capacity, replica::json_uint(body, "capacity", where, 65'535));
    command.capacity = static_cast<std::uint32_t>(capacity);
  }
  for (const auto& [key, target] : {std::pair{"force", &command.force}, std::pair{"check", &command.check}}) {
    if (!body.contains(key)) continue;
    if (!body[key].is_boolean())
      return fail(ErrorCode::kRequestMalformed, "a flag of the command is none", key, "true or false");
    *target = body[key].get<bool>();
  }
  GRADTAP_TRY(check_places(command));
  return command;
}

Result<std::optional<EpochRecord>> next_epoch(const EpochRecord& now, const MemberCommand& command,
                                              std::size_t shards) {
  std::vector<EpochMember> members = now.members;
  const std::uint64_t number = now.number + 1;
  const auto it = std::find_if(members.begin(), members.end(),
                               [&](const EpochMember& member) { return member.name == command.name; });
  const std::string cause = fmt::format("{} {}", member_action_name(command.action), command.name);
  if (it == members.end()) {
    if (command.action != MemberAction::kAdd)
      return fail(ErrorCode::kMemberUnknown, "no member has this name", command.name, "a name of `gradtap nodes list`");
    if (command.link.empty() || command.http.empty() || command.domain.empty())
      return fail(ErrorCode::kRequestMalformed, "a new member needs all of its facts", command.name,
                  "link, http and domain");
    if (members.size() >= schema::kEpochMembersMax)
      return fail(ErrorCode::kLimitReached, "the cluster has had too many members", command.name,
                  std::to_string(schema::kEpochMembersMax));
    EpochMember added;
    added.name = command.name;
    take_over(added, command, number);
    GRADTAP_TRY(free_address(members, added));
    members.push_back(std::move(added));
    return follow(now, std::move(members), shards, cause);
  }
  EpochMember& member = *it;
  switch (command.action) {
    case MemberAction::kAdd: {
      if (member.state == MemberState::kIn) {
        const bool same = (command.link.empty() || command.link == member.link) &&
                          (command.http.empty() || command.http == member.http) &&
                          (command.domain.empty() || command.domain == member.domain) &&
                          (command.capacity == 0 || command.capacity == member.capacity);
        if (same) return std::nullopt;
        return fail(ErrorCode::kMemberConflict, "this member is in already, with other facts", member.name, member.link,
                    command.link, "use `gradtap nodes replace` when it moved to another machine");
      }
      // Called off while draining, it is the same life of the node.
      const std::uint64_t since = member.state == MemberState::kDraining ? member.since_epoch : number;
      take_over(member, command, since);
      GRADTAP_TRY(free_address(members, member));
      break;
    }
    case MemberAction::kDrain:
      if (member.state != MemberState::kIn) return std::nullopt;
      member.state = MemberState::kDraining;
      if (count_in(members) < now.replicas && !command.force)
        return fail(ErrorCode::kMemberUnsafe, "too few members would stay for as many copies as are wanted",
                    member.name, fmt::format("{} members in", now.replicas), std::to_string(count_in(members)),
                    "add a node first, or repeat with --force and fewer copies");
      if (count_in(members) == 0)
        return fail(ErrorCode::kMemberUnsafe, "nobody would own the shards", member.name, "another member in", "none",
                    "add a node first");
      break;
    case MemberAction::kRetire:
      if (member.state == MemberState::kOut) return std::nullopt;
      if (member.state != MemberState::kDraining)
        return fail(ErrorCode::kMemberConflict, "only a drained member retires", member.name, "draining", "in",
                    "use `gradtap nodes drain` first");
      member.state = MemberState::kOut;
      break;
    case MemberAction::kRemove:
      if (member.state == MemberState::kOut) return std::nullopt;
      member.state = MemberState::kOut;
      if (count_in(members) == 0)
        return fail(ErrorCode::kMemberUnsafe, "nobody would own the shards", member.name, "another member in", "none",
                    "add a node first");
      break;
    case MemberAction::kReplace:
      take_over(member, command, number);
      GRADTAP_TRY(free_address(members, member));
      break;
  }
  return follow(now, std::move(members), shards, cause);
}

EpochRecord with_shards(const EpochRecord& now, std::size_t shards) {
  return follow(now, now.members, shards, fmt::format("a lineage of {} shards", shards));
}

std::size_t shards_moved(const ShardPlacement& before, const ShardPlacement& after) {
  std::size_t moved = 0;
  for (std::size_t shard = 0; shard < after.size(); ++shard)
    for (const std::uint32_t owner : after[shard]) {
      const bool stays =
          shard < before.size() && std::find(before[shard].begin(), before[shard].end(), owner) != before[shard].end();
      moved += stays ? 0 : 1;
    }
  return moved;
}

}  // namespace gradtap::actors
