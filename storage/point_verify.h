// Reads everything of a recovery point back: the lineage claim, the record, every object, every byte.
//
// Purpose: any single flipped bit, cut, missing or foreign part is a finding that names key, offset where it can be
// known, expected and actual digest. Beyond digests: step messages, side state and lineage record decode and are the
// ones of this point, and the record is the one that its successor and child lineages wrote down. Replaying the logs up
// to the state digests is recovery's. Memory: one read piece, and the small objects. Threads: any (blocking).
// Failure: what cannot be read is a finding as well (OBJECT_STORE), and the rest is still read; an Error is only a
// store that cannot be listed.
#pragma once

#include <cstdint>
#include <functional>
#include <string_view>
#include <vector>

#include "storage/finding.h"
#include "storage/object_store.h"
#include "storage/point_record.h"

namespace gradtap::storage {

struct VerifyReport {
  LineageId lineage = 0;
  StepNumber step = 0;
  Sha256 record_digest{};  // zero when the record cannot be read
  std::uint64_t objects = 0;
  std::uint64_t bytes = 0;  // read
  std::vector<Finding> findings;

  [[nodiscard]] bool whole() const { return findings.empty(); }
};

struct VerifyOptions {
  std::uint64_t read_bytes = std::uint64_t{4} << 20;
  std::uint64_t small_bytes_max = std::uint64_t{512} << 20;  // of an object that is decoded, not only digested
  // Called after each object: done so far, of how many. May be empty.
  std::function<void(std::uint64_t done, std::uint64_t objects)> progress;
};

[[nodiscard]] Result<VerifyReport> verify_point(const ObjectStore& store, std::string_view job, LineageId lineage,
                                                StepNumber step, const VerifyOptions& options = {});

// One object, streamed.
[[nodiscard]] std::vector<Finding> verify_object(const ObjectStore& store, const schema::ObjectRef& ref,
                                                 std::uint64_t read_bytes, std::uint64_t& bytes_read);

}  // namespace gradtap::storage
