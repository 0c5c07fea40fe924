// NcclSchedule: which message of an NCCL ring collective carries which elements, and whether they are final.
//
// Purpose: the one table of NCCL's rings that decoder and traffic generator share. An op (what was called, how NCCL
// decided to run it) is checked once; after that each answer about (ring position of the sender, channel, message) is
// O(1), without allocation. Ownership: plain values; any thread. Positions are those in the ring, counted from rank 0.
// Invariants: every step of the algorithm is a message, empty ones too (they use a CTS entry and a flag); the messages
// of one connection are numbered from 0 in sending order; an op whose numbers cannot be is not made (nullopt), and a
// message that is not there has no answer. Sizes up to kMaxNcclElements: no arithmetic here overflows.
//
// Where the rules stand in NCCL (functions, by version):
//   all-reduce chunks    runRing in all_reduce.h: 2.8-2.19 cuts the whole vector over channels in every loop,
//                        2.20-2.21 and from 2.22 each channel has one contiguous slab
//   all-gather chunks    runRing in all_gather.h; broadcast: runRing in broadcast.h (both count bytes, not elements)
//   slots and chunks     initCommBuffers / calcBytePerStep (2.8-2.19), computeCollChunkInfo (2.20-2.21),
//                        calcCollChunking (from 2.22)
//   slabs                addCBDCollToPlan (2.20-2.21), scheduleCollTasksToPlan (from 2.22)
//   channels, threads    getAlgoInfo (up to 2.19), getChannnelThreadInfo (2.20-2.21), topoGetAlgoInfo (from 2.22);
//                        threadThresholds: ncclTopoTuneModel
//   slices of Simple     genericOp in prims_simple.h; lines of LL: LLGenericOp in prims_ll.h
#pragma once

#include <compare>
#include <cstdint>
#include <optional>
#include <string_view>

#include "dataplane/schedule.h"

namespace gradtap::dataplane {

enum class NcclLayout : std::uint8_t { kUpTo2_19, k2_20To2_21, kFrom2_22 };
enum class NcclProtocol : std::uint8_t { kLl, kSimple };
enum class NcclCollective : std::uint8_t { kAllReduce, kAllGather, kBroadcast };

inline constexpr std::uint32_t kMaxNcclRanks = 1U << 15;
inline constexpr std::uint32_t kMaxNcclChannels = 64;
inline constexpr std::uint64_t kMaxNcclElements = 1ULL << 38;

inline constexpr std::uint32_t kNcclSlots = 8;                       // NCCL_STEPS
inline constexpr std::uint64_t kNcclLlSlotBytes = 64ULL << 10;       // on the wire, flags included
inline constexpr std::uint64_t kNcclLlLineBytes = 16;                // data, flag, data, flag
inline constexpr std::uint64_t kNcclLlLineDataBytes = 8;             //
inline constexpr std::uint64_t kNcclSimpleStepBytes = 512ULL << 10;  // NCCL_BUFFSIZE of 4 MiB over 8 slots
inline constexpr std::uint32_t kNcclThreads = 512;                   // of LL, and of Simple on fast links
inline constexpr std::uint64_t kNcclLlMaxChunkBytes = kNcclLlSlotBytes / 2;

// The layout of an NCCL version ("2.19.3", "2.22"); nothing for text that is no version, or for 1.x and below 2.8.
[[nodiscard]] std::optional<NcclLayout> nccl_layout_of(std::string_view version);

// The elements that each channel takes where a channel has one contiguous slab (from 2.20): the first channel `first`,
// the last one `last` (when there are two or more), those between `middle`. Slabs lie in channel order.
struct NcclSlabs {
  std::uint64_t first = 0;
  std::uint64_t middle = 0;
  std::uint64_t last = 0;
  friend auto operator<=>(const NcclSlabs&, const NcclSlabs&) = default;
};

struct NcclOp {
  NcclCollective collective = NcclCollective::kAllReduce;
  NcclLayout layout = NcclLayout::kUpTo2_19;
  NcclProtocol protocol = NcclProtocol::kLl;
  std::uint32_t ranks = 0;
  std::uint32_t channels = 0;       // that this op uses: channels of the communicator first_channel, +1, ...
  std::uint32_t first_channel = 0;  // above 0 only from 2.22, in a fused launch
  std::uint32_t element_bytes = 4;
  std::uint64_t elements = 0;            // of the vector; of an all-gather: that one rank gives
  std::uint32_t threads = kNcclThreads;  // workers: without the extra warp of Simple
  std::uint32_t root = 0;                // of a broadcast, its ring position
  NcclSlabs slabs;                       // from 2.20; elements, or bytes of an all-gather or broadcast
  friend auto operator<=>(const NcclOp&, const NcclOp&) = default;
};

// What NCCL's tuning would need to know; everything but the sizes is configuration of the job, not seen on the wire.
struct NcclTuning {
  NcclLayout layout = NcclLayout::kUpTo2_19;
  std::uint32_t ranks = 0;
  std::uint32_t channels = 1;  // connected in the ring graph (nChannels of the communicator)
  std::uint32_t ll_threads = kNcclThreads;
  std::uint32_t simple_threads = kNcclThreads;  // 256 where the ring is slower than 12 GB/s (ncclTopoTuneModel)
  std::uint64_t ll_max_bytes = 0;               // ops of up to so many bytes go by LL, larger ones by Simple
  friend auto operator<=>(const NcclTuning&, const NcclTuning&) = default;
};

// How NCCL runs a call that is not fused with others: protocol, channels, threads, slabs. Nothing for sizes that
// cannot be.
[[nodiscard]] std::optional<NcclOp> nccl_plan(const NcclTuning& tuning, NcclCollective collective,
                                              std::uint64_t elements, std::uint32_t element_bytes,
                                              std::uint32_t root = 0);

// The same with the protocol given.
[[nodiscard]] std::optional<NcclOp> nccl_plan_with(const NcclTuning& tuning, NcclProtocol protocol,
                                                   NcclCollective collective, std::uint64_t elements,
                                                   std::uint32_t element_bytes, std::uint32_t root = 0);

// The same with the tuned numbers of channels and threads given too (an observer tries them). From 2.20 fewer channels
// than tuned may have something to do, from 2.22 more (up to tuning.channels).
[[nodiscard]] std::optional<NcclOp> nccl_plan_on(const NcclTuning& tuning, NcclProtocol protocol,
                                                 NcclCollective collective, std::uint64_t elements,
                                                 std::uint32_t element_bytes, std::uint32_t tuned_channels,
                                                 std::uint32_t threads, std::uint32_t root = 0);

struct NcclMessage {
  Phase phase = Phase::kPartial;
  std::uint64_t begin = 0;  // elements [begin, end) of the result (an all-gather's: of all ranks); may be empty
  std::uint64_t end = 0;
  std::uint64_t wire_bytes = 0;
  std::uint32_t steps = 0;  // of the connection that this message takes
  friend bool operator==(const NcclMessage&, const NcclMessage&) = default;
};

class NcclSchedule {
 public:
  [[nodiscard]] static std::optional<NcclSchedule> of(const NcclOp& op);

