#include "capacity/model.h"

#include <algorithm>
#include <array>
#include <cmath>

#include <fmt/format.h>

namespace gradtap::capacity {
namespace {

constexpr double kBusyMax = 0.7;      // of cores and rates: what waits stays short (PROTOCOLS 7.2)
constexpr double kMirrorMax = 0.9;    // of a port
constexpr double kSpaceMargin = 1.1;  // of the disk
constexpr double kGapBytes = 20;      // preamble and gap between frames

// What one node has to do in one step.
struct Work {
  double gradient = 0;     // bytes of the whole gradient
  double owned = 0;        // parameters
  double tapped = 0;       // share of the mirrored bytes that come to this node
  double payload = 0;      // mirrored, of this node
  double frames = 0;       // of it
  double final_bytes = 0;  // of it
  double log = 0;          // bytes to disk
  double full = 0;         // bytes to disk, on average
  double upload = 0;       // bytes to the object store, on average
  double forwarded = 0;    // bytes to other owners
};

Work work_of(const JobShape& job, std::uint32_t nodes, double share) {
  const double ranks = job.ranks;
  Work work;
  work.gradient = job.parameters * job.gradient_bytes;
  work.owned = share * job.parameters;
  work.tapped = job.tap == TapMode::kEach ? 1.0 : 1.0 / nodes;
  work.payload = work.tapped * job.mirrored_edges * 2 * (ranks - 1) / ranks * work.gradient;
  work.frames = work.payload / job.frame.payload_bytes;
  work.final_bytes = work.payload / 2;
  work.log = work.owned * job.gradient_bytes;
  work.full = work.owned * job.state_bytes() / static_cast<double>(job.full_every_steps);
  work.upload =
      (work.gradient + job.parameters * job.state_bytes() / static_cast<double>(job.full_every_steps)) / nodes;
  if (job.tap == TapMode::kSpread)
    work.forwarded = work.gradient / nodes * std::min<double>(job.replicas, nodes) * (nodes - 1.0) / nodes;
  return work;
}

std::string bytes(double value) {
  return quantity(value, Unit::kBytes);
}

class Sheet {
 public:
  Sheet(const JobShape& job, const NodeShape& node, std::uint32_t nodes, double share)
      : job_(job), node_(node), nodes_(nodes), share_(share), work_(work_of(job, nodes, share)) {}

  std::vector<Row> all() {
    memory();
    memory_at_attach();
    window();
    cores();
    memory_bandwidth();
    mirror_port();
    node_link();
    disk_write();
    disk_space();
    object_write();
    return std::move(rows_);
  }

 private:
  Row& add(Resource resource, Unit unit, double available, double limit) {
    Row& row = rows_.emplace_back();
    row.resource = resource;
    row.unit = unit;
    row.available = available;
    row.limit = limit;
    if (available <= 0) row.unknown = "what the node has";
    return row;
  }
  // Adds to `needed`.
  static void part(Row& row, std::string name, double value, std::string formula, std::string numbers) {
    row.needed += value;
    row.parts.push_back({std::move(name), value, std::move(formula), std::move(numbers)});
  }
  // A row of something in each second: nothing without a step time.
  void timed(Row& row) const {
    if (job_.step_time_s <= 0) row.unknown = "the step time";
  }
  [[nodiscard]] double per_second(double per_step) const {
    return job_.step_time_s > 0 ? per_step / job_.step_time_s : 0;
  }
  [[nodiscard]] std::string in_step() const { return fmt::format("{:.4g} s", job_.step_time_s); }

  [[nodiscard]] double window_bytes() const {
    const double wanted = job_.window_steps * work_.gradient * work_.tapped;
    return node_.window_bytes_max > 0 ? std::min(wanted, node_.window_bytes_max) : wanted;
  }
  [[nodiscard]] double hold_bytes() const {
    if (nodes_ == 1) return 0;  // there is no other owner
    const double wanted = job_.hold_steps * work_.gradient * work_.tapped;
    return node_.hold_bytes_max > 0 ? std::min(wanted, node_.hold_bytes_max) : wanted;
  }

