// Schedule: which message of a collective carries which byte range, and whether its bytes are final.
//
// Purpose: the only knowledge of an all-reduce algorithm that assembly has. A provider is a pure function of (world,
// sender, op size, message index). Ownership: immutable objects, shared by reference; any thread.
// Invariants: messages of one edge are numbered from 0 in sending order. Where an algorithm sends empty messages they
// have a place without bytes; numbers may be left out (NcclRing), those have no place.
// Failure behaviour: a message that the schedule does not know has no place (nullopt), never a guessed one.
#pragma once

#include <compare>
#include <cstdint>
#include <optional>

namespace gradtap::dataplane {

enum class Phase : std::uint8_t { kPartial, kFinal };

// The size of an op and the element size its algorithm rounded to (4 for float32, 2 for bfloat16).
struct OpSize {
  std::uint64_t bytes = 0;
  std::uint32_t element_bytes = 4;
  friend auto operator<=>(const OpSize&, const OpSize&) = default;
};

struct MessagePlace {
  Phase phase = Phase::kPartial;
  std::uint64_t op_offset = 0;
  std::uint64_t bytes = 0;
  friend bool operator==(const MessagePlace&, const MessagePlace&) = default;
};

class Schedule {
 public:
  virtual ~Schedule() = default;
  [[nodiscard]] virtual std::uint32_t world() const = 0;
  // Whether the algorithm sends data of an all-reduce from `source` to `target` at all.
  [[nodiscard]] virtual bool has_edge(std::uint32_t source, std::uint32_t target) const = 0;
  // One more than the highest number of a data message that `source` sends for an op of this size.
  [[nodiscard]] virtual std::uint64_t message_count(std::uint32_t source, const OpSize& size) const = 0;
  [[nodiscard]] virtual std::optional<MessagePlace> place(std::uint32_t source, const OpSize& size,
                                                          std::uint64_t message_index) const = 0;
};

}  // namespace gradtap::dataplane
