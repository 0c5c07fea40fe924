// EventRing: the newest events of a node, bounded, for GET /v1/events and the status table.
//
// Ownership: owns the events. Threads: any (one lock, short; not for hot paths). Invariants: sequence numbers rise by
// one and are never reused; at most `capacity` events are kept and the oldest go first (dropped() counts them).
// Failure: none.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/clock.h"
#include "common/log.h"

namespace gradtap {

struct Event {
  std::uint64_t seq = 0;  // from 1
  std::uint64_t wall_ms = 0;
  LogLevel level = LogLevel::kInfo;
  std::string text;
  std::vector<LogField> fields;
};

class EventRing {
 public:
  EventRing(std::size_t capacity, const Clock& clock) : capacity_(capacity == 0 ? 1 : capacity), clock_(clock) {}

  // Returns the event's number; long texts and values are cut at kEventTextMax.
  std::uint64_t add(LogLevel level, std::string_view text, std::vector<LogField> fields = {});
  // Events with seq >= from, oldest first, at most `limit`.
  [[nodiscard]] std::vector<Event> since(std::uint64_t from, std::size_t limit = ~std::size_t{0}) const;
  [[nodiscard]] std::uint64_t next_seq() const;
  [[nodiscard]] std::uint64_t dropped() const;

  static constexpr std::size_t kEventTextMax = 1024;
  static constexpr std::size_t kEventFieldsMax = 16;

 private:
  const std::size_t capacity_;
  const Clock& clock_;
  mutable std::mutex mutex_;
  std::deque<Event> events_;
  std::uint64_t next_ = 1;
};

}  // namespace gradtap