  void memory() {
    Row& row = add(Resource::kMemory, Unit::kBytes, node_.memory_bytes, 1);
    const double s = job_.state_bytes();
    part(row, "state", work_.owned * s, "owned share x parameters x state bytes",
         fmt::format("{:.4g} x {:.4g} x {:.4g} B", share_, job_.parameters, s));
    part(row, "window", window_bytes(), "steps x tapped share x gradient, at most assembly.window_bytes",
         fmt::format("{:.4g} x {:.4g} x {}", job_.window_steps, work_.tapped, bytes(work_.gradient)));
    part(row, "hold", hold_bytes(), "steps x tapped share x gradient, at most assembly.retain_bytes; none on one node",
         nodes_ == 1 ? "0" : fmt::format("{:.4g} x {:.4g} x {}", job_.hold_steps, work_.tapped, bytes(work_.gradient)));
    const double copies =
        2 * std::max(work_.full, job_.shards > 0 ? job_.parameters * s / static_cast<double>(job_.shards) : 0);
    part(row, "full versions being written", std::min(copies, work_.owned * s),
         "2 x the larger of owned state / K and one shard, at most the owned state",
         fmt::format("2 x {} / {}", bytes(work_.owned * s), job_.full_every_steps));
  }

  void memory_at_attach() {
    Row& row = add(Resource::kMemoryAtAttach, Unit::kBytes, node_.memory_bytes, 1);
    part(row, "baseline at the home", 2 * job_.parameters * job_.state_bytes(),
         "2 x parameters x state bytes: the home gathers all of it and copies it for the owners",
         fmt::format("2 x {:.4g} x {:.4g} B", job_.parameters, job_.state_bytes()));
  }

  void window() {
    Row& row = add(Resource::kWindow, Unit::kBytes, node_.window_bytes_max, 1);
    part(row, "two steps of op buffers", 2 * work_.gradient * work_.tapped, "2 x tapped share x gradient",
         fmt::format("2 x {:.4g} x {}", work_.tapped, bytes(work_.gradient)));
  }

  void cores() {
    const double payload_s = per_second(work_.payload);
    const double frames_s = per_second(work_.frames);
    const double receive = frames_s * node_.receive_s_per_frame + payload_s * node_.receive_s_per_byte;
    const auto rate = [&](double amount, double speed) { return speed > 0 ? per_second(amount) / speed : 0; };
    const double place = rate(work_.final_bytes, node_.place_bytes_per_s);
    const double apply = rate(work_.owned, node_.apply_parameters_per_s);
    const double digested = work_.owned * job_.state_bytes();
    const double digest = rate(digested, node_.digest_bytes_per_s);

    const auto receiving = [&](Row& row) {
      part(row, "receive", receive, "frames/s x s a frame + payload/s x s a byte",
           fmt::format("{:.4g} frames/s x {:.3g} ns + {} x {:.3g} ns", frames_s, node_.receive_s_per_frame * 1e9,
                       quantity(payload_s, Unit::kBytesPerSecond), node_.receive_s_per_byte * 1e9));
    };
    const auto working = [&](Row& row) {
      part(row, "assembly", place, "final bytes/s / rate of a core",
           fmt::format("{} / {}", quantity(per_second(work_.final_bytes), Unit::kBytesPerSecond),
                       quantity(node_.place_bytes_per_s, Unit::kBytesPerSecond)));
      part(row, "apply", apply, "owned parameters / step time / rate of a core",
           fmt::format("{:.4g} / {} / {:.4g} parameters/s", work_.owned, in_step(), node_.apply_parameters_per_s));
      part(row, "digest", digest, "owned state / step time / rate of a core",
           fmt::format("{} / {} / {}", bytes(digested), in_step(),
                       quantity(node_.digest_bytes_per_s, Unit::kBytesPerSecond)));
    };
    const bool receive_known = node_.receive_s_per_frame > 0 || node_.receive_s_per_byte > 0;
    const bool work_known =
        node_.place_bytes_per_s > 0 && node_.apply_parameters_per_s > 0 && node_.digest_bytes_per_s > 0;
    const auto judge = [&](Row& row, bool known) {
      if (!known) row.unknown = "the rate of a core";
      timed(row);
    };
    Row& queues = add(Resource::kReceiveCores, Unit::kCores, node_.receive_queues, kBusyMax);
    receiving(queues);
    judge(queues, receive_known);
    Row& workers = add(Resource::kWorkerCores, Unit::kCores, node_.worker_threads, kBusyMax);
    working(workers);
    judge(workers, work_known);
    Row& total = add(Resource::kCores, Unit::kCores, node_.cores, kBusyMax);
    receiving(total);
    working(total);
    judge(total, receive_known && work_known);
  }

