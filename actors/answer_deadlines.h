// AnswerDeadlines: how long the parts of an answer may take (limits.answer_timeout_ms).
//
// They grow from the inside out, so that an actor that hangs costs its own part only: an actor of the node that is
// asked < that node as a peer < one member < all of them together. Plain value, any thread.
#pragma once

#include <chrono>
#include <cstdint>

namespace gradtap::actors {

class AnswerDeadlines {
 public:
  explicit AnswerDeadlines(std::uint64_t whole_ms = 1000) : whole_(whole_ms) {}

  [[nodiscard]] std::chrono::milliseconds actor() const { return whole_ * 7 / 10; }
  [[nodiscard]] std::chrono::milliseconds peer() const { return whole_ * 8 / 10; }
  [[nodiscard]] std::chrono::milliseconds member() const { return whole_ * 9 / 10; }
  [[nodiscard]] std::chrono::milliseconds whole() const { return whole_; }

 private:
  std::chrono::milliseconds whole_;
};

}  // namespace gradtap::actors
