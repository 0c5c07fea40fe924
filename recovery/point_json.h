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
// {"points": [...], "restorable": [{"lineage", "step"}...], "passed_over": [...]}. `restorable`: what a restore takes,
// and what it takes when that one turns out to be damaged, in order; of `lineage` and its parents when one is named.
[[nodiscard]] nlohmann::json points_json(const storage::PointListing& listing,
                                         const std::optional<LineageId>& lineage = {});
[[nodiscard]] nlohmann::json point_json(const schema::PointRecord& record, const Sha256& record_digest);
[[nodiscard]] nlohmann::json lineages_json(const storage::PointListing& listing);
[[nodiscard]] nlohmann::json verify_json(const storage::VerifyReport& report);
[[nodiscard]] nlohmann::json passed_over_json(const std::vector<storage::PassedOver>& passed_over);

}  // namespace gradtap::recovery