  void memory_bandwidth() {
    Row& row = add(Resource::kMemoryBandwidth, Unit::kBytesPerSecond, node_.memory_bytes_per_s, kBusyMax);
    const auto stream = [&](std::string name, double per_step, std::string formula, std::string numbers) {
      part(row, std::move(name), per_second(per_step), std::move(formula), std::move(numbers) + " / " + in_step());
    };
    const double s = job_.state_bytes();
    const double g = job_.gradient_bytes;
    const double frame = job_.frame.frame_bytes + job_.encapsulation_bytes;
    stream("card writes frames", work_.frames * frame, "frames x their bytes",
           fmt::format("{:.4g} x {:.4g} B", work_.frames, frame));
    stream("checksums", work_.payload, "payload read once", bytes(work_.payload));
    stream("assembly", 2 * work_.final_bytes, "final bytes read, and written or compared",
           fmt::format("2 x {}", bytes(work_.final_bytes)));
    stream("apply", (2 * s + g) * work_.owned, "owned parameters x (state read and written, gradient read)",
           fmt::format("{:.4g} x (2 x {:.4g} B + {:.4g} B)", work_.owned, s, g));
    stream("digest", s * work_.owned, "owned state read", fmt::format("{:.4g} x {:.4g} B", work_.owned, s));
    stream("flush", 2 * (work_.log + work_.full), "log and full versions read and written",
           fmt::format("2 x ({} + {})", bytes(work_.log), bytes(work_.full)));
    stream("upload", 2 * work_.upload, "uploaded bytes read and written", fmt::format("2 x {}", bytes(work_.upload)));
    timed(row);
  }

  void mirror_port() {
    const double ports = std::max(1.0, node_.mirror_ports);
    Row& row = add(Resource::kMirrorPort, Unit::kBitsPerSecond, node_.mirror_port_bits_per_s, kMirrorMax);
    const double frame = job_.frame.frame_bytes + job_.encapsulation_bytes + kGapBytes;
    part(row, "mirrored frames of one port", 8 * frame * per_second(work_.frames) / ports,
         "edges x 2(ranks-1)/ranks x gradient x tapped share / payload of a frame x (frame + encapsulation + 20 B) x 8 "
         "/ step time / ports",
         fmt::format("{} x 2 x {}/{} x {} x {:.4g} / {:.4g} B x ({:.4g} + {:.4g} + {:.4g}) B x 8 / {} / {:.4g}",
                     job_.mirrored_edges, job_.ranks - 1, job_.ranks, bytes(work_.gradient), work_.tapped,
                     job_.frame.payload_bytes, job_.frame.frame_bytes, job_.encapsulation_bytes, kGapBytes, in_step(),
                     ports));
    timed(row);
  }

