// Choosing a recovery point to read, with everything that makes it readable checked.
//
// Purpose: the newest valid point, or the one that was asked for; when reading shows damage that a listing cannot see,
// the next older one, with the reason. Threads: any (blocking). Failure behaviour: a step that was asked for is never
// replaced by another; a store that cannot be read (OBJECT_STORE) is an error, not a reason to go back in time.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "recovery/point_source.h"
#include "recovery/state_reader.h"
#include "storage/point_list.h"
#include "storage/point_verify.h"

namespace gradtap::recovery {

struct ChosenPoint {
  OpenPoint point;
  std::vector<storage::PassedOver> passed_over;  // newer points that were not taken, and why
};

struct PointQuery {
  std::string job;
  std::optional<LineageId> lineage;
  std::optional<StepNumber> step;
};

// `use` reads what it wants from a candidate; an error that means damage refuses it.
[[nodiscard]] Result<ChosenPoint> choose_readable(const ObjectStorePtr& store, const PointQuery& query,
                                                  const std::function<Status(const OpenPoint&)>& use = {});

struct ChosenState {
  ChosenPoint chosen;
  StateStream stream;
};
// Reads and rebuilds the whole point before it returns.
[[nodiscard]] Result<ChosenState> prepare_point_state(const ObjectStorePtr& store, const PointQuery& query,
                                                      const StateChoice& choice);

struct ChosenSide {
  ChosenPoint chosen;
  std::string bytes;  // safetensors: one U8 tensor per blob (docs/side-channel.md)
};
[[nodiscard]] Result<ChosenSide> read_point_side(const ObjectStorePtr& store, const PointQuery& query,
                                                 std::uint32_t rank);
// The side state of one rank as safetensors.
[[nodiscard]] Result<std::string> side_safetensors(const OpenPoint& point, const schema::SideRank& rank);

// Everything of a point read back (storage/point_verify.h), and, when all bytes are right, every shard rebuilt and
// compared with the record's digest.
[[nodiscard]] Result<storage::VerifyReport> verify_whole_point(const ObjectStorePtr& store, std::string_view job,
                                                               LineageId lineage, StepNumber step,
                                                               const storage::VerifyOptions& options = {});

}  // namespace gradtap::recovery
