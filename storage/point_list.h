// Which recovery points a job has, which of them are whole at first sight, and which one to restore.
//
// Purpose: list_points() judges cheaply: the record parses and names its own objects, and every object is there with
// the recorded length (point_verify.h reads everything). choose_point() takes the newest valid point of the newest
// lineage, else its parent's points up to the fork step, and so on, and says of each newer one why not. A superseded
// lineage's later points are listed and never chosen unasked. Ownership: values. Threads: any (blocking).
// Failure: a store that cannot be listed is an error, never an empty list; what is wrong with one point is its reason.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "storage/lineage_registry.h"
#include "storage/object_store.h"
#include "storage/point_record.h"

namespace gradtap::storage {

struct PointEntry {
  LineageId lineage = 0;
  StepNumber step = 0;
  std::string key;
  bool valid = false;
  std::optional<Error> problem;                       // why not
  bool superseded = false;                            // a newer lineage exists
  std::shared_ptr<const schema::PointRecord> record;  // null when it cannot be read
  Sha256 record_digest{};                             // SHA-256 of the record as stored; zero without a record
};

// A step message beyond the newest record of its lineage: a publish that did not end (yet), or a record that is lost.
struct UnrecordedStep {
  LineageId lineage = 0;
  StepNumber step = 0;
};

struct PointListing {
  std::string job;
  std::vector<LineageEntry> lineages;  // newest first; also those that only left objects (claim lost)
  std::vector<PointEntry> points;      // newest lineage first, newest step first
  // Newest lineage first, newest step first; not when the listing was of one lineage only.
  std::vector<UnrecordedStep> unrecorded;
};

struct PointListOptions {
  std::uint64_t points_max = 100'000;  // records read at most; LIMIT_REACHED beyond
  std::optional<LineageId> lineage;    // only this one
};

[[nodiscard]] Result<PointListing> list_points(const ObjectStore& store, std::string_view job,
                                               const PointListOptions& options = {});

// Lengths of objects, asked once: points of neighbouring steps share most of theirs.
class ObjectLengths {
 public:
  explicit ObjectLengths(const ObjectStore& store) : store_(store) {}
  // Every object of the record is there with the recorded length.
  [[nodiscard]] Status check(const schema::PointRecord& record);

 private:
  const ObjectStore& store_;
  std::map<std::string, Result<std::uint64_t>, std::less<>> known_;
};

struct PointWish {
  std::optional<LineageId> lineage;
  std::optional<StepNumber> step;
  // Points that a deeper reading has found damaged, with what it found.
  struct Refused {
    LineageId lineage = 0;
    StepNumber step = 0;
    std::string reason;
  };
  std::vector<Refused> refused;
};

struct PassedOver {
  LineageId lineage = 0;
  StepNumber step = 0;  // without a meaning when the whole lineage is passed over
  bool whole_lineage = false;
  std::string reason;
};

struct PointChoice {
  PointEntry point;
  std::vector<PassedOver> passed_over;  // in the order in which they were tried
};

// Without a wish: as above. A lineage: that one, then its parents. A step: that step of the first lineage in this order
// that has it, never a neighbour. Both: exactly that point, superseded or not. POINT_NONE when there is none; its
// `actual` holds the reasons.
[[nodiscard]] Result<PointChoice> choose_point(const PointListing& listing, const PointWish& wish = {});

// The lineages that a restore of `newest` looks at, in order, each with the highest step that counts (PROTOCOLS 2.1).
struct LineageReach {
  LineageId lineage = 0;
  StepNumber up_to = 0;
};
// OBJECT_CORRUPT and the like when a lineage's parent is not known: its claim and all its records are damaged. What was
// found before lies in `out`.
[[nodiscard]] Status lineage_chain(const PointListing& listing, LineageId newest, std::vector<LineageReach>& out);

}  // namespace gradtap::storage
