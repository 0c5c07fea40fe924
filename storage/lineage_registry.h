// The lineages of a job, as the object store decides them (PROTOCOLS 2.1).
//
// Purpose: a restarted trainer gets its number by conditional create of jobs/J/lineage/n: the same run_nonce gets the
// same number, another one the next. Any node may ask; contenders need no other agreement. Threads: any (blocking).
// Invariants: a number is held by one run_nonce for ever; numbers never go back. Failure: named errors; a damaged claim
// still holds its number.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "schema/point_codec.h"
#include "storage/object_store.h"

namespace gradtap::storage {

struct LineageRequest {
  std::string job_name;
  std::string run_nonce;
  LineageId parent_lineage = 0;  // 0: none
  StepNumber parent_step = 0;
  Sha256 parent_record{};
  StepNumber base_step = 0;
  std::string node;
  std::uint64_t wall_ms = 0;
  LineageId at_least = 1;  // lowest number to take: above what the node gave before it had an object store
};

struct LineageGrant {
  schema::LineageClaim claim;  // as the store holds it: an adopted one keeps its own parent
  bool created = false;        // false: adopted
  bool superseded = false;     // a higher number exists
};

// Bounded: after 1000 lost races LIMIT_REACHED.
[[nodiscard]] Result<LineageGrant> claim_lineage(ObjectStore& store, const LineageRequest& request);

struct LineageEntry {
  LineageId lineage = 0;
  bool superseded = false;
  std::optional<schema::LineageClaim> claim;  // nothing: `problem` says why
  Error problem;
};
// Ascending.
[[nodiscard]] Result<std::vector<LineageEntry>> list_lineages(const ObjectStore& store, std::string_view job);
[[nodiscard]] Result<schema::LineageClaim> read_claim(const ObjectStore& store, std::string_view job,
                                                      LineageId lineage);
// Names of all jobs with anything under jobs/. Lists everything: for people, not for a loop.
[[nodiscard]] Result<std::vector<std::string>> list_jobs(const ObjectStore& store);

}  // namespace gradtap::storage
