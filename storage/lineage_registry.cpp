#include "storage/lineage_registry.h"

#include <ranges>
#include <set>

#include <fmt/format.h>

#include "storage/object_key.h"

namespace gradtap::storage {
namespace {

constexpr int kRacesMax = 1000;

bool is_store_trouble(ErrorCode code) {
  return code == ErrorCode::kObjectStore || code == ErrorCode::kStoreFull;
}

}  // namespace

Result<schema::LineageClaim> read_claim(const ObjectStore& store, std::string_view job, LineageId lineage) {
  const std::string key = lineage_claim_key(job, lineage);
  const auto bytes = store.get(key, schema::kClaimBytesMax);
  if (!bytes) return std::unexpected<Error>(bytes.error());
  auto claim = schema::decode_claim(*bytes);
  if (!claim) {
    Error error = claim.error();
    error.where = error.where.empty() ? key : fmt::format("{}: {}", key, error.where);
    if (error.code == ErrorCode::kStoreCorrupt) error.code = ErrorCode::kObjectCorrupt;
    return std::unexpected<Error>(std::move(error));
  }
  if (claim->job_name != job || claim->lineage != lineage)
    return fail(ErrorCode::kObjectForeign, "lineage claim is another one than its key says", key, key,
                lineage_claim_key(claim->job_name, claim->lineage));
  return claim;
}

Result<std::vector<LineageEntry>> list_lineages(const ObjectStore& store, std::string_view job) {
  const auto keys = store.list(lineage_claims_prefix(job));
  if (!keys) return std::unexpected<Error>(keys.error());
  std::vector<LineageEntry> out;
  for (const std::string& key : *keys) {
    const auto parsed = parse_key(key);
    if (!parsed || parsed->kind != KeyKind::kLineage || parsed->lineage == 0) continue;
    LineageEntry entry;
    entry.lineage = parsed->lineage;
    if (auto claim = read_claim(store, job, parsed->lineage))
      entry.claim = std::move(*claim);
    else
      entry.problem = claim.error();
    if (!out.empty()) out.back().superseded = true;
    out.push_back(std::move(entry));
  }
  return out;
}

Result<LineageGrant> claim_lineage(ObjectStore& store, const LineageRequest& request) {
  if (request.run_nonce.empty() || request.job_name.empty())
    return fail(ErrorCode::kBadText, "lineage request has no run_nonce or no job", request.job_name);
  for (int race = 0; race < kRacesMax; ++race) {
    auto lineages = list_lineages(store, request.job_name);
    if (!lineages) return std::unexpected<Error>(lineages.error());
    for (LineageEntry& entry : std::views::reverse(*lineages))
      if (entry.claim && entry.claim->run_nonce == request.run_nonce)
        return LineageGrant{std::move(*entry.claim), false, entry.superseded};
    for (const LineageEntry& entry : *lineages)  // it may be ours
      if (!entry.claim && is_store_trouble(entry.problem.code)) return std::unexpected<Error>(entry.problem);
    const LineageId newest = lineages->empty() ? 0 : lineages->back().lineage;
    if (newest == ~LineageId{0})
      return fail(ErrorCode::kOutOfRange, "job has no lineage number left", request.job_name);
    schema::LineageClaim claim;
    claim.job = job_id(request.job_name);
    claim.job_name = request.job_name;
    claim.lineage = std::max(newest + 1, request.at_least);
    claim.run_nonce = request.run_nonce;
    claim.parent_lineage = request.parent_lineage;
    claim.parent_step = request.parent_step;
    claim.parent_record = request.parent_record;
    claim.base_step = request.base_step;
    claim.node = request.node;
    claim.created_wall_ms = request.wall_ms;
    if (claim.parent_lineage >= claim.lineage)
      return fail(ErrorCode::kOutOfRange, "parent lineage does not exist yet", request.job_name,
                  fmt::format("0..{}", newest), fmt::format("{}", claim.parent_lineage));
    const auto bytes = schema::encode(claim);
    if (!bytes) return std::unexpected<Error>(bytes.error());
    const auto created = store.create(lineage_claim_key(request.job_name, claim.lineage), *bytes);
    if (!created) return std::unexpected<Error>(created.error());
    if (*created == Created::kCreated) return LineageGrant{std::move(claim), true, false};
    // Lost a race, perhaps to an earlier try of the same run: look again.
  }
  return fail(ErrorCode::kLimitReached, "no lineage number could be taken", request.job_name,
              fmt::format("at most {} races", kRacesMax), {}, "try again");
}

Result<std::vector<std::string>> list_jobs(const ObjectStore& store) {
  const auto keys = store.list("jobs/");
  if (!keys) return std::unexpected<Error>(keys.error());
  std::set<std::string> jobs;
  for (const std::string& key : *keys)
    if (const auto parsed = parse_key(key)) jobs.insert(parsed->job);
  return std::vector<std::string>(jobs.begin(), jobs.end());
}

}  // namespace gradtap::storage
