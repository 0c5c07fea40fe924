// NcclManner: ways in which NCCL runs that are not decoded, told by name from what is on the wire.
//
// Purpose: a job that runs so would otherwise only lack operations. Signs are facts of the wire: lines of 128 bytes
// whose last 8 count steps (LL128); immediates that say more than their write brought, flags that count by n, writes
// into buffers that were cleared over another queue pair (several queue pairs per connection); the same lengths both
// ways between ranks that are no neighbours in that direction (trees, NVLS on trees). One sign is not enough:
// kMannerSigns. What cannot be told: rings over several queue pairs by Simple where only data is mirrored; a tree of
// two ranks whose vectors take more than one chunk. NVLS inside one host is on no wire. Ownership: fixed size for each
// flow; a NcclGrants has max_keys entries. Threads: one. Pure.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "dataplane/ip_packet.h"
#include "dataplane/nccl_cts.h"
#include "dataplane/roce_flow.h"

namespace gradtap::dataplane {

enum class NcclManner : std::uint8_t { kLl128, kSeveralQueuePairs, kTree };

[[nodiscard]] std::string_view nccl_manner_name(NcclManner manner);
// The setting of the job that avoids it, and what that costs.
[[nodiscard]] std::string_view nccl_manner_remedy(NcclManner manner);

struct NcclMannerFinding {
  NcclManner manner{};
  std::string evidence;
  // "LL128: <evidence>; <remedy>"
  [[nodiscard]] std::string text() const;
};

inline constexpr std::uint64_t kMannerSigns = 4;  // messages in a row, or of a flow

// Which queue pair (by the UDP source port that both its directions have) cleared a buffer, by receiver and key.
class NcclGrants {
 public:
  explicit NcclGrants(std::size_t max_keys = 4096) : max_keys_(max_keys) {}
  void clear() {
    by_key_.clear();
    ports_.clear();
  }
  void cleared(const IpAddress& receiver, std::uint16_t port, std::span<const NcclCts> entries);
  // Cleared, but only over other queue pairs than this one, over which nothing ever was.
  [[nodiscard]] bool from_elsewhere(const IpAddress& receiver, std::uint16_t port, std::uint32_t key) const;

 private:
  [[nodiscard]] static std::uint64_t name(const IpAddress& receiver, std::uint32_t what);
  std::size_t max_keys_;
  std::unordered_map<std::uint64_t, std::uint16_t> by_key_;
  std::unordered_map<std::uint64_t, bool> ports_;  // that cleared anything
};

// What one data flow shows.
class NcclFlowSigns {
 public:
  static constexpr std::size_t kLengths = 8;

  void piece(const RocePiece& piece, const NcclGrants& grants, const IpAddress& receiver, std::uint16_t port);
  void message(const RoceMessage& message, const NcclGrants& grants, const IpAddress& receiver, std::uint16_t port);

  [[nodiscard]] std::uint64_t ll128() const { return ll128_most_; }
  [[nodiscard]] std::uint64_t pieces_of_messages() const { return cut_; }
  [[nodiscard]] std::uint32_t cut_over() const { return cut_over_; }
  [[nodiscard]] std::uint64_t by_turns() const { return turns_most_; }
  [[nodiscard]] std::uint32_t turns_over() const { return turns_over_; }
  [[nodiscard]] std::uint64_t cleared_elsewhere() const { return elsewhere_; }
  [[nodiscard]] std::uint64_t messages() const { return messages_; }
  // Of the first messages, on the wire.
  [[nodiscard]] std::span<const std::uint64_t> lengths() const {
    return {lengths_.data(), static_cast<std::size_t>(std::min<std::uint64_t>(messages_, kLengths))};
  }
  [[nodiscard]] bool lines() const { return lines_; }

 private:
  void look_at_ll128(const RocePiece& piece);
  void look_at_lines(const RocePiece& piece);

  std::uint64_t looked_at_ = ~std::uint64_t{0};  // message
  std::uint64_t ll128_message_ = 0, ll128_flag_ = 0, ll128_run_ = 0, ll128_most_ = 0;
  std::uint64_t line_message_ = 0, turns_run_ = 0, turns_most_ = 0;
  std::uint32_t line_flag_ = 0, stride_ = 0, turns_over_ = 0;
  std::uint64_t cut_ = 0;
  std::uint32_t cut_over_ = 0;
  std::uint64_t elsewhere_ = 0;
  std::uint64_t messages_ = 0;
  std::array<std::uint64_t, kLengths> lengths_{};
  bool lines_ = false;
};

// A flow between two ranks of the job, for judging all of them together.
struct NcclFlowShown {
  std::uint32_t source = 0;  // ranks
  std::uint32_t target = 0;
  std::uint32_t target_qp = 0;
  std::uint64_t all_reduces = 0;  // that were found on it
  const NcclFlowSigns* signs = nullptr;
};

// `ranks` of the job; `sizes_bytes` that all-reduces may have.
[[nodiscard]] std::vector<NcclMannerFinding> judge_nccl_manner(std::span<const NcclFlowShown> flows,
                                                               std::uint32_t ranks,
                                                               std::span<const std::uint64_t> sizes_bytes);

}  // namespace gradtap::dataplane
