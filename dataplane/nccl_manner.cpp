#include "dataplane/nccl_manner.h"

#include <algorithm>

#include <fmt/format.h>

#include "common/random.h"
#include "dataplane/nccl_ll.h"

namespace gradtap::dataplane {
namespace {

constexpr std::size_t kLl128LineBytes = 128;
constexpr std::size_t kLl128SliceBytes = 2048;
constexpr std::size_t kWordBytes = 8;
constexpr std::uint32_t kMaxQueuePairs = 128;
constexpr std::uint64_t kPieceAlignBytes = 128;
constexpr std::uint64_t kMaxTotalBytes = 1ULL << 30;

std::uint64_t piece_of(std::uint64_t total, std::uint64_t queue_pairs) {
  const std::uint64_t even = (total + queue_pairs - 1) / queue_pairs;
  return (even + kPieceAlignBytes - 1) / kPieceAlignBytes * kPieceAlignBytes;
}

// Over how many queue pairs a message of `total` is cut if `bytes` is one of its pieces; 0: it is none.
std::uint32_t pieces_over(std::uint64_t total, std::uint64_t bytes) {
  if (total <= bytes || total > kMaxTotalBytes) return 0;
  for (std::uint32_t n = 2; n <= kMaxQueuePairs; ++n) {
    const std::uint64_t piece = piece_of(total, n);
    const std::uint64_t full = total / piece;
    const bool last = bytes == total - full * piece && full < n;
    if (bytes == piece || last) return n;
  }
  return 0;
}

}  // namespace

std::string_view nccl_manner_name(NcclManner manner) {
  switch (manner) {
    case NcclManner::kLl128:
      return "LL128";
    case NcclManner::kSeveralQueuePairs:
      return "several queue pairs per connection";
    case NcclManner::kTree:
      break;
  }
  return "tree or NVLS";
}

std::string_view nccl_manner_remedy(NcclManner manner) {
  switch (manner) {
    case NcclManner::kLl128:
      return "set NCCL_PROTO=LL,Simple (costs bandwidth of middle sizes)";
    case NcclManner::kSeveralQueuePairs:
      return "set NCCL_IB_QPS_PER_CONNECTION=1 (costs load balance over equal-cost paths)";
    case NcclManner::kTree:
      break;
  }
  return "set NCCL_ALGO=Ring (costs latency of small operations on many nodes)";
}

std::string NcclMannerFinding::text() const {
  return fmt::format("{}: {}; {}", nccl_manner_name(manner), evidence, nccl_manner_remedy(manner));
}

std::uint64_t NcclGrants::name(const IpAddress& receiver, std::uint32_t what) {
  return splitmix64_mix(load_le<std::uint64_t>(&receiver.bytes[0]) ^
                        splitmix64_mix(load_le<std::uint64_t>(&receiver.bytes[8]) + what));
}

void NcclGrants::cleared(const IpAddress& receiver, std::uint16_t port, std::span<const NcclCts> entries) {
  if (by_key_.size() + entries.size() > max_keys_ || ports_.size() >= max_keys_) clear();
  ports_[name(receiver, port)] = true;
  for (const NcclCts& entry : entries) by_key_[name(receiver, entry.key)] = port;
}

bool NcclGrants::from_elsewhere(const IpAddress& receiver, std::uint16_t port, std::uint32_t key) const {
  if (by_key_.empty()) return false;
  const auto found = by_key_.find(name(receiver, key));
  return found != by_key_.end() && found->second != port && !ports_.contains(name(receiver, port));
}

void NcclFlowSigns::look_at_ll128(const RocePiece& piece) {
  const bool whole_slices = piece.message_bytes % kLl128SliceBytes == 0;
  std::uint64_t flag = 0;
  if (whole_slices && piece.bytes >= 2 * kLl128LineBytes && piece.bytes % kLl128LineBytes == 0) {
    flag = load_le<std::uint64_t>(piece.data + kLl128LineBytes - kWordBytes);
    if (flag > ~std::uint32_t{0}) flag = 0;
    for (std::size_t end = 2 * kLl128LineBytes; flag != 0 && end <= piece.bytes; end += kLl128LineBytes)
      if (load_le<std::uint64_t>(piece.data + end - kWordBytes) != flag) flag = 0;
  }
  if (flag == 0) {
    ll128_run_ = 0;
    return;
  }
  // The flag counts steps, and every step is a message.
  const bool next = ll128_run_ > 0 && flag - ll128_flag_ == piece.message - ll128_message_;
  ll128_run_ = next ? ll128_run_ + 1 : 1;
  ll128_most_ = std::max(ll128_most_, ll128_run_);
  ll128_flag_ = flag;
  ll128_message_ = piece.message;
}

void NcclFlowSigns::look_at_lines(const RocePiece& piece) {
  const ByteSpan wire(piece.data, piece.bytes);
  const auto flag = ll_flag(wire);
  if (!flag || !has_ll_flags(wire.first(std::min<std::size_t>(wire.size(), 4 * kLlLineBytes)), *flag)) {
    turns_run_ = stride_ = line_flag_ = 0;
    return;
  }
  lines_ = true;
  const std::uint32_t stride = line_flag_ != 0 && piece.message == line_message_ + 1 ? *flag - line_flag_ : 0;
  if (stride >= 2 && stride <= kMaxQueuePairs) {
    turns_run_ = stride == stride_ ? turns_run_ + 1 : 1;
    if (turns_run_ > turns_most_) {
      turns_most_ = turns_run_;
      turns_over_ = stride;
    }
  } else {
    turns_run_ = 0;
  }
  stride_ = stride;
  line_flag_ = *flag;
  line_message_ = piece.message;
}

void NcclFlowSigns::piece(const RocePiece& piece, const NcclGrants& grants, const IpAddress& receiver,
                          std::uint16_t port) {
  if (piece.message == looked_at_) return;
  looked_at_ = piece.message;
  if (piece.offset_bytes != 0 || piece.provisional) return;
  look_at_ll128(piece);
  look_at_lines(piece);
  if (elsewhere_ < kMannerSigns && piece.address != 0 && grants.from_elsewhere(receiver, port, piece.key)) ++elsewhere_;
}

void NcclFlowSigns::message(const RoceMessage& message, const NcclGrants& grants, const IpAddress& receiver,
                            std::uint16_t port) {
  // An empty step names its slot too.
  if (message.bytes == 0 && message.address != 0 && elsewhere_ < kMannerSigns &&
      grants.from_elsewhere(receiver, port, message.key))
    ++elsewhere_;
  if (messages_ < kLengths) lengths_[messages_] = message.bytes;
  ++messages_;
  if (!message.immediate_mismatch || message.foreign) return;
  const std::uint32_t totals[] = {message.immediate, __builtin_bswap32(message.immediate)};
  for (const std::uint32_t total : totals) {
    const std::uint32_t n = pieces_over(total, message.bytes);
    if (n == 0) continue;
    ++cut_;
    if (message.bytes > 0 && message.bytes == piece_of(total, n)) cut_over_ = n;
    return;
  }
}

namespace {

std::string between(const NcclFlowShown& flow) {
  return fmt::format("from rank {} to {} (queue pair {:#x})", flow.source, flow.target, flow.target_qp);
}

bool same_lengths(const NcclFlowSigns& a, const NcclFlowSigns& b) {
  const std::size_t count = std::min(a.lengths().size(), b.lengths().size());
  return count >= kMannerSigns &&
         std::equal(a.lengths().begin(), a.lengths().begin() + static_cast<long>(count), b.lengths().begin());
}

// Whether some of its messages are, each in one chunk, all that a channel has of an all-reduce, and none is empty: a
// ring of two sends halves, and empty ones where there is nothing to halve.
bool carries_whole_parts(const NcclFlowSigns& signs, std::uint64_t channels,
                         std::span<const std::uint64_t> sizes_bytes) {
  constexpr std::uint64_t kRounding = 16;
  bool whole = false;
  for (const std::uint64_t length : signs.lengths()) {
    if (length == 0) return false;
    const std::uint64_t data = signs.lines() ? length / 2 : length;
    for (const std::uint64_t size : sizes_bytes)
      for (std::uint64_t n = 1; n <= channels; ++n)
        whole = whole || (data >= size / n && data <= size / n + kRounding && data > kRounding);
  }
  return whole;
}

}  // namespace

std::vector<NcclMannerFinding> judge_nccl_manner(std::span<const NcclFlowShown> flows, std::uint32_t ranks,
                                                 std::span<const std::uint64_t> sizes_bytes) {
  std::vector<NcclMannerFinding> findings;
  const auto first = [&](auto shows) {
    return std::find_if(flows.begin(), flows.end(), [&](const NcclFlowShown& flow) { return shows(*flow.signs); });
  };
  if (const auto at = first([](const NcclFlowSigns& s) { return s.ll128() >= kMannerSigns; }); at != flows.end())
    findings.push_back({NcclManner::kLl128, fmt::format("{} messages in a row {} are lines of 128 bytes with a flag in "
                                                        "the last 8",
                                                        at->signs->ll128(), between(*at))});
  if (const auto at = first([](const NcclFlowSigns& s) { return s.pieces_of_messages() >= kMannerSigns; });
      at != flows.end())
    findings.push_back(
        {NcclManner::kSeveralQueuePairs,
         fmt::format("{} messages {} are pieces of longer ones{}", at->signs->pieces_of_messages(), between(*at),
                     at->signs->cut_over() > 0 ? fmt::format(", cut over {}", at->signs->cut_over()) : std::string())});
  else if (const auto by_turns = first([](const NcclFlowSigns& s) { return s.by_turns() >= kMannerSigns; });
           by_turns != flows.end())
    findings.push_back(
        {NcclManner::kSeveralQueuePairs, fmt::format("messages {} are every {}th of their connection",
                                                     between(*by_turns), by_turns->signs->turns_over())});
  else if (const auto other = first([](const NcclFlowSigns& s) { return s.cleared_elsewhere() >= kMannerSigns; });
           other != flows.end())
    findings.push_back(
        {NcclManner::kSeveralQueuePairs,
         fmt::format("messages {} go into buffers that were cleared over another queue pair", between(*other))});
  if (!findings.empty()) return findings;
  // Between two ranks of a ring of three or more, data goes one way only.
  for (const NcclFlowShown& up : flows) {
    const auto channels = static_cast<std::uint64_t>(std::count_if(flows.begin(), flows.end(), [&](const auto& flow) {
      return flow.source == up.source && flow.target == up.target && flow.all_reduces == 0;
    }));
    if (up.all_reduces > 0 || (ranks == 2 && !carries_whole_parts(*up.signs, channels, sizes_bytes))) continue;
    for (const NcclFlowShown& down : flows) {
      if (down.source != up.target || down.target != up.source || down.all_reduces > 0) continue;
      if (!same_lengths(*up.signs, *down.signs)) continue;
      if (ranks == 2 && !carries_whole_parts(*down.signs, channels, sizes_bytes)) continue;
      findings.push_back(
          {NcclManner::kTree,
           fmt::format("messages {} have the lengths of those on the way back, which no ring's have", between(up))});
      return findings;
    }
  }
  return findings;
}

}  // namespace gradtap::dataplane
