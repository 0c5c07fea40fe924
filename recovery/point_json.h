// Recovery points as JSON: what a node answers and `gradtap points --json` prints (docs/side-channel.md, Reading).
//
// Pure functions of what was read; any thread. Text from stored records may be anything: dump with replacement.
#pragma once

#include <nlohmann/json.hpp>

#include "common/error.h"
#include "storage/point_list.h"
#include "storage/point_verify.h"

namespace gradtap::recovery {

[[nodiscard]] nlohmann::json error_json(const Error& error);
// {"points": [...], "chosen": {"lineage", "step"} or null, "passed_over": [...]}: `chosen` is what a restore would
// take.
[[nodiscard]] nlohmann::json points_json(const storage::PointListing& listing);
[[nodiscard]] nlohmann::json point_json(const schema::PointRecord& record, const Sha256& record_digest);
[[nodiscard]] nlohmann::json lineages_json(const storage::PointListing& listing);
[[nodiscard]] nlohmann::json verify_json(const storage::VerifyReport& report);
[[nodiscard]] nlohmann::json passed_over_json(const std::vector<storage::PassedOver>& passed_over);

}  // namespace gradtap::recovery
