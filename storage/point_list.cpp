#include "storage/point_list.h"

#include <algorithm>
#include <set>
#include <utility>

#include <fmt/format.h>

#include "storage/object_key.h"

namespace gradtap::storage {
namespace {

constexpr StepNumber kAnyStep = ~StepNumber{0};
constexpr std::size_t kReasonsShown = 8;

PointEntry judge(const ObjectStore& store, ObjectLengths& lengths, const ObjectKey& key, std::string text) {
  PointEntry entry;
  entry.lineage = key.lineage;
  entry.step = key.step;
  entry.key = std::move(text);
  auto point = read_point(store, key.job, key.lineage, key.step);
  if (!point) {
    entry.problem = point.error();
    return entry;
  }
  entry.record_digest = point->digest;
  entry.record = std::make_shared<const schema::PointRecord>(std::move(point->record));
  const Status whole = lengths.check(*entry.record);
  entry.valid = whole.has_value();
  if (!whole) entry.problem = whole.error();
  return entry;
}

const LineageEntry* find_lineage(const PointListing& listing, LineageId lineage) {
  const auto at = std::find_if(listing.lineages.begin(), listing.lineages.end(),
                               [&](const LineageEntry& entry) { return entry.lineage == lineage; });
  return at == listing.lineages.end() ? nullptr : &*at;
}

// The claim says who the parent is; where it is damaged or lost, every record of the lineage says it again.
std::optional<LineageReach> parent_of(const PointListing& listing, LineageId lineage) {
  const LineageEntry* const entry = find_lineage(listing, lineage);
  if (entry != nullptr && entry->claim) return LineageReach{entry->claim->parent_lineage, entry->claim->parent_step};
  for (const PointEntry& point : listing.points)
    if (point.lineage == lineage && point.record)
      return LineageReach{point.record->canonical.parent_lineage, point.record->canonical.parent_step};
  return std::nullopt;
}

// What every publish uploads before its record, beyond the newest record of its lineage.
std::vector<UnrecordedStep> unrecorded_steps(const std::map<LineageId, std::set<StepNumber>>& messages,
                                             const std::vector<PointEntry>& points) {
  std::map<LineageId, StepNumber> newest;
  for (const PointEntry& point : points) {
    StepNumber& step = newest[point.lineage];
    step = std::max(step, point.step);
  }
  std::vector<UnrecordedStep> found;
  for (auto lineage = messages.rbegin(); lineage != messages.rend(); ++lineage)
    for (auto step = lineage->second.rbegin(); step != lineage->second.rend(); ++step) {
      const auto recorded = newest.find(lineage->first);
      if (recorded != newest.end() && *step <= recorded->second) break;
      found.push_back({lineage->first, *step});
    }
  return found;
}

Error none_error(const PointListing& listing, const PointWish& wish, const std::vector<PassedOver>& passed) {
  std::string asked;
  if (wish.lineage) asked += fmt::format(" lineage {}", *wish.lineage);
  if (wish.step) asked += fmt::format(" step {}", *wish.step);
  std::string reasons;
  for (std::size_t i = 0; i < passed.size() && i < kReasonsShown; ++i) {
    const PassedOver& each = passed[i];
    reasons += each.whole_lineage ? fmt::format("lineage {}: {}; ", each.lineage, each.reason)
                                  : fmt::format("lineage {} step {}: {}; ", each.lineage, each.step, each.reason);
  }
  if (passed.size() > kReasonsShown) reasons += fmt::format("and {} more; ", passed.size() - kReasonsShown);
  if (reasons.ends_with("; ")) reasons.resize(reasons.size() - 2);
  if (reasons.empty()) reasons = "no point";
  return {ErrorCode::kPointNone,
          "there is no valid recovery point",
          fmt::format("job {}{}", listing.job, asked),
          "a valid point",
          std::move(reasons),
          "ask for another lineage or step, or start without a point (or_fresh)"};
}

}  // namespace

Status ObjectLengths::check(const schema::PointRecord& record) {
  for (const PointObject& object : objects_of(record)) {
    auto at = known_.find(object.ref->key);
    if (at == known_.end()) at = known_.emplace(object.ref->key, store_.length(object.ref->key)).first;
    const Result<std::uint64_t>& length = at->second;
    if (!length) return std::unexpected<Error>(length.error());
    if (*length != object.ref->bytes)
      return fail(ErrorCode::kObjectCorrupt, "object has another length", object.ref->key,
                  fmt::format("{} bytes", object.ref->bytes), fmt::format("{} bytes", *length));
  }
  return {};
}

Result<PointListing> list_points(const ObjectStore& store, std::string_view job, const PointListOptions& options) {
  PointListing listing;
  listing.job = job;
  auto lineages = list_lineages(store, job);
  if (!lineages) return std::unexpected<Error>(lineages.error());
  // Every key of the job: a lineage whose claim was deleted still has its points.
  std::set<LineageId> with_points;
  std::map<LineageId, std::set<StepNumber>> messages;
  const auto keys = store.list(options.lineage ? points_prefix(job, *options.lineage) : job_prefix(job));
  if (!keys) return std::unexpected<Error>(keys.error());
  ObjectLengths lengths(store);
  for (const std::string& text : *keys) {
    const auto key = parse_key(text);
    if (!key || key->job != job || key->lineage == 0) continue;
    if (key->kind == KeyKind::kStep) messages[key->lineage].insert(key->step);
    if (key->kind != KeyKind::kPoint) continue;
    if (listing.points.size() >= options.points_max)
      return fail(ErrorCode::kLimitReached, "job has more recovery points than are read at once", std::string(job),
                  fmt::format("at most {}", options.points_max), {}, "name a lineage, or keep fewer points");
    with_points.insert(key->lineage);
    listing.points.push_back(judge(store, lengths, *key, text));
  }
  for (LineageEntry& entry : *lineages) {
    with_points.erase(entry.lineage);
    listing.lineages.push_back(std::move(entry));
  }
  for (const LineageId lineage : with_points) {
    LineageEntry entry;
    entry.lineage = lineage;
    entry.problem = {
        ErrorCode::kObjectMissing, "lineage claim is missing", lineage_claim_key(job, lineage), {}, {}, {}};
    listing.lineages.push_back(std::move(entry));
  }
  std::sort(listing.lineages.begin(), listing.lineages.end(),
            [](const LineageEntry& a, const LineageEntry& b) { return a.lineage > b.lineage; });
  for (std::size_t i = 0; i < listing.lineages.size(); ++i) listing.lineages[i].superseded = i > 0;
  const LineageId newest = listing.lineages.empty() ? 0 : listing.lineages.front().lineage;
  for (PointEntry& point : listing.points) point.superseded = point.lineage != newest;
  std::sort(listing.points.begin(), listing.points.end(), [](const PointEntry& a, const PointEntry& b) {
    return std::pair(a.lineage, a.step) > std::pair(b.lineage, b.step);
  });
  listing.unrecorded = unrecorded_steps(messages, listing.points);
  return listing;
}

Status lineage_chain(const PointListing& listing, LineageId newest, std::vector<LineageReach>& out) {
  out.clear();
  LineageReach next{newest, kAnyStep};
  while (next.lineage != 0) {
    out.push_back(next);
    const auto parent = parent_of(listing, next.lineage);
    if (!parent) {
      const LineageEntry* const entry = find_lineage(listing, next.lineage);
      if (entry != nullptr) return std::unexpected<Error>(entry->problem);
      return fail(ErrorCode::kObjectMissing, "lineage is not known",
                  fmt::format("job {} lineage {}", listing.job, next.lineage));
    }
    // Ids fall from child to parent (the codec refuses others), so this ends.
    next = *parent;
  }
  return {};
}

Result<PointChoice> choose_point(const PointListing& listing, const PointWish& wish) {
  PointChoice choice;
  const auto usable = [&](const PointEntry& point) {
    std::string reason;
    for (const PointWish::Refused& refused : wish.refused)
      if (refused.lineage == point.lineage && refused.step == point.step) reason = refused.reason;
    if (!point.valid) reason = point.problem ? point.problem->text() : "not valid";
    if (reason.empty()) {
      choice.point = point;
      return true;
    }
    choice.passed_over.push_back({point.lineage, point.step, false, std::move(reason)});
    return false;
  };
  const auto pass_lineage = [&](LineageId lineage, std::string reason) {
    choice.passed_over.push_back({lineage, 0, true, std::move(reason)});
  };
  if (wish.lineage && wish.step) {
    for (const PointEntry& point : listing.points)
      if (point.lineage == *wish.lineage && point.step == *wish.step && usable(point)) return choice;
    return std::unexpected<Error>(none_error(listing, wish, choice.passed_over));
  }
  if (listing.lineages.empty()) return std::unexpected<Error>(none_error(listing, wish, choice.passed_over));
  std::vector<LineageReach> chain;
  const Status known = lineage_chain(listing, wish.lineage.value_or(listing.lineages.front().lineage), chain);
  for (const LineageReach& reach : chain) {
    bool any = false;
    for (const UnrecordedStep& each : listing.unrecorded)
      if (each.lineage == reach.lineage && each.step <= reach.up_to && wish.step.value_or(each.step) == each.step)
        choice.passed_over.push_back(
            {each.lineage, each.step, false,
             "it has objects and no record: its publish has not ended, or the record is lost"});
    for (const PointEntry& point : listing.points) {
      if (point.lineage != reach.lineage || (wish.step && point.step != *wish.step)) continue;
      any = true;
      if (point.step > reach.up_to) {
        choice.passed_over.push_back({point.lineage, point.step, false,
                                      fmt::format("beyond step {}, where a newer lineage forked", reach.up_to)});
        continue;
      }
      if (usable(point)) return choice;
    }
    if (!any) pass_lineage(reach.lineage, wish.step ? "no point at this step" : "no point");
  }
  // Which lineage to look at next is not known: guessing one could restore another state than the user's.
  if (!known) pass_lineage(chain.back().lineage, "its parent is not known: " + known.error().text());
  return std::unexpected<Error>(none_error(listing, wish, choice.passed_over));
}

}  // namespace gradtap::storage
