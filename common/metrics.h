// Metrics: named counters and gauges that any thread bumps without a lock or an allocation.
//
// Purpose: every bound that is hit and every event that is counted has a name. Ownership: the registry owns the cells;
// a Counter& stays valid as long as the registry. Threads: registering and snapshot lock; add/set/read are relaxed
// atomics. Invariant: one name, one cell (asking twice gives the same one). Failure: none.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

namespace gradtap {

class alignas(64) Counter {
 public:
  void add(std::uint64_t count = 1) { value_.fetch_add(count, std::memory_order_relaxed); }
  void set(std::uint64_t value) { value_.store(value, std::memory_order_relaxed); }  // gauges
  void raise_to(std::uint64_t value) {                                               // high-water marks
    std::uint64_t seen = value_.load(std::memory_order_relaxed);
    while (seen < value && !value_.compare_exchange_weak(seen, value, std::memory_order_relaxed)) {
    }
  }
  [[nodiscard]] std::uint64_t read() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<std::uint64_t> value_{0};
};

struct MetricValue {
  std::string name;
  std::uint64_t value = 0;
  friend bool operator==(const MetricValue&, const MetricValue&) = default;
};

class MetricsRegistry {
 public:
  // Name: dotted words ("ingress.frames"); labels go into the name as [key=value].
  [[nodiscard]] Counter& counter(std::string_view name);
  [[nodiscard]] std::vector<MetricValue> snapshot() const;  // sorted by name

 private:
  struct Cell {
    std::string name;
    Counter counter;
  };
  mutable std::mutex mutex_;
  std::deque<Cell> cells_;  // addresses stay
};

}  // namespace gradtap
