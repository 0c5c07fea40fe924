#include "storage/lease_table.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace gradtap::storage {
namespace {

constexpr std::uint64_t kRenewSeconds = 30;
constexpr std::uint64_t kRenewalsPerTimeout = 4;

}  // namespace

Result<Lease> take_lease_of_point(ObjectStore& store, std::string_view job, LineageId lineage, StepNumber step,
                                  std::string_view holder, Random& random) {
  auto lease = Lease::take(store, job, lineage, step, holder, random);
  if (!lease) return lease;
  const std::string key = point_key(job, lineage, step);
  const auto length = store.length(key);
  if (length) return lease;
  // A lease that cannot be released runs out by itself; why it was not kept is what matters.
  (void)lease->release();
  if (length.error().code != ErrorCode::kObjectMissing) return std::unexpected(length.error());
  return fail(ErrorCode::kPointNone, "the recovery point is not there, or no longer", key, "its record", {},
              "choose another one: see gradtap points list");
}

struct LeaseTable::Held {
  LineageId lineage = 0;
  StepNumber step = 0;
  std::uint64_t renewed_ns = 0;  // under the table's mutex
  std::mutex mutex;              // for the lease; taken without the table's
  Lease lease;
  bool ended = false;

  Held(LineageId of_lineage, StepNumber of_step, std::uint64_t now, Lease taken)
      : lineage(of_lineage), step(of_step), renewed_ns(now), lease(std::move(taken)) {}
  [[nodiscard]] Status end() {
    const std::lock_guard lock(mutex);
    ended = true;
    return lease.release();
  }
};

LeaseTable::LeaseTable(std::shared_ptr<ObjectStore> store, std::shared_ptr<const Clock> clock,
                       std::shared_ptr<Random> random, LeaseTableOptions options)
    : store_(std::move(store)), clock_(std::move(clock)), random_(std::move(random)), options_(std::move(options)) {}

LeaseTable::~LeaseTable() = default;

void LeaseTable::release_expired() {
  const std::uint64_t now = clock_->monotonic_ns();
  std::vector<HeldPtr> expired;
  {
    const std::lock_guard lock(mutex_);
    for (auto at = held_.begin(); at != held_.end();) {
      if (now - std::min(now, at->second->renewed_ns) < options_.timeout_ms * 1'000'000) {
        ++at;
        continue;
      }
      expired.push_back(std::move(at->second));
      at = held_.erase(at);
      ++counters_.expired;
    }
  }
  // What cannot be removed now is removed by retention, which judges by itself.
  for (const HeldPtr& held : expired) (void)held->end();
}

Result<std::string> LeaseTable::take(LineageId lineage, StepNumber step, std::string_view holder) {
  release_expired();
  {
    const std::lock_guard lock(mutex_);
    if (held_.size() + pending_ >= options_.leases_max) {
      ++counters_.refused;
      return fail(ErrorCode::kLimitReached, "the node keeps as many leases as it may", options_.job,
                  std::to_string(options_.leases_max) + " at once", {}, "ask another node, or read without one");
    }
    ++pending_;
  }
  auto lease = take_lease_of_point(*store_, options_.job, lineage, step, holder, *random_);
  std::string id = new_uid(*random_);
  const std::uint64_t now = clock_->monotonic_ns();
  const std::lock_guard lock(mutex_);
  --pending_;
  if (!lease) return std::unexpected(lease.error());
  ++counters_.taken;
  held_.emplace(id, std::make_shared<Held>(lineage, step, now, std::move(*lease)));
  return id;
}

Error LeaseTable::unknown(LineageId lineage, StepNumber step) const {
  return {ErrorCode::kObjectMissing,
          "no such lease is held here",
          point_key(options_.job, lineage, step),
          "an id that this node gave out and that has not run out",
          {},
          "take another lease"};
}

// With the table's mutex held.
LeaseTable::HeldPtr LeaseTable::find(LineageId lineage, StepNumber step, std::string_view id) {
  const auto at = held_.find(id);
  if (at == held_.end() || at->second->lineage != lineage || at->second->step != step) return nullptr;
  return at->second;
}

Status LeaseTable::renew(LineageId lineage, StepNumber step, std::string_view id) {
  release_expired();
  HeldPtr held;
  {
    const std::lock_guard lock(mutex_);
    held = find(lineage, step, id);
    if (!held) return std::unexpected(unknown(lineage, step));
    held->renewed_ns = clock_->monotonic_ns();  // the holder lives, whatever the store says
  }
  const std::lock_guard lock(held->mutex);
  if (held->ended) return std::unexpected(unknown(lineage, step));
  return held->lease.renew();
}

Status LeaseTable::release(LineageId lineage, StepNumber step, std::string_view id) {
  release_expired();
  HeldPtr held;
  {
    const std::lock_guard lock(mutex_);
    held = find(lineage, step, id);
    if (!held) return std::unexpected(unknown(lineage, step));
    held_.erase(held_.find(id));
  }
  return held->end();
}

std::uint64_t LeaseTable::renew_s() const {
  return std::clamp<std::uint64_t>(options_.timeout_ms / 1000 / kRenewalsPerTimeout, 1, kRenewSeconds);
}

LeaseTable::Counters LeaseTable::counters() const {
  const std::lock_guard lock(mutex_);
  Counters counters = counters_;
  counters.held = held_.size() + pending_;
  return counters;
}

}  // namespace gradtap::storage
