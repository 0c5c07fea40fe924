// Teller: tells events that a stranger can cause, at most one in a while; how many were left out is told with the next.
//
// One thread. Events may be null: nothing is told.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "common/error.h"
#include "common/event_ring.h"

namespace gradtap {

class Teller {
 public:
  Teller(EventRing* events, std::chrono::milliseconds pause) : events_(events), pause_(pause) {}

  // about: "address" or "peer", and which.
  void tell(std::string_view text, std::string_view about, const std::string& which, const Error& error) {
    if (events_ == nullptr) return;
    const auto now = std::chrono::steady_clock::now();
    if (told_ != std::chrono::steady_clock::time_point{} && now - told_ < pause_) {
      ++untold_;
      return;
    }
    told_ = now;
    events_->add(LogLevel::kWarn, text,
                 {{about, which}, {"reason", error.text()}, {"more", std::exchange(untold_, 0)}});
  }

 private:
  EventRing* const events_;
  const std::chrono::milliseconds pause_;
  std::chrono::steady_clock::time_point told_{};
  std::uint64_t untold_ = 0;
};

}  // namespace gradtap
