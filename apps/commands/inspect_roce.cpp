#include "apps/commands/inspect_roce.h"

#include <fmt/format.h>

#include "dataplane/capture_file.h"
#include "dataplane/nccl_report.h"

namespace gradtap::commands {

namespace {

using namespace gradtap::dataplane;

constexpr std::size_t kMaxPrinted = 200;

std::string in_words(const std::vector<Interval>& ranges) {
  std::string text;
  for (std::size_t i = 0; i < ranges.size() && i < 4; ++i)
    text += fmt::format("[{},{}) ", ranges[i].begin, ranges[i].end);
  if (ranges.size() > 4) text += fmt::format("and {} more", ranges.size() - 4);
  return text;
}

void print_text(const NcclFindings& findings) {
  const RoceCaptureCounters& frames = findings.survey.counters();
  fmt::print("frames {}  RoCE {}  damaged {}\n", frames.frames, frames.roce_frames, frames.bad_icrc);
  fmt::print("{:>4} {:<7} {:>8} {:>8} {:>9} {:>9} {:<8} {} -> {}\n", "flow", "role", "queue", "packets", "missing",
             "lost", "ring", "source", "target");
  std::size_t printed = 0;
  for (const auto& flow : findings.survey.flows()) {
    if (++printed > kMaxPrinted) {
      fmt::print("and {} flows more: --json has them\n", findings.survey.flows().size() - kMaxPrinted);
      break;
    }
    const RoceFlowIdentity& identity = flow->identity();
    const RoceFlowTable::Entry& entry = *findings.survey.table().entries()[identity.flow];
    std::uint64_t missing = 0, lost = 0;
    for (const Interval& range : entry.flow->missing_psns()) {
      missing += range.length();
      const std::uint64_t end = std::min(range.end, entry.flow->acknowledged_end());
      lost += end > range.begin ? end - range.begin : 0;
    }
    const PlannedFlow& planned = findings.plan.flows[identity.flow];
    const char* const role = flow->role() == NcclRole::kData ? "data" : flow->role() == NcclRole::kCts ? "clear" : "?";
    fmt::print("{:>4} {:<7} {:>8} {:>8} {:>9} {:>9} {:<8} {} -> {}\n", identity.flow, role, identity.target_qp,
               entry.requests, missing, lost,
               planned.kind == PlannedFlow::Kind::kRing ? fmt::format("{}/ch{}", planned.position, planned.channel)
                                                        : std::string("-"),
               identity.source.text(), identity.target.text());
  }
  if (!findings.ops.empty())
    fmt::print("{:>6} {:>10} {:<9} {:<11} {}\n", "index", "elements", "dtype", "state", "sha256 / present");
  printed = 0;
  for (const AssembledOp& op : findings.ops) {
    if (++printed > kMaxPrinted) {
      fmt::print("and {} more: --json has them\n", findings.ops.size() - kMaxPrinted);
      break;
    }
    const NcclBucket& bucket = findings.plan.buckets[op.bucket].bucket;
    const std::string detail =
        op.sha256 ? to_hex(*op.sha256)
                  : in_words(op.present) +
                        (op.lost_definitive.empty() ? "" : "lost for good: " + in_words(op.lost_definitive));
    fmt::print("{:>6} {:>10} {:<9} {:<11} {}\n", op.index, bucket.elements, bucket.dtype,
               op.shed       ? "not held"
               : op.complete ? "complete"
                             : (op.conflict ? "CONFLICT" : "incomplete"),
               detail);
  }
  for (const std::string& error : findings.dump_errors) fmt::print("not dumped: {}\n", error);
}

}  // namespace

int inspect_roce(const InspectOptions& options, const NcclSurvey& survey, const std::optional<Error>& damage) {
  std::vector<NcclBucket> buckets;
  for (const std::string& text : options.buckets) {
    auto bucket = parse_nccl_bucket(text);
    if (!bucket) return unusable(bucket.error());
    buckets.push_back(std::move(*bucket));
  }
  NcclPlanConfig plan_config;
  plan_config.completing_send = options.completing_send;
  if (!options.nccl.empty()) {
    plan_config.layout = nccl_layout_of(options.nccl);
    if (!plan_config.layout)
      return unusable({ErrorCode::kBadText, "not a version of NCCL that is known", "--nccl", "2.8 or later",
                       options.nccl, "write it as NCCL_DEBUG=VERSION prints it"});
  }
  const NcclTrafficPlan plan = plan_nccl_traffic(survey, buckets, plan_config);
  NcclAssemblyConfig config;
  config.dump_dir = options.dump_directory;
  NcclAssembly assembly(survey, plan, config);
  std::vector<AssembledOp> ops;
  if (!buckets.empty()) {
    auto file = CaptureFile::open(options.file);
    if (!file) return unusable(file.error());
    const Status read = file->each_record(
        [&](const CaptureRecord& record) { assembly.frame(record.bytes, record.wire_bytes, record.time_ns); });
    if (!read && read.error().code != ErrorCode::kCaptureEndsEarly) return unusable(read.error());
    ops = assembly.finish();
  }
  const NcclFindings findings{survey, plan, ops, assembly.counters(), assembly.dump_errors(), !buckets.empty()};
  NcclVerdict verdict = nccl_verdict(findings);
  if (damage) {
    verdict.good = false;
    verdict.lines.insert(verdict.lines.begin(), "the file is cut: " + damage->text());
  }
  if (options.json) {
    nlohmann::json out = nccl_report_json(findings);
    out["verdict"] = verdict.lines;
    fmt::print("{}\n", out.dump(1));
  } else {
    print_text(findings);
    for (const std::string& line : verdict.lines) fmt::print("{}\n", line);
  }
  return verdict.good ? 0 : 1;
}

}  // namespace gradtap::commands
