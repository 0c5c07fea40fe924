#include "generator/traffic.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "common/number_text.h"

namespace gradtap::generator {
namespace {

constexpr std::uint32_t kMaxJobs = 64;
constexpr std::uint32_t kConnectionsAJob = 0x4000;  // queue pair numbers are 2^24
constexpr std::size_t kMaxBuckets = 4096;

class Collector final : public FrameSink {
 public:
  explicit Collector(std::uint64_t max_bytes) : max_bytes_(max_bytes) {}
  void frame(std::uint64_t time_ns, ByteSpan bytes, const FrameNote& note) override {
    bytes_ += bytes.size() + sizeof(HeldFrame);
    if (bytes_ > max_bytes_) return;
    frames_.push_back({time_ns, {bytes.begin(), bytes.end()}, note});
  }
  [[nodiscard]] bool overflowed() const { return bytes_ > max_bytes_; }
  [[nodiscard]] std::vector<HeldFrame>& frames() { return frames_; }

 private:
  std::uint64_t max_bytes_;
  std::uint64_t bytes_ = 0;
  std::vector<HeldFrame> frames_;
};

JobConfig config_of(const TrafficConfig& traffic, std::uint32_t job) {
  JobConfig config = traffic.job;
  if (job == 0) return config;
  const std::uint32_t connections = config.tuning.ranks * config.tuning.channels;
  config.hosts = invented_hosts(job + 1, config.tuning.ranks, !config.hosts.front().address.is_v4());
  config.first_qpn += job * kConnectionsAJob;
  config.first_rkey += job * 3 * connections;
  config.first_address += job * (1ULL << 40);
  return config;
}

Status ddp_start(const TrafficConfig& traffic, NcclJob& job, DrawnValues& drawn, std::uint32_t index, FrameSink& sink) {
  std::array<std::uint8_t, 8> count{1};
  const std::vector<ByteSpan> counts(job.config().tuning.ranks, ByteSpan(count));
  GRADTAP_TRY(job.all_gather(counts, sink));
  std::array<std::uint8_t, 32> shape{};
  const std::uint64_t elements = traffic.elements.front();
  std::memcpy(shape.data() + 8, &elements, sizeof elements);
  GRADTAP_TRY(job.broadcast(0, shape, sink));
  for (std::size_t bucket = 0; bucket < traffic.elements.size(); ++bucket)
    GRADTAP_TRY(job.broadcast(0, drawn.draw(index, ~std::uint64_t{0}, bucket, traffic.elements[bucket]), sink));
  return {};
}

}  // namespace

Status apply_nccl_version(std::string_view version, JobConfig& config) {
  const auto layout = dataplane::nccl_layout_of(version);
  if (!layout)
    return fail(ErrorCode::kUnsupported, "no version of NCCL whose schedule is known", {}, "2.8 or later, as 2.19.3",
                std::string(version));
  config.tuning.layout = *layout;
  const std::string_view minor = version.substr(2, version.find('.', 2) - 2);
  const std::uint32_t number = parse_integer<std::uint32_t>(minor).value_or(0);
  config.cts = number >= 27 ? CtsFormat::k64BytesWide : cts_format_of(*layout);
  config.immediate_big_endian = number >= 29;
  return {};
}

std::vector<JobHost> invented_hosts(std::uint32_t job, std::uint32_t ranks, bool v6) {
  std::vector<JobHost> hosts;
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    JobHost host;
    const std::uint32_t number = rank + 1;
    host.mac = {0x02,
                0x47,
                static_cast<std::uint8_t>(job),
                0,
                static_cast<std::uint8_t>(number >> 8),
                static_cast<std::uint8_t>(number)};
    auto& address = host.address.bytes;
    if (v6) {
      address[0] = 0xfd;
      address[3] = static_cast<std::uint8_t>(job);
    } else {
      address[10] = address[11] = 0xff;
      address[12] = 10;
      address[13] = static_cast<std::uint8_t>(job);
    }
    address[14] = static_cast<std::uint8_t>(number >> 8);
    address[15] = static_cast<std::uint8_t>(number);
    hosts.push_back(host);
  }
  return hosts;
}

