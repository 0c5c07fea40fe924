#include <algorithm>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "apps/commands/commands.h"
#include "apps/commands/inspect_roce.h"
#include "common/clock.h"
#include "dataplane/capture_port.h"
#include "dataplane/gloo_decoder.h"
#include "dataplane/gloo_ring.h"
#include "dataplane/gloo_wire.h"
#include "dataplane/inspect.h"
#include "dataplane/inspect_json.h"
#include "dataplane/nccl_survey.h"

namespace gradtap::commands {

namespace {

using namespace gradtap::dataplane;

constexpr std::size_t kRanksMax = 4096;
constexpr std::uint64_t kMessageBytesMax = std::uint64_t{1} << 30;

// What the first look at the file finds: RoCE traffic, and every address between which a gloo header was seen.
struct FirstLook {
  NcclSurvey survey;
  std::set<IpAddress> gloo_ranks;
  std::optional<Error> damage;  // the file ends there
};

Status look(const CaptureFile& file, ChecksumPolicy policy, FirstLook& found) {
  const Status read = file.each_record([&](const CaptureRecord& record) {
    found.survey.frame(record.bytes, record.wire_bytes, record.time_ns);
    FrameView view;
    if (parse_frame(record.bytes, record.wire_bytes, policy, view) != FrameDrop::kNone) return;
    if (view.payload.size() < kGlooHeaderBytes || found.gloo_ranks.size() > kRanksMax) return;
    if (!parse_gloo_strict(view.payload.data(), kMessageBytesMax)) return;
    found.gloo_ranks.insert(view.source);
    found.gloo_ranks.insert(view.target);
  });
  found.survey.finish();
  if (read) return {};
  if (read.error().code != ErrorCode::kCaptureEndsEarly) return read;
  found.damage = read.error();
  return {};
}

// Without --ranks: every address that spoke gloo, in ascending order.
Result<std::vector<IpAddress>> gloo_ranks(const FirstLook& found, const std::string& path) {
  if (found.gloo_ranks.size() > kRanksMax)
    return fail(ErrorCode::kLimitReached, "the capture shows too many hosts", path, std::to_string(kRanksMax), {},
                "name the job's hosts with --ranks");
  if (found.gloo_ranks.size() < 2)
    return fail(ErrorCode::kCaptureMalformed, "neither RoCE nor gloo traffic was found", path, "at least two ranks",
                std::to_string(found.gloo_ranks.size()),
                "check that the mirror sees the ranks' ports, or pass --ranks");
  return std::vector<IpAddress>(found.gloo_ranks.begin(), found.gloo_ranks.end());
}

Result<std::vector<IpAddress>> read_ranks(const std::string& list) {
  std::vector<IpAddress> ranks;
  std::size_t begin = 0;
  while (begin <= list.size()) {
    const std::size_t comma = std::min(list.find(',', begin), list.size());
    auto address = parse_ip(std::string_view(list).substr(begin, comma - begin));
    if (!address) return std::unexpected(address.error());
    ranks.push_back(*address);
    begin = comma + 1;
  }
  return ranks;
}

// Feeds the inspector. Kept blocks live until the decode call that brought them is over: the inspector copies.
class InspectorSink final : public SegmentSink {
 public:
  explicit InspectorSink(CaptureInspector& inspector) : inspector_(inspector) {}
  void segment(const Segment& segment) override { inspector_.add(segment); }
  void keep(const OwnedBytes& bytes) override { kept_.push_back(bytes); }
  void hand_over(std::uint16_t, std::uint32_t) override {}
  void end_call() { kept_.clear(); }

