// PointReader: recovery points as the command line reads them: in a directory, or from a node.
//
// Purpose: the commands are the same for both sources. A source with "://" is a node's gateway, anything else the
// directory of an object store, which is opened read-only. One thread. Failure behaviour: the error of the store or the
// node; a point that was asked for is never replaced by another.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

#include "apps/commands/node_access.h"
#include "common/error.h"
#include "recovery/state_tensors.h"

namespace gradtap::commands {

struct PointQuestion {
  std::string job;  // empty: the source's only job
  std::optional<std::uint64_t> lineage;
  std::optional<std::uint64_t> step;
};

// Where to put a stream. restart(): what came so far belongs to a point that turned out to be damaged.
struct PointOutput {
  std::function<bool(std::string_view)> write;
  std::function<bool()> restart;
};

// What was taken: {"job", "lineage", "step", "passed_over": [{"lineage", "step", "reason"}]}.
using Taken = nlohmann::json;

class PointReader {
 public:
  virtual ~PointReader() = default;
  [[nodiscard]] static Result<std::unique_ptr<PointReader>> open(const std::string& source, const NodeAccess& access);

  [[nodiscard]] virtual Result<std::string> job_or_only(const std::string& name) const = 0;
  // As the gateway answers (recovery/point_json.h).
  [[nodiscard]] virtual Result<nlohmann::json> points(const PointQuestion& question) const = 0;
  [[nodiscard]] virtual Result<nlohmann::json> point(const std::string& job, std::uint64_t lineage,
                                                     std::uint64_t step) const = 0;
  [[nodiscard]] virtual Result<nlohmann::json> lineages(const std::string& job) const = 0;
  // `progress` may be called with objects read and their number.
  [[nodiscard]] virtual Result<nlohmann::json> verify(
      const std::string& job, std::uint64_t lineage, std::uint64_t step,
      const std::function<void(std::uint64_t, std::uint64_t)>& progress) const = 0;
  // `limits`: where the state is rebuilt here and not by a node.
  [[nodiscard]] virtual Result<Taken> state(const PointQuestion& question, bool optimizer, const std::string& format,
                                            const recovery::RebuildLimits& limits, const PointOutput& out) const = 0;
  [[nodiscard]] virtual Result<Taken> side(const PointQuestion& question, std::uint32_t rank,
                                           const PointOutput& out) const = 0;
};

}  // namespace gradtap::commands