  void node_link() {
    Row& row = add(Resource::kNodeLink, Unit::kBitsPerSecond, node_.link_bits_per_s, kBusyMax);
    part(row, "bytes for owners elsewhere", 8 * per_second(work_.forwarded),
         "gradient / nodes x replicas x (nodes-1)/nodes x 8 / step time; nothing while each node taps all",
         job_.tap == TapMode::kEach
             ? "0"
             : fmt::format("{} / {} x {:.4g} x {}/{} x 8 / {}", bytes(work_.gradient), nodes_,
                           std::min<double>(job_.replicas, nodes_), nodes_ - 1, nodes_, in_step()));
    if (work_.forwarded > 0) timed(row);
  }

  void disk_write() {
    Row& row = add(Resource::kDiskWrite, Unit::kBytesPerSecond, node_.disk_write_bytes_per_s, kBusyMax);
    part(row, "log", per_second(work_.log), "owned gradient / step time",
         fmt::format("{} / {}", bytes(work_.log), in_step()));
    part(row, "full versions", per_second(work_.full), "owned state / K / step time",
         fmt::format("{} / {} / {}", bytes(work_.owned * job_.state_bytes()), job_.full_every_steps, in_step()));
    timed(row);
  }

  void disk_space() {
    Row& row = add(Resource::kDiskSpace, Unit::kBytes, node_.disk_bytes, 1);
    const auto fulls = static_cast<double>(job_.keep_fulls);
    const auto every = static_cast<double>(job_.full_every_steps);
    const double full = work_.owned * job_.state_bytes();
    part(row, "full versions", kSpaceMargin * (fulls + 1) * full, "1.1 x (kept + 1) x owned state",
         fmt::format("1.1 x {:.4g} x {}", fulls + 1, bytes(full)));
    part(row, "log", kSpaceMargin * fulls * every * work_.log, "1.1 x kept x K x owned gradient",
         fmt::format("1.1 x {:.4g} x {:.4g} x {}", fulls, every, bytes(work_.log)));
  }

  void object_write() {
    Row& row = add(Resource::kObjectWrite, Unit::kBytesPerSecond, node_.object_write_bytes_per_s, kBusyMax);
    part(row, "log and full versions", per_second(work_.upload), "(gradient + state / K) / nodes / step time",
         fmt::format("({} + {} / {}) / {} / {}", bytes(work_.gradient), bytes(job_.parameters * job_.state_bytes()),
                     job_.full_every_steps, nodes_, in_step()));
    timed(row);
  }