 private:
  CaptureInspector& inspector_;
  std::vector<OwnedBytes> kept_;
};

struct Inspection {
  InspectReport report;
  GlooDecoderCounters counters;
  PortCounters port;
  std::vector<FlowReport> flows;
  std::vector<IpAddress> ranks;
  std::optional<Error> damage;
};

Result<Inspection> inspect_gloo(const InspectOptions& options, ChecksumPolicy policy, const FirstLook& found) {
  Inspection result;
  result.damage = found.damage;
  auto ranks = options.ranks.empty() ? gloo_ranks(found, options.file) : read_ranks(options.ranks);
  if (!ranks) return std::unexpected(ranks.error());
  result.ranks = *ranks;
  auto port = CapturePort::open(options.file);
  if (!port) return std::unexpected(port.error());

  FlowDirectory directory;
  if (const Status done = directory.set_endpoints(result.ranks); !done) return std::unexpected(done.error());
  const SystemClock clock;
  GlooDecoderConfig config;
  config.checksum = policy;
  config.flow.resync_step_bytes = 2;  // 16-bit jobs are inspected too
  GlooDecoder decoder(config, directory, clock, 0);
  InspectConfig inspect_config;
  inspect_config.dump_dir = options.dump_directory;
  CaptureInspector inspector(inspect_config, std::make_shared<const GlooRing>(result.ranks.size()));
  InspectorSink sink(inspector);
  std::array<Frame, 64> frames;
  while (!(*port)->exhausted()) {
    const std::uint16_t count = (*port)->rx_burst(0, frames);
    const std::span<const Frame> burst(frames.data(), count);
    decoder.decode(burst, sink);
    (*port)->release(burst);
    sink.end_call();
    for (const ProvenFlow& proven : inspector.take_proven_flows()) decoder.op_closed(proven.flow, proven.op.tag, true);
  }
  decoder.flush_holes(sink);
  result.report = inspector.report();
  result.counters = decoder.counters();
  result.port = (*port)->counters();
  result.flows = decoder.report();
  return result;
}

nlohmann::json to_json(const Inspection& inspection) {
  nlohmann::json out = inspect_json(inspection.report);
  out["frames"] = inspection.counters.frames;
  out["oversized"] = inspection.port.oversized;
  nlohmann::json drops = nlohmann::json::object();
  for (std::size_t i = 1; i < kFrameDropCount; ++i)
    if (inspection.counters.drops[i] > 0)
      drops[std::string(frame_drop_name(static_cast<FrameDrop>(i)))] = inspection.counters.drops[i];
  out["drops"] = drops;
  out["foreign_frames"] = inspection.counters.foreign_endpoint;
  nlohmann::json ranks = nlohmann::json::array();
  for (const IpAddress& address : inspection.ranks) ranks.push_back(address.text());
  out["ranks"] = ranks;
  return out;
}

// 0 when everything that was seen is complete, 1 otherwise.
int verdict(const Inspection& inspection, bool print) {
  std::size_t complete = 0;
  for (const InspectedOp& op : inspection.report.ops) complete += op.complete ? 1 : 0;
  const std::size_t total = inspection.report.ops.size();
  const bool good = total > 0 && complete == total && inspection.port.oversized == 0 && !inspection.damage;
  if (print && inspection.damage) fmt::print("the file is cut: {}\n", inspection.damage->text());
  if (print) {
    if (inspection.port.oversized > 0)
      fmt::print("verdict: {} frames were captured shorter than they were on the wire: raise the snap length\n",
                 inspection.port.oversized);
    else if (total == 0)
      fmt::print("verdict: no all-reduce was seen\n");
    else if (complete == total)
      fmt::print("verdict: complete: all {} all-reduces, every final byte\n", total);
    else
      fmt::print("verdict: INCOMPLETE: {} of {} all-reduces are whole; mirror more ports or look for loss\n", complete,
                 total);
  }
  return good ? 0 : 1;
}

void print_text(const Inspection& inspection) {
  fmt::print("frames {}  ranks {}\n", inspection.counters.frames, inspection.ranks.size());
  for (std::size_t i = 0; i < inspection.ranks.size(); ++i)
    fmt::print("  rank {}: {}\n", i, inspection.ranks[i].text());
  for (std::size_t i = 1; i < kFrameDropCount; ++i)
    if (inspection.counters.drops[i] > 0)
      fmt::print("dropped: {} frames: {}\n", inspection.counters.drops[i], frame_drop_name(static_cast<FrameDrop>(i)));
  fmt::print("{:>5} {:>8} {:>9} {:>12}\n", "flow", "ranks", "segments", "bytes");
  for (const InspectedFlow& flow : inspection.report.flows)
    fmt::print("{:>5} {:>8} {:>9} {:>12}\n", flow.flow, fmt::format("{}->{}", flow.source_rank, flow.target_rank),
               flow.segments, flow.bytes);
  fmt::print("{:>5} {:>7} {:>12} {:<11} {:>6} {}\n", "comm", "tag", "bytes", "state", "copies", "sha256 / missing");
  for (const InspectedOp& op : inspection.report.ops) {
    std::string detail = op.sha256 ? to_hex(*op.sha256) : std::string();
    for (std::size_t i = 0; !op.complete && i < op.missing.size() && i < 4; ++i)
      detail += fmt::format("[{},{}) ", op.missing[i].begin, op.missing[i].end);
    if (!op.complete && op.missing.size() > 4) detail += fmt::format("and {} more", op.missing.size() - 4);
    fmt::print("{:>5} {:>7} {:>12} {:<11} {:>3}-{:<2} {}\n", op.op.comm, op.op.tag,
               op.bytes ? std::to_string(*op.bytes) : "unknown",
               op.complete ? "complete" : (op.conflict ? "CONFLICT" : "incomplete"), op.copies.min, op.copies.max,
               detail);
  }
  if (!inspection.report.other_ops.empty()) fmt::print("other collectives: {}\n", inspection.report.other_ops.size());
  for (const std::string& error : inspection.report.dump_errors) fmt::print("not dumped: {}\n", error);
}

}  // namespace

int inspect(const InspectOptions& options) {
  const ChecksumPolicy policy = options.required_checksums ? ChecksumPolicy::kRequired : ChecksumPolicy::kOffload;
  const auto file = CaptureFile::open(options.file);
  if (!file) return unusable(file.error());
  FirstLook found;
  if (const Status done = look(*file, policy, found); !done) return unusable(done.error());
  if (found.survey.counters().roce_frames > 0 && options.ranks.empty())
    return inspect_roce(options, found.survey, found.damage);
  const auto inspection = inspect_gloo(options, policy, found);
  if (!inspection) return unusable(inspection.error());
  if (options.json)
    fmt::print("{}\n", to_json(*inspection).dump(1));
  else
    print_text(*inspection);
  return verdict(*inspection, !options.json);
}

}  // namespace gradtap::commands
