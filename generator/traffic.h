// Traffic: a whole fabric from a few settings: several jobs, their steps, faults, other traffic, a wrapped mirror.
//
// Purpose: what the command and system tests need to say in one place. Jobs train at the same time: their frames are
// merged by time, step by step. Ownership: holds one step's frames of all jobs (its bytes are bounded by
// max_step_bytes). Threads: one; the same settings and values give the same frames.
// Failure behaviour: settings that cannot be are refused by name before anything is written.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>
#include <vector>

#include "common/error.h"
#include "generator/fabric_faults.h"
#include "generator/mirror_wrap.h"
#include "generator/nccl_job.h"
#include "generator/side_traffic.h"

namespace gradtap::generator {

struct TrafficConfig {
  JobConfig job;  // hosts and numbers of the first job; the others get their own
  std::uint32_t jobs = 1;
  ElementType type = ElementType::kFloat32;
  std::vector<std::uint64_t> elements;  // of the buckets of a step, in order
  std::uint64_t steps = 1;
  std::uint64_t step_pause_ns = 1'000'000;
  // What DDP sends before the first step: all-gather of the number of parameters, broadcasts of shapes and parameters.
  bool ddp_start = false;
  std::uint64_t seed = 1;
  RetransmissionConfig retransmission;
  MirrorFaultsConfig mirror;
  double side_frames = 0;  // per frame of the jobs
  WrapConfig wrap;
  std::uint64_t max_step_bytes = 4ULL << 30;
};

// The job's settings that follow from the version of NCCL: layout, control entries, byte order of immediates.
[[nodiscard]] Status apply_nccl_version(std::string_view version, JobConfig& config);

// Hosts 10.J.0.1, ... or fd00:J::1, ... of job J, with MAC addresses of their own.
[[nodiscard]] std::vector<JobHost> invented_hosts(std::uint32_t job, std::uint32_t ranks, bool v6);

// The reduced values of (job, step, bucket); read at once.
using ReducedValues = std::function<Result<ByteSpan>(std::uint32_t job, std::uint64_t step, std::size_t bucket)>;

// Values drawn from a seed: finite numbers of moderate size in every type.
class DrawnValues {
 public:
  DrawnValues(ElementType type, std::uint64_t seed) : type_(type), seed_(seed) {}
  [[nodiscard]] ByteSpan draw(std::uint32_t job, std::uint64_t step, std::size_t bucket, std::uint64_t elements);

 private:
  ElementType type_;
  std::uint64_t seed_;
  std::vector<std::uint8_t> bytes_;
};

// Faults, other traffic and the wrapped mirror in front of a sink, in the order in which a fabric has them.
class FabricStages {
 public:
  FabricStages(const TrafficConfig& config, const std::vector<RocePath>& paths, FrameSink& end);
  [[nodiscard]] FrameSink& front() { return retransmission_; }
  // Lets go of what stages hold; more may follow.
  void finish();
  void change(Wrapping wrapping) { wrap_.change(wrapping); }
  [[nodiscard]] const Retransmission& retransmission() const { return retransmission_; }
  [[nodiscard]] const MirrorFaults& mirror() const { return mirror_; }

 private:
  SeededRandom random_;
  MirrorWrap wrap_;
  MirrorFaults mirror_;
  WithSideTraffic side_;
  Retransmission retransmission_;
};

struct TrafficReport {
  std::uint64_t ops = 0;
  std::uint64_t repeated_frames = 0;
  std::uint64_t dropped_frames = 0;
  std::uint64_t duplicated_frames = 0;
  std::uint64_t reordered_frames = 0;
};

[[nodiscard]] Result<TrafficReport> write_traffic(const TrafficConfig& config, const ReducedValues& values,
                                                  FrameSink& sink);

}  // namespace gradtap::generator
