#include "apps/commands/generate_command.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <utility>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "apps/commands/commands.h"
#include "apps/commands/output_file.h"
#include "common/clock.h"
#include "common/descriptor.h"
#include "generator/live_source.h"
#include "generator/packet_socket.h"
#include "generator/pcap_writer.h"
#include "generator/traffic.h"

namespace gradtap::commands {
namespace {

using namespace gradtap::generator;

Error usage(std::string what, std::string expected, std::string actual) {
  return Error{ErrorCode::kOutOfRange, std::move(what), {}, std::move(expected), std::move(actual), "see --help"};
}

Result<std::vector<JobHost>> hosts_of(const GenerateOptions& options) {
  std::vector<JobHost> hosts = invented_hosts(1, options.ranks, options.v6);
  if (options.hosts.empty()) return hosts;
  std::size_t begin = 0, rank = 0;
  while (begin <= options.hosts.size()) {
    const std::size_t comma = std::min(options.hosts.find(',', begin), options.hosts.size());
    const auto address = dataplane::parse_ip(std::string_view(options.hosts).substr(begin, comma - begin));
    if (!address) return std::unexpected(address.error());
    if (rank < hosts.size()) hosts[rank].address = *address;
    rank += 1;
    begin = comma + 1;
  }
  if (rank != hosts.size())
    return std::unexpected(
        usage("--hosts must name one address a rank", std::to_string(hosts.size()), std::to_string(rank)));
  return hosts;
}

Status apply_manner(const GenerateOptions& options, JobConfig& job) {
  if (options.queue_pairs < 1 || options.queue_pairs > 128)
    return std::unexpected(
        usage("so many queue pairs of a connection cannot be", "1 to 128", std::to_string(options.queue_pairs)));
  job.queue_pairs = options.queue_pairs;
  job.cut_over_queue_pairs = options.cut_over_queue_pairs;
  job.ll128 = options.manner == "ll128";
  job.tree = options.manner == "tree";
  if (job.ll128) job.tuning.ll_max_bytes = ~std::uint64_t{0};
  return {};
}

Result<TrafficConfig> traffic_of(const GenerateOptions& options) {
  TrafficConfig config;
  if (options.ranks < 2 || options.ranks > 4096)
    return std::unexpected(usage("so many ranks cannot be", "2 to 4096", std::to_string(options.ranks)));
  JobConfig& job = config.job;
  job.tuning.ranks = options.ranks;
  job.tuning.channels = options.channels;
  job.tuning.ll_max_bytes = options.ll_max_bytes;
  job.tuning.simple_threads = options.simple_threads;
  GRADTAP_TRY(apply_nccl_version(options.nccl, job));
  auto hosts = hosts_of(options);
  if (!hosts) return std::unexpected(hosts.error());
  job.hosts = std::move(*hosts);
  job.path_mtu_bytes = options.mtu;
  job.first_qpn = options.first_qpn;
  job.first_psn = options.first_psn;
  job.bits_per_ns = options.gigabits;
  if (options.style == "write-then-imm")
    job.style = WriteStyle::kWriteThenImmediate;
  else if (options.style == "per-packet")
    job.style = WriteStyle::kPerPacketWrites;
  GRADTAP_TRY(apply_manner(options, job));
  const auto type = element_type_of(options.dtype);
  const auto wrapping = wrapping_of(options.wrap);
  if (!type || !wrapping)
    return std::unexpected(usage("an element type or a wrapping is unknown", "float32, bfloat16, ...; none, vlan, ...",
                                 options.dtype + ", " + options.wrap));
  config.type = *type;
  config.wrap.wrapping = *wrapping;
  config.jobs = options.jobs;
  config.elements = options.elements;
  config.steps = options.steps;
  config.ddp_start = options.ddp_start;
  config.seed = options.seed;
  config.retransmission.probability = options.retransmit;
  config.mirror.drop_probability = options.drop;
  config.mirror.burst = options.drop_burst;
  config.mirror.duplicate_probability = options.duplicate;
  config.mirror.reorder_probability = options.reorder;
  config.side_frames = options.side;
  return config;
}

// The values of a file: all buckets of step 1, of step 2, ...; every job gets the same.
class FileValues {
 public:
  [[nodiscard]] static Result<std::unique_ptr<FileValues>> open(const std::string& path) {
    const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    struct stat status{};
    if (file.get() < 0 || fstat(file.get(), &status) != 0)
      return fail(ErrorCode::kFileUnreadable, "the reduced values cannot be read", path, {}, std::strerror(errno));
    const auto bytes = static_cast<std::size_t>(status.st_size);
    void* const map = bytes == 0 ? nullptr : mmap(nullptr, bytes, PROT_READ, MAP_PRIVATE, file.get(), 0);
    if (map == nullptr || map == MAP_FAILED)
      return fail(ErrorCode::kFileUnreadable, "the reduced values cannot be read", path, "values",
                  bytes == 0 ? "an empty file" : std::strerror(errno));
    return std::unique_ptr<FileValues>(new FileValues(map, bytes));
  }
  ~FileValues() { munmap(map_, bytes_); }
  FileValues(const FileValues&) = delete;
  FileValues& operator=(const FileValues&) = delete;

