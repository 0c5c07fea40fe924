// NcclRing: NCCL's ring all-reduce as a Schedule, so that assembly needs to know nothing of NCCL.
//
// An edge has one connection per channel. Message n of channel c has the number n * channels + c, where `channels` are
// those of the communicator, not those that one op uses: so a number means the same for every candidate size. Numbers
// of channels that an op does not use have no place. Places are in bytes of data: LL flags and padding are gone.
// Ownership: immutable after make(); any thread. Failure behaviour: sizes and rings that cannot be have no messages.
#pragma once

#include <cstdint>
#include <vector>

#include "common/error.h"
#include "dataplane/nccl_schedule.h"
#include "dataplane/schedule.h"

namespace gradtap::dataplane {

// The ranks of one channel's ring in sending order, beginning with rank 0.
using NcclRingOrder = std::vector<std::uint32_t>;

class NcclRing final : public Schedule {
 public:
  // Without `orders` every channel's ring is 0, 1, 2, ...; with them there is one for each channel of `tuning`.
  [[nodiscard]] static Result<NcclRing> make(const NcclTuning& tuning, const std::vector<NcclRingOrder>& orders = {});

  [[nodiscard]] std::uint32_t world() const override { return tuning_.ranks; }
  [[nodiscard]] bool has_edge(std::uint32_t source, std::uint32_t target) const override;
  [[nodiscard]] std::uint64_t message_count(std::uint32_t source, const OpSize& size) const override;
  [[nodiscard]] std::optional<MessagePlace> place(std::uint32_t source, const OpSize& size,
                                                  std::uint64_t message_index) const override;

  [[nodiscard]] const NcclTuning& tuning() const { return tuning_; }
  [[nodiscard]] std::uint64_t message_index(std::uint32_t channel, std::uint64_t message) const {
    return message * tuning_.channels + channel;
  }

 private:
  explicit NcclRing(const NcclTuning& tuning) : tuning_(tuning) {}
  [[nodiscard]] std::uint32_t position(std::uint32_t channel, std::uint32_t rank) const;
  [[nodiscard]] std::optional<NcclSchedule> schedule(const OpSize& size) const;

  NcclTuning tuning_;
  std::vector<std::uint32_t> positions_;  // [channel * ranks + rank]; empty: the position is the rank
};

}  // namespace gradtap::dataplane