ByteSpan DrawnValues::draw(std::uint32_t job, std::uint64_t step, std::size_t bucket, std::uint64_t elements) {
  const std::uint32_t element = element_bytes(type_);
  bytes_.resize(elements * element);
  SeededRandom random(splitmix64_mix(seed_ ^ splitmix64_mix(job * 1'000'003ULL + bucket)) + step);
  for (std::uint64_t i = 0; i < elements; ++i) {
    std::uint64_t bits = random.next();
    // The upper exponent bits of a float are set so that values lie between 2^-32 and 2^31 or so, of both signs.
    switch (type_) {
      case ElementType::kFloat32:
        bits = (bits & 0x83ffffff) | 0x3c000000;
        break;
      case ElementType::kBfloat16:
        bits = (bits & 0x83ff) | 0x3c00;
        break;
      case ElementType::kFloat16:
        bits = (bits & 0x8fff) | 0x3000;
        break;
      case ElementType::kFloat64:
        bits = (bits & 0x807fffffffffffffULL) | 0x3f80000000000000ULL;
        break;
      case ElementType::kInt32:
      case ElementType::kInt64:
      case ElementType::kUint8:
        break;
    }
    std::memcpy(bytes_.data() + i * element, &bits, element);
  }
  return bytes_;
}

FabricStages::FabricStages(const TrafficConfig& config, const std::vector<RocePath>& paths, FrameSink& end)
    : random_(config.seed ^ 0xfab51cULL),
      wrap_(config.wrap, end),
      mirror_(config.mirror, random_, wrap_),
      side_(SideTraffic(paths, config.seed + 1), config.side_frames, config.seed + 2, mirror_),
      retransmission_(config.retransmission, random_, side_) {}

void FabricStages::finish() {
  retransmission_.finish();
  mirror_.finish();
}

Result<TrafficReport> write_traffic(const TrafficConfig& config, const ReducedValues& values, FrameSink& sink) {
  if (config.jobs == 0 || config.jobs > kMaxJobs)
    return fail(ErrorCode::kOutOfRange, "so many jobs cannot be", {}, "1 to " + std::to_string(kMaxJobs),
                std::to_string(config.jobs));
  if (config.elements.empty() || config.elements.size() > kMaxBuckets)
    return fail(ErrorCode::kOutOfRange, "a step has buckets", {}, "1 to " + std::to_string(kMaxBuckets),
                std::to_string(config.elements.size()));
  std::vector<NcclJob> jobs;
  std::vector<RocePath> paths;
  for (std::uint32_t index = 0; index < config.jobs; ++index) {
    const JobConfig one = config_of(config, index);
    auto job = NcclJob::make(one);
    if (!job) return std::unexpected(job.error());
    jobs.push_back(std::move(*job));
    paths.push_back(job_connections(one).front().data);
  }
  TrafficReport report;
  DrawnValues drawn(config.type, config.seed);
  FabricStages stages(config, paths, sink);

  // One step of all jobs at the same time; before the first one, what DDP sends at its start.
  for (std::uint64_t round = config.ddp_start ? 0 : 1; round <= config.steps; ++round) {
    Collector collected(config.max_step_bytes);
    std::uint64_t end_ns = 0;
    for (std::uint32_t index = 0; index < config.jobs; ++index) {
      NcclJob& job = jobs[index];
      const auto first = static_cast<std::ptrdiff_t>(collected.frames().size());
      if (round == 0) {
        GRADTAP_TRY(ddp_start(config, job, drawn, index, collected));
      } else {
        for (std::size_t bucket = 0; bucket < config.elements.size(); ++bucket) {
          const auto reduced = values(index, round, bucket);
          if (!reduced) return std::unexpected(reduced.error());
          if (reduced->size() != config.elements[bucket] * element_bytes(config.type))
            return fail(ErrorCode::kOutOfRange, "the values of a bucket are not as long as the bucket",
                        "step " + std::to_string(round) + ", bucket " + std::to_string(bucket));
          GRADTAP_TRY(job.all_reduce(config.type, *reduced, {}, collected));
        }
      }
      if (collected.overflowed())
        return fail(ErrorCode::kLimitReached, "the frames of one step do not fit", {},
                    std::to_string(config.max_step_bytes) + " bytes", {}, "take smaller buckets or fewer jobs");
      // Connections of one job are told from those of others by their index, too.
      for (auto at = collected.frames().begin() + first; at != collected.frames().end(); ++at)
        at->note.connection += index * kConnectionsAJob;
      end_ns = std::max(end_ns, job.now_ns());
    }
    std::stable_sort(collected.frames().begin(), collected.frames().end(),
                     [](const HeldFrame& a, const HeldFrame& b) { return a.time_ns < b.time_ns; });
    for (const HeldFrame& held : collected.frames()) stages.front().frame(held.time_ns, held.bytes, held.note);
    for (NcclJob& job : jobs) job.wait_until(end_ns + config.step_pause_ns);
  }
  stages.finish();
  for (const NcclJob& job : jobs) report.ops += job.ops();
  report.repeated_frames = stages.retransmission().repeats();
  report.dropped_frames = stages.mirror().dropped();
  report.duplicated_frames = stages.mirror().duplicated();
  report.reordered_frames = stages.mirror().reordered();
  return report;
}

}  // namespace gradtap::generator