  [[nodiscard]] Result<ByteSpan> values(const TrafficConfig& config, std::uint64_t step, std::size_t bucket) const {
    std::uint64_t a_step = 0, offset = 0;
    for (std::size_t i = 0; i < config.elements.size(); ++i) {
      if (i == bucket) offset = a_step;
      a_step += config.elements[i] * element_bytes(config.type);
    }
    offset += (step - 1) * a_step;
    const std::uint64_t length = config.elements[bucket] * element_bytes(config.type);
    if (offset + length > bytes_)
      return fail(ErrorCode::kOutOfRange, "the file of reduced values is too short", {},
                  std::to_string(config.steps * a_step) + " bytes", std::to_string(bytes_));
    return ByteSpan(static_cast<const std::uint8_t*>(map_) + offset, length);
  }

 private:
  FileValues(void* map, std::size_t bytes) : map_(map), bytes_(bytes) {}
  void* map_;
  std::size_t bytes_;
};

int generate_file(const GenerateOptions& options, const TrafficConfig& config) {
  std::unique_ptr<FileValues> given;
  if (!options.reduced.empty()) {
    auto opened = FileValues::open(options.reduced);
    if (!opened) return unusable(opened.error());
    given = std::move(*opened);
  }
  std::optional<OutputFile> dump;
  if (!options.dump_reduced.empty()) {
    auto created = OutputFile::create(options.dump_reduced);
    if (!created) return unusable(created.error());
    dump.emplace(std::move(*created));
  }
  auto writer = PcapWriter::create(options.file);
  if (!writer) return unusable(writer.error());
  DrawnValues drawn(config.type, config.seed);
  const auto values = [&](std::uint32_t job, std::uint64_t step, std::size_t bucket) -> Result<ByteSpan> {
    if (given) return given->values(config, step, bucket);
    const ByteSpan bytes = drawn.draw(job, step, bucket, config.elements[bucket]);
    // In the order job, bucket within a step.
    if (dump && !dump->write({reinterpret_cast<const char*>(bytes.data()), bytes.size()}))
      return std::unexpected(dump->error());
    return bytes;
  };
  const auto report = write_traffic(config, values, **writer);
  if (!report) return unusable(report.error());
  if (const Status closed = (*writer)->close(); !closed) return unusable(closed.error());
  if (dump) {
    if (const Status done = dump->commit(); !done) return unusable(done.error());
  }
  if (options.json)
    fmt::print("{{\"frames\":{},\"ops\":{},\"repeated\":{},\"dropped\":{},\"duplicated\":{},\"reordered\":{}}}\n",
               (*writer)->frames(), report->ops, report->repeated_frames, report->dropped_frames,
               report->duplicated_frames, report->reordered_frames);
  else
    fmt::print("{} frames of {} ops in {}; {} sent again, {} dropped, {} duplicated, {} late\n", (*writer)->frames(),
               report->ops, options.file, report->repeated_frames, report->dropped_frames, report->duplicated_frames,
               report->reordered_frames);
  return 0;
}

Error no_stream(const std::string& where) {
  return Error{ErrorCode::kFileUnreadable,
               "requests cannot be read",
               where,
               {},
               std::strerror(errno),
               "--from names a Unix socket to listen on, or with --from-file a file"};
}

// A listening socket of which one script at a time is served.
Result<Descriptor> listen_on(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path)
    return std::unexpected(usage("the path of the socket is too long", "107 bytes", std::to_string(path.size())));
  std::memcpy(address.sun_path, path.data(), path.size());
  Descriptor socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  struct stat status{};
  if (::stat(path.c_str(), &status) == 0 && S_ISSOCK(status.st_mode)) ::unlink(path.c_str());
  if (socket.get() < 0 || ::bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 ||
      ::listen(socket.get(), 1) != 0)
    return std::unexpected(no_stream(path));
  return socket;
}

int generate_live(const GenerateOptions& options, const TrafficConfig& config) {
  static const SystemClock clock;
  PacketSocket* current = nullptr;  // owned by the source
  LiveConfig live;
  live.traffic = config;
  live.interface = options.live_interface;
  std::uint64_t unsent = 0;
  Status trouble;
  const auto note_unsent = [&] {
    if (current == nullptr || current->status()) return;
    unsent += current->unsent();
    trouble = current->status();
  };
  const auto open = [&](const std::string& interface) -> Result<std::unique_ptr<FrameSink>> {
    note_unsent();
    auto socket = PacketSocket::open(interface, options.bytes_per_second, clock);
    if (!socket) return std::unexpected(socket.error());
    current = socket->get();
    return std::unique_ptr<FrameSink>(std::move(*socket));
  };
  auto source = LiveSource::create(live, open);
  if (!source) return unusable(source.error());

  Descriptor stream;
  bool answers = false;
  if (options.from == "-") {
    stream = Descriptor(::dup(STDIN_FILENO));
  } else if (options.from_file) {
    stream = Descriptor(::open(options.from.c_str(), O_RDONLY | O_CLOEXEC));
  } else {
    auto listening = listen_on(options.from);
    if (!listening) return unusable(listening.error());
    fmt::print("listening on {}\n", options.from);
    std::fflush(stdout);
    stream = Descriptor(::accept4(listening->get(), nullptr, nullptr, SOCK_CLOEXEC));
    ::unlink(options.from.c_str());
    answers = true;
  }
  if (stream.get() < 0) return unusable(no_stream(options.from));
  RequestStream requests(stream.get(), options.max_request_bytes);
  const auto answer = [&](std::uint64_t sequence) {
    return !answers ||
           ::send(stream.get(), &sequence, sizeof sequence, MSG_NOSIGNAL) == static_cast<ssize_t>(sizeof sequence);
  };
  const Status done = (*source)->run(requests, answer);
  const LiveReport report = (*source)->report();
  note_unsent();
  if (options.json)
    fmt::print("{{\"requests\":{},\"frames\":{},\"blinded\":{},\"unsent\":{}}}\n", report.requests, report.frames,
               report.blinded, unsent);
  else
    fmt::print("{} requests, {} frames, {} not mirrored\n", report.requests, report.frames, report.blinded);
  if (!done) return unusable(done.error());
  if (!trouble) {
    std::fputs((trouble.error().text() + "\n").c_str(), stderr);
    return 1;
  }
  return 0;
}

}  // namespace

int generate(const GenerateOptions& options) {
  if (options.file.empty() == options.live_interface.empty())
    return unusable(usage("traffic goes into a file or out of an interface", "FILE or --live", "both or none"));
  if (!options.live_interface.empty() && options.from.empty())
    return unusable(usage("--live needs --from", "a Unix socket, or a file with --from-file", "nothing"));
  const auto config = traffic_of(options);
  if (!config) return unusable(config.error());
  return options.live_interface.empty() ? generate_file(options, *config) : generate_live(options, *config);
}

}  // namespace gradtap::commands
