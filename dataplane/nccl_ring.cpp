#include "dataplane/nccl_ring.h"

#include <algorithm>
#include <string>

namespace gradtap::dataplane {

Result<NcclRing> NcclRing::make(const NcclTuning& tuning, const std::vector<NcclRingOrder>& orders) {
  if (tuning.ranks < 2 || tuning.ranks > kMaxNcclRanks || tuning.channels == 0 || tuning.channels > kMaxNcclChannels)
    return fail(
        ErrorCode::kScheduleImpossible, "an NCCL ring cannot have these numbers of ranks and channels", {},
        "2 to " + std::to_string(kMaxNcclRanks) + " ranks, 1 to " + std::to_string(kMaxNcclChannels) + " channels",
        std::to_string(tuning.ranks) + " ranks, " + std::to_string(tuning.channels) + " channels");
  NcclRing ring(tuning);
  if (orders.empty()) return ring;
  if (orders.size() != tuning.channels)
    return fail(ErrorCode::kScheduleImpossible, "one ring order for each channel is needed", {},
                std::to_string(tuning.channels), std::to_string(orders.size()));
  ring.positions_.assign(std::size_t{tuning.channels} * tuning.ranks, tuning.ranks);
  for (std::size_t channel = 0; channel < orders.size(); ++channel) {
    const NcclRingOrder& order = orders[channel];
    bool whole = order.size() == tuning.ranks && order.front() == 0;
    for (std::uint32_t at = 0; whole && at < order.size(); ++at) {
      whole = order[at] < tuning.ranks && ring.positions_[channel * tuning.ranks + order[at]] == tuning.ranks;
      if (whole) ring.positions_[channel * tuning.ranks + order[at]] = at;
    }
    if (!whole)
      return fail(ErrorCode::kScheduleImpossible, "a ring order must name every rank once, rank 0 first",
                  "channel " + std::to_string(channel));
  }
  return ring;
}

std::uint32_t NcclRing::position(std::uint32_t channel, std::uint32_t rank) const {
  return positions_.empty() ? rank : positions_[std::size_t{channel} * tuning_.ranks + rank];
}

std::optional<NcclSchedule> NcclRing::schedule(const OpSize& size) const {
  if (size.element_bytes == 0 || size.bytes % size.element_bytes != 0) return std::nullopt;
  const auto op = nccl_plan(tuning_, NcclCollective::kAllReduce, size.bytes / size.element_bytes, size.element_bytes);
  return op ? NcclSchedule::of(*op) : std::nullopt;
}

bool NcclRing::has_edge(std::uint32_t source, std::uint32_t target) const {
  if (source >= tuning_.ranks || target >= tuning_.ranks) return false;
  for (std::uint32_t channel = 0; channel < (positions_.empty() ? 1 : tuning_.channels); ++channel)
    if ((position(channel, source) + 1) % tuning_.ranks == position(channel, target)) return true;
  return false;
}

std::uint64_t NcclRing::message_count(std::uint32_t source, const OpSize& size) const {
  const auto made = schedule(size);
  if (!made || source >= tuning_.ranks) return 0;
  std::uint64_t count = 0;
  for (std::uint32_t channel = 0; channel < made->op().channels; ++channel) {
    const std::uint64_t messages = made->message_count(position(channel, source), channel);
    if (messages > 0) count = std::max(count, message_index(channel, messages - 1) + 1);
  }
  return count;
}

std::optional<MessagePlace> NcclRing::place(std::uint32_t source, const OpSize& size,
                                            std::uint64_t message_index) const {
  const auto made = schedule(size);
  if (!made || source >= tuning_.ranks) return std::nullopt;
  const auto channel = static_cast<std::uint32_t>(message_index % tuning_.channels);
  if (channel >= made->op().channels) return std::nullopt;
  const auto message = made->message(position(channel, source), channel, message_index / tuning_.channels);
  if (!message) return std::nullopt;
  return MessagePlace{message->phase, message->begin * size.element_bytes,
                      (message->end - message->begin) * size.element_bytes};
}

}  // namespace gradtap::dataplane
