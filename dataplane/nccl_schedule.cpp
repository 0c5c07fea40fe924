#include "dataplane/nccl_schedule.h"

#include <algorithm>

#include "dataplane/divide.h"

namespace gradtap::dataplane {
namespace {

constexpr std::uint64_t kWarpThreads = 32;
constexpr std::uint64_t kThreadBytes = 8;          // a thread moves 8 bytes at a time
constexpr std::uint64_t kSimpleAlignBytes = 4096;  // NCCL_SIMPLE_ALIGNMENT, 2.20-2.21
constexpr std::uint64_t kSlabAlignBytes = 16;      // NCCL_BYTES_ALIGNMENT, 2.20-2.21
constexpr std::uint64_t kTailAlignBytes = 16;      // last loop, from 2.22
constexpr std::uint64_t kLlThreshold = 8;          // bytes a thread, times ranks in a ring
constexpr std::uint64_t kSimpleThreshold = 64;
constexpr std::uint64_t kMinTraffic = 16ULL << 10;  // MinTrafficPerChannel, from 2.22
constexpr std::uint64_t kLlTrafficFactor = 4;

bool counts_bytes(NcclCollective collective) {
  return collective != NcclCollective::kAllReduce;
}
std::uint64_t unit_bytes(const NcclOp& op) {
  return counts_bytes(op.collective) ? 1 : op.element_bytes;
}
std::uint64_t units(const NcclOp& op) {
  return counts_bytes(op.collective) ? op.elements * op.element_bytes : op.elements;
}

// Steps of a chunk and slices that it is sent in (ALLREDUCE_CHUNKSTEPS, ALLREDUCE_SLICESTEPS and their like).
struct Pipeline {
  std::uint32_t chunk_steps = 1;
  std::uint32_t slices = 1;
};
Pipeline pipeline(const NcclOp& op) {
  if (op.protocol == NcclProtocol::kLl || op.collective == NcclCollective::kBroadcast) return {1, 1};
  return {4, 2};
}

std::uint64_t chunk_bytes(const NcclOp& op) {
  return op.protocol == NcclProtocol::kLl ? kNcclLlMaxChunkBytes : kNcclSimpleStepBytes * pipeline(op).chunk_steps;
}

// What the last loop's chunk is rounded up to, where the rule depends on threads (up to 2.21), in units.
std::uint64_t grain_units(const NcclOp& op) {
  if (op.layout != NcclLayout::kUpTo2_19 && op.protocol == NcclProtocol::kSimple)
    return kSimpleAlignBytes / unit_bytes(op);
  return op.threads * kThreadBytes / unit_bytes(op);
}

// Slab lengths of 2.20-2.21 (addCBDCollToPlan for one call): equal, rounded up to the grain, the last one short; the
// channels for which nothing is left are not used.
void give_equal_slabs(NcclOp& op, std::uint64_t channels) {
  const std::uint64_t total = units(op);
  const std::uint64_t share_bytes = round_up(divide_up(total * unit_bytes(op), channels), kSlabAlignBytes);
  const std::uint64_t slab = std::min(total, round_up(divide_up(share_bytes, unit_bytes(op)), grain_units(op)));
  op.channels = static_cast<std::uint32_t>(divide_up(total, slab));
  op.slabs.first = slab;
  op.slabs.middle = op.channels > 2 ? slab : 0;
  op.slabs.last = op.channels > 1 ? total - (op.channels - 1) * slab : 0;
}

// Slab lengths from 2.22 (scheduleCollTasksToPlan for one call, the first of its launch): whole cells of 16 KiB of
// traffic; LL counts its traffic four times, so it may use more channels than `tuned`, up to those connected.
void give_cell_slabs(NcclOp& op, std::uint64_t tuned, std::uint64_t connected) {
  const std::uint64_t bytes = units(op) * unit_bytes(op);
  const std::uint64_t traffic_per_byte = op.collective == NcclCollective::kAllReduce   ? 2
                                         : op.collective == NcclCollective::kAllGather ? op.ranks
                                                                                       : 1;
  const std::uint64_t share = std::max(kMinTraffic, std::max(kMinTraffic, bytes * traffic_per_byte) / tuned);
  const std::uint64_t weight = traffic_per_byte * (op.protocol == NcclProtocol::kLl ? kLlTrafficFactor : 1);
  const std::uint64_t cell_bytes = round_up(divide_up(kMinTraffic, weight), kTailAlignBytes);
  const std::uint64_t cell_units = cell_bytes / unit_bytes(op);
  const std::uint64_t cells = divide_up(bytes, cell_bytes);
  std::uint64_t a_channel = std::min(cells, divide_up(share, cell_bytes * weight));
  const std::uint64_t low = connected == 1 ? cells : a_channel;
  std::uint64_t middles = (cells - low) / a_channel;
  std::uint64_t high = (cells - low) % a_channel;
  if (1 + middles + (high != 0 ? 1 : 0) > connected) {
    middles = connected - 2;
    a_channel = (cells - low) / (middles + 1);
    high = a_channel + (cells - low) % (middles + 1);
  }
  if (high == 0 && middles != 0) {
    high = a_channel;
    middles -= 1;
  }
  const std::uint64_t spare = cells * cell_units - units(op);
  op.channels = static_cast<std::uint32_t>(1 + middles + (high != 0 ? 1 : 0));
  op.slabs.first = low * cell_units - (high == 0 ? spare : 0);
  op.slabs.middle = middles != 0 ? a_channel * cell_units : 0;
  op.slabs.last = high != 0 ? high * cell_units - spare : 0;
}

bool sizes_possible(const NcclOp& op) {
  const std::uint32_t element = op.element_bytes;
  return op.ranks >= 2 && op.ranks <= kMaxNcclRanks && (element == 1 || element == 2 || element == 4 || element == 8) &&
         op.elements >= 1 && op.elements <= kMaxNcclElements && op.threads >= kWarpThreads && op.threads <= 1024 &&
         op.threads % kWarpThreads == 0 && op.root < op.ranks;
}

}  // namespace

std::optional<NcclLayout> nccl_layout_of(std::string_view version) {
  std::uint32_t parts[2] = {0, 0};
  std::size_t part = 0;
  bool digits = false;
  for (const char c : version) {
    if (c >= '0' && c <= '9') {
      digits = true;
      if (part < 2) parts[part] = parts[part] * 10 + static_cast<std::uint32_t>(c - '0');
      if (part < 2 && parts[part] > 1000) return std::nullopt;
    } else if (c == '.' && digits) {
      digits = false;
      part += 1;
    } else {
      return std::nullopt;
    }
  }
  if (!digits || part == 0 || parts[0] != 2 || parts[1] < 8) return std::nullopt;
  if (parts[1] <= 19) return NcclLayout::kUpTo2_19;
  return parts[1] <= 21 ? NcclLayout::k2_20To2_21 : NcclLayout::kFrom2_22;
}

std::optional<NcclOp> nccl_plan_on(const NcclTuning& tuning, NcclProtocol protocol, NcclCollective collective,
                                   std::uint64_t elements, std::uint32_t element_bytes, std::uint32_t tuned_channels,
                                   std::uint32_t threads, std::uint32_t root) {
  NcclOp op;
  op.collective = collective;
  op.layout = tuning.layout;
  op.protocol = protocol;
  op.ranks = tuning.ranks;
  op.channels = tuned_channels;
  op.element_bytes = element_bytes;
  op.elements = elements;
  op.threads = threads;
  op.root = root;
  if (!sizes_possible(op) || tuned_channels == 0 || tuned_channels > tuning.channels ||
      tuning.channels > kMaxNcclChannels)
    return std::nullopt;
  if (tuning.layout == NcclLayout::k2_20To2_21) give_equal_slabs(op, tuned_channels);
  if (tuning.layout == NcclLayout::kFrom2_22) give_cell_slabs(op, tuned_channels, tuning.channels);
  return op;
}

std::optional<NcclOp> nccl_plan_with(const NcclTuning& tuning, NcclProtocol protocol, NcclCollective collective,
                                     std::uint64_t elements, std::uint32_t element_bytes, std::uint32_t root) {
  if (elements > kMaxNcclElements || element_bytes > 8 || tuning.ranks > kMaxNcclRanks ||
      tuning.channels > kMaxNcclChannels)
    return std::nullopt;
  // From all connected channels one is dropped after the other while each would have too little to do, then threads
  // are halved; three warps are the least that is started (two workers and Simple's extra one).
  std::uint32_t threads = protocol == NcclProtocol::kLl ? tuning.ll_threads : tuning.simple_threads;
  const std::uint64_t bytes = elements * element_bytes * (collective == NcclCollective::kAllGather ? tuning.ranks : 1);
  const std::uint64_t threshold = protocol == NcclProtocol::kLl ? kLlThreshold * tuning.ranks : kSimpleThreshold;
  std::uint32_t channels = tuning.channels;
  while (channels > 1 && bytes < channels * threads * threshold) channels -= 1;
  while (bytes < channels * threads * threshold && threads != 0 && threads % (4 * kWarpThreads) == 0) threads /= 2;
  const std::uint32_t least_warps = protocol == NcclProtocol::kLl ? 3 : 2;
  threads = std::max<std::uint32_t>(threads, least_warps * kWarpThreads);
  return nccl_plan_on(tuning, protocol, collective, elements, element_bytes, channels, threads, root);
}

std::optional<NcclOp> nccl_plan(const NcclTuning& tuning, NcclCollective collective, std::uint64_t elements,
                                std::uint32_t element_bytes, std::uint32_t root) {
  if (elements > kMaxNcclElements || element_bytes > 8 || tuning.ranks > kMaxNcclRanks) return std::nullopt;
  const std::uint64_t bytes = elements * element_bytes * (collective == NcclCollective::kAllGather ? tuning.ranks : 1);
  return nccl_plan_with(tuning, bytes <= tuning.ll_max_bytes ? NcclProtocol::kLl : NcclProtocol::kSimple, collective,
                        elements, element_bytes, root);
}

std::optional<NcclSchedule> NcclSchedule::of(const NcclOp& op) {
  if (!sizes_possible(op) || op.channels == 0 || op.first_channel > kMaxNcclChannels ||
      op.channels > kMaxNcclChannels - op.first_channel)
    return std::nullopt;
  NcclSchedule made(op);
  made.unit_bytes_ = unit_bytes(op);
  made.units_ = units(op);
  made.chunk_units_ = chunk_bytes(op) / made.unit_bytes_;
  made.slices_ = pipeline(op).slices;
  made.steps_per_slice_ = pipeline(op).chunk_steps / made.slices_;
  made.chunks_ = op.collective == NcclCollective::kAllReduce ? op.ranks : 1;
  made.chunk_messages_ = op.collective == NcclCollective::kAllReduce   ? 2 * (op.ranks - 1)
                         : op.collective == NcclCollective::kAllGather ? op.ranks - 1
                                                                       : 1;
  if (op.layout == NcclLayout::kUpTo2_19) {
    // A chunk that the grain rounds up beyond its slot would overlap the next loop: no NCCL runs so.
    if (op.first_channel != 0 || (op.protocol == NcclProtocol::kSimple && made.chunk_units_ % grain_units(op) != 0))
      return std::nullopt;
    return made;
  }
  const NcclSlabs& slabs = op.slabs;
  const std::uint64_t middles = op.channels > 2 ? op.channels - 2 : 0;
  if (slabs.first == 0 || slabs.first > made.units_ || slabs.middle > made.units_ || slabs.last > made.units_ ||
      (op.channels > 1) != (slabs.last != 0) || (middles > 0) != (slabs.middle != 0) ||
      slabs.first + middles * slabs.middle + slabs.last != made.units_)
    return std::nullopt;
  const bool in_elements = slabs.first % (op.element_bytes / made.unit_bytes_) == 0 &&
                           slabs.middle % (op.element_bytes / made.unit_bytes_) == 0;
  return in_elements || op.channels == 1 ? std::optional(made) : std::nullopt;
}

namespace {

// The part of the vector that one loop of one channel covers.
struct Slab {
  std::uint64_t begin = 0;
  std::uint64_t count = 0;
};
Slab slab_of(const NcclOp& op, std::uint32_t channel) {
  if (channel == 0) return {0, op.slabs.first};
  const std::uint64_t begin = op.slabs.first + (channel - 1ULL) * op.slabs.middle;
  return {begin, channel + 1 == op.channels ? op.slabs.last : op.slabs.middle};
}

}  // namespace

std::uint64_t NcclSchedule::loops(std::uint32_t channel) const {
  if (op_.layout == NcclLayout::kUpTo2_19) return divide_up(units_, op_.channels * chunks_ * chunk_units_);
  return divide_up(slab_of(op_, channel).count, chunks_ * chunk_units_);
}

std::uint64_t NcclSchedule::message_count(std::uint32_t position, std::uint32_t channel) const {
  if (position >= op_.ranks || channel >= op_.channels) return 0;
  if (op_.collective == NcclCollective::kBroadcast && (position + 1) % op_.ranks == op_.root) return 0;
  return loops(channel) * chunk_messages_ * slices_;
}

std::optional<NcclMessage> NcclSchedule::message(std::uint32_t position, std::uint32_t channel,
                                                 std::uint64_t index) const {
  if (index >= message_count(position, channel)) return std::nullopt;
  const std::uint64_t loop = index / (std::uint64_t{chunk_messages_} * slices_);
  const std::uint64_t turn = index / slices_ % chunk_messages_;
  const std::uint64_t slice = index % slices_;
  const std::uint64_t ranks = op_.ranks;

  NcclMessage message;
  message.steps = steps_per_slice_;
  // Which chunk of the loop an all-reduce sends now, and whose block an all-gather sends.
  std::uint64_t chunk = 0;
  std::uint64_t block = 0;
  if (op_.collective == NcclCollective::kAllReduce) {
    message.phase = turn < ranks - 1 ? Phase::kPartial : Phase::kFinal;
    const std::uint64_t back = turn < ranks - 1 ? turn + 1 : turn - (ranks - 1);
    chunk = (position + 2 * ranks - back) % ranks;
  } else {
    message.phase = Phase::kFinal;
    if (op_.collective == NcclCollective::kAllGather) block = (position + ranks - turn) % ranks;
  }

  // [begin, limit) is what is left for this loop; `real` the chunk length of this loop.
  std::uint64_t begin = 0;
  std::uint64_t limit = units_;
  if (op_.layout == NcclLayout::kUpTo2_19) {
    const std::uint64_t parts = std::uint64_t{op_.channels} * chunks_;
    const std::uint64_t base = loop * parts * chunk_units_;
    const std::uint64_t left = units_ - base;
    const std::uint64_t grain = grain_units(op_);
    std::uint64_t real = 0;
    if (op_.protocol == NcclProtocol::kLl) {
      real = std::min(chunk_units_, divide_up(left, parts * grain) * grain);
      begin = base + (chunk * op_.channels + channel) * real;
    } else {
      real = round_up(std::min(chunk_units_, divide_up(left, parts)), grain);
      begin = base + (channel * std::uint64_t{chunks_} + chunk) * real;
    }
    limit = std::min(units_, begin + real);
  } else {
    const Slab slab = slab_of(op_, channel);
    const std::uint64_t base = loop * chunks_ * chunk_units_;
    const std::uint64_t left = slab.count - base;
    std::uint64_t real = chunk_units_;
    if (left < chunks_ * chunk_units_ && op_.collective == NcclCollective::kAllReduce)
      real = round_up(divide_up(left, chunks_),
                      op_.layout == NcclLayout::kFrom2_22 ? kTailAlignBytes / unit_bytes_ : grain_units(op_));
    begin = slab.begin + base + chunk * real;
    limit = std::min(slab.begin + slab.count, begin + real);
  }
  begin = std::min(begin, limit);

  // A chunk of Simple goes in two slices; the second may be empty. Lengths in the units that the kernel counts in.
  if (slices_ > 1) {
    const std::uint64_t length = limit - begin;
    const std::uint64_t least = steps_per_slice_ * kNcclSimpleStepBytes / unit_bytes_ / 32;
    const std::uint64_t cut = std::min(length, std::max(divide_up(length, 16ULL * slices_) * 16, least));
    if (slice == 0)
      limit = begin + cut;
    else
      begin += cut;
  }

  const std::uint64_t bytes = (limit - begin) * unit_bytes_;
  message.wire_bytes = op_.protocol == NcclProtocol::kLl ? nccl_ll_wire_bytes(bytes) : bytes;
  const std::uint64_t units_per_element = op_.element_bytes / unit_bytes_;
  const std::uint64_t block_base = block * units_;
  message.begin = (block_base + begin) / units_per_element;
  message.end = (block_base + limit) / units_per_element;
  return message;
}

std::uint64_t NcclSchedule::aligned_step(std::uint64_t step) const {
  return round_up(step, std::uint64_t{steps_per_slice_} * slices_);
}

}  // namespace gradtap::dataplane
