// NcclJob: the RoCE traffic of a job's collectives.
//
// Purpose: R ranks in a ring over some channels. Reduced values are given, the all-gather half of an all-reduce carries
// exactly those; partial sums are computed from what each rank gives, or are halves of the reduced values. Broadcasts
// and all-gathers carry exactly what is given. Frames go to a sink with the time at which they pass the mirror.
// Ownership: owns its connections; data is read during the call only. Threads: one. The clock is the job's own: it
// begins at `start_ns` and moves by the length of each frame at `bits_per_ns`.
// Failure behaviour: sizes that NCCL could not run are refused by name before a frame is written.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include "common/error.h"
#include "dataplane/nccl_ring.h"
#include "generator/element.h"
#include "generator/nccl_connection.h"

namespace gradtap::generator {

struct JobHost {
  MacAddress mac{};
  dataplane::IpAddress address;
};

struct JobConfig {
  dataplane::NcclTuning tuning;
  std::vector<JobHost> hosts;  // of ranks 0, 1, ... ; ring order is rank order
  std::uint32_t path_mtu_bytes = 1024;
  std::uint32_t first_qpn = 0x100;
  std::uint32_t first_psn = 0;  // NCCL begins at 0; later ones let tests wrap
  std::uint64_t first_step = 0;
  std::uint64_t first_address = 0x7f0000000000;
  std::uint32_t first_rkey = 0x200100;
  CtsFormat cts = CtsFormat::k32Bytes;
  WriteStyle style = WriteStyle::kWriteImmediate;
  bool immediate_big_endian = false;
  bool acknowledge = true;
  // Ways of NCCL that decoders refuse.
  std::uint32_t queue_pairs = 1;      // of each connection
  bool cut_over_queue_pairs = false;  // see nccl_connection.h
  bool ll128 = false;                 // LL's chunks in lines of LL128
  bool tree = false;                  // all-reduces by two trees, LL: up to the root, and down again
  std::uint32_t undefined_word = 0x5a5a5a5a;
  std::uint64_t start_ns = 0;
  double bits_per_ns = 100;
};

// The connection of (ring position of the sender, channel) has index position * channels + channel.
[[nodiscard]] std::vector<ConnectionConfig> job_connections(const JobConfig& config);

class NcclJob {
 public:
  [[nodiscard]] static Result<NcclJob> make(const JobConfig& config);
  // With connections of the caller's own making, as many as job_connections gives.
  [[nodiscard]] static Result<NcclJob> make(const JobConfig& config, const std::vector<ConnectionConfig>& connections);

  // `given` holds what each rank brings, as long as `reduced`, or is empty.
  [[nodiscard]] Status all_reduce(ElementType type, ByteSpan reduced, std::span<const ByteSpan> given, FrameSink& sink);
  // `blocks` are the ranks' equally long parts, in rank order.
  [[nodiscard]] Status all_gather(std::span<const ByteSpan> blocks, FrameSink& sink);
  [[nodiscard]] Status broadcast(std::uint32_t root, ByteSpan bytes, FrameSink& sink);
  // A point-to-point send over one connection of its own, which is made at the first send of the pair. Its index
  // follows those of the ring.
  [[nodiscard]] Status send(std::uint32_t from, std::uint32_t to, ByteSpan bytes, FrameSink& sink);

  [[nodiscard]] std::uint32_t ops() const { return ops_; }
  [[nodiscard]] std::uint64_t now_ns() const { return now_ns_; }
  void wait_until(std::uint64_t time_ns) { now_ns_ = std::max(now_ns_, time_ns); }
  [[nodiscard]] const JobConfig& config() const { return config_; }

 private:
  explicit NcclJob(const JobConfig& config) : config_(config), now_ns_(config.start_ns) {}
  // The bytes of a message; called once for each, in the order in which a rank can have them.
  using MessageBytes = std::function<ByteSpan(std::uint32_t position, const dataplane::NcclMessage& message)>;
  void pass(std::uint64_t bytes);  // the time that they take
  [[nodiscard]] Status tree_all_reduce(ElementType type, ByteSpan reduced, FrameSink& sink);
  NcclConnection& apart(std::uint32_t from, std::uint32_t to, std::uint32_t channel, bool point_to_point);
  [[nodiscard]] Status run(const std::optional<dataplane::NcclOp>& op, const MessageBytes& bytes, FrameSink& sink);

  JobConfig config_;
  std::vector<NcclConnection> connections_;
  std::map<std::tuple<bool, std::uint32_t, std::uint32_t, std::uint32_t>, NcclConnection> apart_;  // from the ring
  std::uint32_t ops_ = 0;
  std::uint64_t now_ns_ = 0;
  std::vector<std::uint8_t> running_;  // sums so far, of all chunks
};

}  // namespace gradtap::generator
