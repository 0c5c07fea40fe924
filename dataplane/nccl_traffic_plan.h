// NcclTrafficPlan: what a surveyed capture's messages are, given the sizes of the all-reduces to look for.
//
// Purpose: finds, for each size, the layout, protocol and channels with which NCCL ran it (the schedule whose messages
// are the ones seen), the ring position and channel of each connection, and with them the operation and the place of
// every message. Ring positions come from clear-to-send tags (the rank of the sender) where they were seen, else from
// lengths where only one position fits; channels from lengths, or, where all channels look the same, from the order in
// which queue pairs were made, if both ends agree about it.
// Ownership: plain values; refers to the survey's flows by number. Pure. Failure behaviour: what is not proven is not
// planned: a size, or a flow, has a reason instead.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/error.h"
#include "common/interval_set.h"
#include "dataplane/nccl_survey.h"

namespace gradtap::dataplane {

struct NcclBucket {
  std::uint64_t elements = 0;
  std::string dtype;
  std::uint32_t element_bytes = 0;
};

// "5000:int32".
[[nodiscard]] Result<NcclBucket> parse_nccl_bucket(std::string_view text);

struct PlannedBucket {
  NcclBucket bucket;
  std::optional<NcclSchedule> schedule;
  bool channel_order_assumed = false;
  std::string reason;  // why there is no schedule
};

struct PlannedFlow {
  enum class Kind : std::uint8_t { kOther, kRing, kSend };
  Kind kind = Kind::kOther;
  std::uint32_t position = 0;  // of the sender
  std::uint32_t channel = 0;
  std::uint32_t group = 0;  // rings that share no address, or are of different communicators, are of different jobs
  // By message number; pattern is the bucket. kForeign where the message is of no operation.
  static constexpr std::uint32_t kForeign = ~std::uint32_t{0};
  std::vector<NcclStep> steps;
  std::vector<NcclStep> lost_steps;
  std::string reason;  // why a connection that looks like one of the ring is not used
  [[nodiscard]] const NcclStep* step_of(std::uint64_t message) const {
    return message < steps.size() && steps[message].pattern != kForeign ? &steps[message] : nullptr;
  }
};

struct NcclTrafficPlan {
  std::vector<PlannedBucket> buckets;
  std::vector<PlannedFlow> flows;  // by flow number
  // What the ring connection from a position never carries in final form: of bucket b, its position p.
  [[nodiscard]] std::vector<Interval> unsent(std::size_t bucket, std::uint32_t position) const;  // in elements
};

struct NcclPlanConfig {
  bool completing_send = false;      // the trainer sends the chunk that its own link lacks
  std::optional<NcclLayout> layout;  // where the version is known
};

[[nodiscard]] NcclTrafficPlan plan_nccl_traffic(const NcclSurvey& survey, std::span<const NcclBucket> buckets,
                                                const NcclPlanConfig& config);

}  // namespace gradtap::dataplane