  const JobShape& job_;
  const NodeShape& node_;
  const std::uint32_t nodes_;
  const double share_;
  const Work work_;
  std::vector<Row> rows_;
};

}  // namespace

std::string_view resource_name(Resource resource) {
  switch (resource) {
    case Resource::kMemory:
      return "memory";
    case Resource::kMemoryAtAttach:
      return "memory at attach";
    case Resource::kWindow:
      return "op window";
    case Resource::kReceiveCores:
      return "receive queues";
    case Resource::kWorkerCores:
      return "worker threads";
    case Resource::kCores:
      return "cores";
    case Resource::kMemoryBandwidth:
      return "memory bandwidth";
    case Resource::kMirrorPort:
      return "mirror port";
    case Resource::kNodeLink:
      return "node link";
    case Resource::kDiskWrite:
      return "disk write";
    case Resource::kDiskSpace:
      return "disk space";
    case Resource::kObjectWrite:
      return "object store write";
  }
  return "";
}

std::string quantity(double value, Unit unit) {
  if (unit == Unit::kCores) return fmt::format("{:.3g} cores", value);
  const char* const suffix = unit == Unit::kBytes ? "B" : unit == Unit::kBytesPerSecond ? "B/s" : "bit/s";
  constexpr std::array<const char*, 6> kPrefixes = {"", "k", "M", "G", "T", "P"};
  std::size_t prefix = 0;
  while (std::abs(value) >= 999.5 && prefix + 1 < kPrefixes.size()) {
    value /= 1000;
    ++prefix;
  }
  return fmt::format("{:.4g} {}{}", value, kPrefixes[prefix], suffix);
}

Status check(const JobShape& job) {
  const auto wrong = [](const char* field, const char* expected) {
    return fail(ErrorCode::kOutOfRange, "the job is impossible", field, expected);
  };
  const auto positive = [](double value) { return std::isfinite(value) && value > 0 && value <= 1e18; };
  if (!positive(job.parameters)) return wrong("parameters", "1 to 1e18");
  if (!positive(job.gradient_bytes) || job.gradient_bytes > 64)
    return wrong("gradient bytes of a parameter", "1 to 64");
  if (!positive(job.state_bytes()) || job.state_bytes() > 1024) return wrong("state bytes of a parameter", "1 to 1024");
  if (job.ranks < 2) return wrong("ranks", "at least 2");
  if (!std::isfinite(job.step_time_s) || job.step_time_s < 0) return wrong("step time", "a positive number of seconds");
  if (job.mirrored_edges < 1 || job.mirrored_edges > 1'000'000) return wrong("mirrored edges", "1 to 1000000");
  if (!positive(job.frame.payload_bytes) || !positive(job.frame.frame_bytes)) return wrong("frame", "a known frame");
  if (job.replicas < 1 || job.replicas > 64) return wrong("replicas", "1 to 64");
  if (job.publish_interval_steps < 1) return wrong("publish interval", "at least 1");
  if (job.full_every_steps < 1 || job.keep_fulls < 1) return wrong("full versions", "at least 1 each");
  if (!(job.window_steps >= 0) || !(job.hold_steps >= 0)) return wrong("window and hold", "not negative");
  return {};
}

double owned_share(const JobShape& job, std::uint32_t nodes) {
  if (nodes <= job.replicas) return 1;
  const double share = static_cast<double>(job.replicas) / nodes;
  if (job.shards == 0) return share;
  const auto shards = static_cast<double>(job.shards);
  return std::min(1.0, std::ceil(shards * share - 1e-9) / shards);
}

std::vector<Row> rows(const JobShape& job, const NodeShape& node, std::uint32_t nodes, double share) {
  return Sheet(job, node, nodes, share).all();
}

Lag lag(const JobShape& job, const NodeShape& node, std::uint32_t nodes, double share) {
  const Work work = work_of(job, nodes, share);
  const double threads = node.worker_threads > 0 ? node.worker_threads : node.cores;
  Lag out;
  out.formula =
      "(final bytes / assembly rate + owned parameters / apply rate + owned state / digest rate) / worker threads + "
      "flushed bytes / disk rate = durable; + uploaded bytes of P steps / object store "
      "rate + (P-1) x step time = published";
  if (threads <= 0 || node.place_bytes_per_s <= 0 || node.apply_parameters_per_s <= 0 || node.digest_bytes_per_s <= 0)
    out.unknown = "the rate of a core";
  else if (node.disk_write_bytes_per_s <= 0)
    out.unknown = "the disk's rate";
  if (!out.unknown.empty()) return out;
  const auto interval = static_cast<double>(job.publish_interval_steps);
  out.durable_s = (work.final_bytes / node.place_bytes_per_s + work.owned / node.apply_parameters_per_s +
                   work.owned * job.state_bytes() / node.digest_bytes_per_s) /
                      threads +
                  (work.log + work.full) / node.disk_write_bytes_per_s;
  if (job.step_time_s > 0) out.durable_steps = out.durable_s / job.step_time_s;
  if (node.object_write_bytes_per_s <= 0) return out;
  out.published_s =
      out.durable_s + interval * work.upload / node.object_write_bytes_per_s + (interval - 1) * job.step_time_s;
  if (job.step_time_s > 0) out.published_steps = out.published_s / job.step_time_s;
  return out;
}

}  // namespace gradtap::capacity