  [[nodiscard]] const NcclOp& op() const { return op_; }
  // Messages from the rank at `position` to the next one on the op's `channel`-th channel (0-based within the op).
  [[nodiscard]] std::uint64_t message_count(std::uint32_t position, std::uint32_t channel) const;
  [[nodiscard]] std::optional<NcclMessage> message(std::uint32_t position, std::uint32_t channel,
                                                   std::uint64_t index) const;
  // The connection's step at which an op begins when the step before it was the end of another: a Simple op begins at
  // a multiple of its chunk's steps (loadRecvConn/loadSendConn in prims_simple.h).
  [[nodiscard]] std::uint64_t aligned_step(std::uint64_t step) const;
  [[nodiscard]] std::uint32_t slices() const { return slices_; }  // messages a chunk

 private:
  explicit NcclSchedule(const NcclOp& op) : op_(op) {}
  [[nodiscard]] std::uint64_t loops(std::uint32_t channel) const;

  NcclOp op_;
  // In units: elements of an all-reduce, bytes of the others.
  std::uint64_t unit_bytes_ = 1;
  std::uint64_t units_ = 0;        // of the vector (of one rank)
  std::uint64_t chunk_units_ = 0;  // of a full chunk
  std::uint32_t slices_ = 1;
  std::uint32_t steps_per_slice_ = 1;
  std::uint32_t chunks_ = 1;          // that one loop of one channel cuts: ranks for an all-reduce, else 1
  std::uint32_t chunk_messages_ = 0;  // chunks that a rank sends in one loop
};

// The chunk in which a point-to-point send of `bytes` goes over the network, each chunk one message
// (ncclProxyComputeP2p up to 2.21, of what one channel sends; addP2pToPlan from 2.22, of the whole send): the step of
// 128 KiB, a quarter of it below one step, half of it below eight.
inline constexpr std::uint64_t kNcclSendStepBytes = 128ULL << 10;
[[nodiscard]] constexpr std::uint64_t nccl_send_chunk_bytes(std::uint64_t bytes) {
  if (bytes < kNcclSendStepBytes) return kNcclSendStepBytes / 4;
  return bytes < 8 * kNcclSendStepBytes ? kNcclSendStepBytes / 2 : kNcclSendStepBytes;
}

// Bytes on the wire of an LL message of `data_bytes` sent at connection step `step`: whole lines; every 2^31 steps the
// whole slot is sent to clear old flags (NCCL_LL_CLEAN_MASK).
[[nodiscard]] constexpr std::uint64_t nccl_ll_wire_bytes(std::uint64_t data_bytes) {
  return (data_bytes + kNcclLlLineDataBytes - 1) / kNcclLlLineDataBytes * kNcclLlLineBytes;
}
inline constexpr std::uint32_t kNcclLlCleanMask = 0x7ffffff8;
[[nodiscard]] constexpr bool nccl_ll_step_cleans(std::uint64_t step) {
  return (step & kNcclLlCleanMask) == kNcclLlCleanMask;
}

}  // namespace gradtap::dataplane
