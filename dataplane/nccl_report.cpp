#include "dataplane/nccl_report.h"

#include <algorithm>
#include <map>
#include <set>

#include <fmt/format.h>

namespace gradtap::dataplane {
namespace {

using nlohmann::json;

constexpr std::size_t kMaxListed = 1'000'000;

json ranges(const std::vector<Interval>& intervals) {
  json result = json::array();
  for (const Interval& range : intervals) result.push_back({range.begin, range.end});
  return result;
}

std::string_view role_name(NcclRole role) {
  switch (role) {
    case NcclRole::kData:
      return "DATA";
    case NcclRole::kCts:
      return "CTS";
    case NcclRole::kUnknown:
      break;
  }
  return "UNKNOWN";
}

std::string_view protocol_name(const NcclItem& item) {
  if (item.message.bytes == 0) return "empty";
  if (!item.seen_data) return "unseen";
  return item.flag != 0 ? "LL" : "Simple";
}

json flow_json(const NcclFindings& findings, const SurveyedFlow& flow) {
  const RoceFlowIdentity& identity = flow.identity();
  const RoceFlowTable::Entry& entry = *findings.survey.table().entries()[identity.flow];
  const PlannedFlow& planned = findings.plan.flows[identity.flow];
  const bool any = entry.flow->started();
  json line = {{"src", to_hex(identity.source.bytes)},
               {"dst", to_hex(identity.target.bytes)},
               {"dest_qpn", identity.target_qp},
               {"udp_sport", identity.source_port},
               {"role", role_name(flow.role())},
               {"packets", entry.requests},
               {"psn_first", any ? json(entry.flow->first_seen_psn()) : json(nullptr)},
               {"psn_last", any ? json(entry.flow->last_seen_psn()) : json(nullptr)},
               {"psn_missing", ranges(entry.flow->missing_psns())},
               {"acks", entry.acknowledgements},
               {"naks", entry.naks}};
  if (identity.epoch > 0) line["epoch"] = identity.epoch;
  if (planned.kind == PlannedFlow::Kind::kRing)
    line["ring"] = {{"position", planned.position}, {"channel", planned.channel}};
  if (planned.kind == PlannedFlow::Kind::kSend) line["completing_send"] = true;
  if (!planned.reason.empty()) line["reason"] = planned.reason;
  return line;
}

// Foreign messages of one connection; what was cut into full LL slots is one operation.
struct ForeignOp {
  std::uint32_t flow = 0;
  std::uint64_t after = 0;  // all-reduces before it on its connection
  std::uint64_t messages = 0;
  std::uint64_t wire_bytes = 0;
  PsnRange psns;
  bool lines = false;
  std::string_view kind;
};

std::vector<ForeignOp> foreign_ops(const NcclFindings& findings, const SurveyedFlow& flow) {
  const PlannedFlow& planned = findings.plan.flows[flow.identity().flow];
  std::vector<ForeignOp> found;
  std::uint64_t operations = 0;
  bool goes_on = false;
  for (const NcclItem& item : flow.items()) {
    if (item.hole) {
      goes_on = false;
      continue;
    }
    if (const NcclStep* const step = planned.step_of(item.message.number)) {
      if (step->index == 0) ++operations;
      goes_on = false;
      continue;
    }
    if (!goes_on) {
      found.emplace_back();
      found.back().flow = flow.identity().flow;
      found.back().after = operations;
      found.back().psns.begin = item.psns.begin;
      found.back().lines = item.flag != 0;
    }
    ForeignOp& op = found.back();
    ++op.messages;
    op.wire_bytes += item.message.bytes;
    op.psns.end = item.psns.end;
    goes_on = item.flag != 0 && item.message.bytes == kNcclLlSlotBytes;
  }
  return found;
}

// On a ring, an all-gather is on every edge and a broadcast on all but one.
void name_kinds(const NcclFindings& findings, std::vector<ForeignOp>& ops) {
  std::uint32_t ranks = 0;
  for (const PlannedBucket& bucket : findings.plan.buckets)
    if (bucket.schedule) ranks = bucket.schedule->op().ranks;
  std::map<std::pair<std::uint32_t, std::uint32_t>, std::uint32_t> edges;  // of a job's channel: ring connections seen
  for (const PlannedFlow& flow : findings.plan.flows)
    if (flow.kind == PlannedFlow::Kind::kRing) ++edges[{flow.group, flow.channel}];
  // Which connections have an operation of this size at this place: the n-th such one is matched with the n-th.
  std::map<std::tuple<std::uint32_t, std::uint32_t, std::uint64_t, std::uint64_t, std::uint64_t>, std::uint32_t>
      matched;
  std::vector<std::tuple<std::uint32_t, std::uint32_t, std::uint64_t, std::uint64_t, std::uint64_t>> names(ops.size());
  std::map<std::tuple<std::uint32_t, std::uint64_t, std::uint64_t>, std::uint64_t> nth;
  for (std::size_t i = 0; i < ops.size(); ++i) {
    const PlannedFlow& flow = findings.plan.flows[ops[i].flow];
    if (flow.kind != PlannedFlow::Kind::kRing) {
      ops[i].kind = ops[i].lines ? "unknown" : "point-to-point";
      continue;
    }
    names[i] = {flow.group, flow.channel, ops[i].after, ops[i].wire_bytes,
                nth[{ops[i].flow, ops[i].after, ops[i].wire_bytes}]++};
    ++matched[names[i]];
  }
  for (std::size_t i = 0; i < ops.size(); ++i) {
    const PlannedFlow& flow = findings.plan.flows[ops[i].flow];
    if (flow.kind != PlannedFlow::Kind::kRing) continue;
    if (edges[{flow.group, flow.channel}] < ranks)
      ops[i].kind = "broadcast or all-gather";  // some edge was not seen
    else
      ops[i].kind = matched[names[i]] == ranks ? "all-gather" : "broadcast";
  }
}

json messages_json(const NcclFindings& findings, bool& cut) {
  json list = json::array();
  for (const auto& flow : findings.survey.flows()) {
    if (flow->role() != NcclRole::kData) continue;
    const auto missing = findings.survey.table().entries()[flow->identity().flow]->flow->missing_psns();
    std::size_t gap = 0;
    for (const NcclItem& item : flow->items()) {
      if (item.hole) continue;
      if (list.size() == kMaxListed) {
        cut = true;
        return list;
      }
      while (gap < missing.size() && missing[gap].end <= item.psns.begin) ++gap;
      const bool whole = !item.message.open_ended && (gap == missing.size() || missing[gap].begin >= item.psns.end);
      list.push_back({{"flow", flow->identity().flow},
                      {"n", item.message.number + 1},
                      {"psn_first", item.psns.begin},
                      {"psn_last", item.psns.end - 1},
                      {"bytes", item.message.bytes},
                      {"protocol", protocol_name(item)},
                      {"flag", item.flag != 0 ? json(item.flag) : json(nullptr)},
                      {"complete", whole}});
    }
  }
  return list;
}

// Address pairs of which only one direction is on the mirror.
std::vector<std::pair<IpAddress, IpAddress>> one_way(const NcclSurvey& survey) {
  std::set<std::pair<IpAddress, IpAddress>> seen;
  for (const auto& flow : survey.flows()) seen.insert({flow->identity().source, flow->identity().target});
  std::vector<std::pair<IpAddress, IpAddress>> found;
  for (const auto& [source, target] : seen)
    if (!seen.contains({target, source})) found.emplace_back(source, target);
  return found;
}

// Ways to run that are not decoded, unless everything that was asked for is there. Ranks are the addresses that data
// comes from or goes to, in some order.
std::vector<NcclMannerFinding> manners(const NcclFindings& findings) {
  const bool found_all =
      !findings.ops.empty() &&
      std::all_of(findings.ops.begin(), findings.ops.end(), [](const AssembledOp& op) { return op.complete; }) &&
      std::all_of(findings.plan.buckets.begin(), findings.plan.buckets.end(),
                  [](const PlannedBucket& bucket) { return bucket.reason.empty(); });
  if (found_all) return {};
  std::set<IpAddress> addresses;
  for (const auto& flow : findings.survey.flows())
    if (flow->role() == NcclRole::kData) addresses.insert({flow->identity().source, flow->identity().target});
  const std::vector<IpAddress> ranks(addresses.begin(), addresses.end());
  std::vector<NcclFlowShown> shown;
  for (const auto& flow : findings.survey.flows()) {
    if (flow->role() != NcclRole::kData) continue;
    const RoceFlowIdentity& identity = flow->identity();
    const auto place = [&](const IpAddress& address) {
      return static_cast<std::uint32_t>(std::lower_bound(ranks.begin(), ranks.end(), address) - ranks.begin());
    };
    const bool found = findings.plan.flows[identity.flow].kind != PlannedFlow::Kind::kOther;
    shown.push_back(
        {place(identity.source), place(identity.target), identity.target_qp, found ? 1U : 0U, &flow->signs()});
  }
  std::vector<std::uint64_t> sizes;
  for (const PlannedBucket& bucket : findings.plan.buckets)
    sizes.push_back(bucket.bucket.elements * bucket.bucket.element_bytes);
  return judge_nccl_manner(shown, static_cast<std::uint32_t>(ranks.size()), sizes);
}

}  // namespace

json nccl_report_json(const NcclFindings& findings) {
  const RoceCaptureCounters& frames = findings.survey.counters();
  const RoceTableCounters& table = findings.survey.table().counters();
  const RoceFlowCounters& flows = findings.survey.table().flow_counters();
  json out = {{"frames", frames.frames}, {"roce_frames", frames.roce_frames}, {"icrc_bad", frames.bad_icrc}};
  bool cut = findings.survey.truncated();
  json flow_list = json::array(), op_list = json::array(), other_list = json::array();
  std::vector<ForeignOp> others;
  for (const auto& flow : findings.survey.flows()) {
    flow_list.push_back(flow_json(findings, *flow));
    if (flow->role() != NcclRole::kData || !findings.buckets_given) continue;
    for (const ForeignOp& op : foreign_ops(findings, *flow)) {
      cut = cut || others.size() == kMaxListed;
      if (others.size() < kMaxListed) others.push_back(op);
    }
  }
  for (const AssembledOp& op : findings.ops) {
    const PlannedBucket& planned = findings.plan.buckets[op.bucket];
    json line = {{"index", op.index},
                 {"kind", "all-reduce"},
                 {"elements", planned.bucket.elements},
                 {"dtype", planned.bucket.dtype},
                 {"complete", op.complete},
                 {"present", ranges(op.present)},
                 {"lost_definitive", ranges(op.lost_definitive)},
                 {"sha256", op.sha256 ? json(to_hex(*op.sha256)) : json(nullptr)}};
    if (op.group > 0) line["job"] = op.group;
    if (op.conflict) line["conflict"] = true;
    if (op.shed) line["shed"] = true;
    if (planned.channel_order_assumed) line["channels_by_queue_pair_order"] = true;
    if (!op.dump_file.empty()) line["file"] = op.dump_file;
    op_list.push_back(std::move(line));
  }
  name_kinds(findings, others);
  for (const ForeignOp& op : others) {
    const RoceFlowIdentity& identity = findings.survey.flows()[op.flow]->identity();
    other_list.push_back({{"kind", op.kind},
                          {"protocol", op.lines ? "LL" : "Simple"},
                          {"src", to_hex(identity.source.bytes)},
                          {"dst", to_hex(identity.target.bytes)},
                          {"dest_qpn", identity.target_qp},
                          {"messages", op.messages},
                          {"bytes", op.lines ? op.wire_bytes / 2 : op.wire_bytes},
                          {"psn_first", op.psns.begin},
                          {"psn_last", op.psns.end - 1}});
  }
  out["flows"] = std::move(flow_list);
  out["ops"] = std::move(op_list);
  out["other_ops"] = std::move(other_list);
  if (!findings.buckets_given) out["messages"] = messages_json(findings, cut);
  json refused = json::array();
  for (const PlannedBucket& bucket : findings.plan.buckets)
    if (!bucket.reason.empty())
      refused.push_back(
          {{"elements", bucket.bucket.elements}, {"dtype", bucket.bucket.dtype}, {"reason", bucket.reason}});
  if (!refused.empty()) out["refused"] = std::move(refused);
  json unsupported = json::array();
  for (const NcclMannerFinding& finding : manners(findings))
    unsupported.push_back({{"what", nccl_manner_name(finding.manner)},
                           {"evidence", finding.evidence},
                           {"remedy", nccl_manner_remedy(finding.manner)}});
  if (!unsupported.empty()) out["unsupported"] = std::move(unsupported);
  if (cut) out["cut"] = true;
  json drops = json::object();
  for (std::size_t i = 1; i < kFrameDropCount; ++i)
    if (frames.drops[i] > 0) drops[std::string(frame_drop_name(static_cast<FrameDrop>(i)))] = frames.drops[i];
  out["drops"] = std::move(drops);
  out["counters"] = {{"tunnelled_frames", frames.tunnelled},
                     {"vendor_frames", frames.vendor_frames},
                     {"management_frames", table.management},
                     {"congestion_notifications", table.congestion},
                     {"acknowledgements", table.acknowledgements},
                     {"naks", table.naks},
                     {"renewed_flows", table.renewed},
                     {"refused_flows", table.refused},
                     {"duplicate_packets", flows.duplicates},
                     {"packets_out_of_order", flows.behind},
                     {"inconsistent_packets", flows.inconsistent},
                     {"unplaceable_packets", flows.unplaceable + flows.late},
                     {"immediate_mismatches", flows.immediate_mismatches},
                     {"wrong_flags", findings.counters.wrong_flags},
                     {"repeated_bytes", findings.counters.repeated_bytes},
                     {"conflicts", findings.counters.conflicts}};
  if (!findings.dump_errors.empty()) out["dump_errors"] = findings.dump_errors;
  return out;
}

NcclVerdict nccl_verdict(const NcclFindings& findings) {
  NcclVerdict verdict;
  const RoceCaptureCounters& frames = findings.survey.counters();
  const auto say = [&](std::string line) { verdict.lines.push_back(std::move(line)); };
  const auto dropped = [&](FrameDrop drop) { return frames.drops[static_cast<std::size_t>(drop)]; };
  if (dropped(FrameDrop::kTruncated) > 0)
    say(fmt::format(
        "{} frames are shorter than they were on the wire: raise the snap length, or the mirror's truncation",
        dropped(FrameDrop::kTruncated)));
  if (dropped(FrameDrop::kSampled) > 0)
    say(fmt::format("{} frames are sampled headers (sFlow): sampling is not a mirror, mirror the ports",
                    dropped(FrameDrop::kSampled)));
  if (dropped(FrameDrop::kSupersized) > 0)
    say(fmt::format("{} frames were merged by an interface: capture with receive offloads off",
                    dropped(FrameDrop::kSupersized)));
  if (frames.bad_icrc > frames.vendor_frames)
    say(fmt::format("{} RoCE frames are damaged: their check value does not verify",
                    frames.bad_icrc - frames.vendor_frames));
  std::uint64_t missing = 0, definitive = 0, mismatches = 0;
  std::size_t data_flows = 0;
  for (const auto& flow : findings.survey.flows()) {
    if (flow->role() == NcclRole::kUnknown || !findings.survey.orderly(*flow)) continue;
    const RoceFlow& seen = *findings.survey.table().entries()[flow->identity().flow]->flow;
    for (const Interval& range : seen.missing_psns()) {
      missing += range.length();
      const std::uint64_t end = std::min(range.end, seen.acknowledged_end());
      definitive += end > range.begin ? end - range.begin : 0;
    }
    mismatches += flow->mismatches();
    data_flows += flow->role() == NcclRole::kData ? 1 : 0;
  }
  if (missing > 0)
    say(fmt::format("{} packets are missing, {} of them for good (acknowledged, never seen): the mirror loses packets",
                    missing, definitive));
  const auto directions = one_way(findings.survey);
  if (directions.size() == 1) {
    say(fmt::format("one direction of two: only {} -> {} is seen; add the mirror of {}'s port",
                    directions[0].first.text(), directions[0].second.text(), directions[0].second.text()));
  } else if (!directions.empty()) {
    say(fmt::format(
        "one direction of two for {} pairs of addresses, first {} -> {}: add the mirrors of the other ports",
        directions.size(), directions[0].first.text(), directions[0].second.text()));
  }
  const std::vector<NcclMannerFinding> unsupported = manners(findings);
  for (const NcclMannerFinding& finding : unsupported) say("not supported: " + finding.text());
  if (mismatches > 0 && unsupported.empty())
    say(
        fmt::format("{} messages carry an immediate that is not their length: several queue pairs per connection "
                    "(set NCCL_IB_QPS_PER_CONNECTION=1), or a version of NCCL that is not known",
                    mismatches));
  for (const PlannedBucket& bucket : findings.plan.buckets) {
    if (bucket.reason.empty()) continue;
    say(fmt::format("{}:{}: {}", bucket.bucket.elements, bucket.bucket.dtype, bucket.reason));
    if (data_flows > 0 && unsupported.empty())
      say("  seen are only rings with LL or Simple: LL128, trees and NVLS need NCCL_PROTO=LL,Simple NCCL_ALGO=Ring");
  }
  for (const PlannedFlow& flow : findings.plan.flows)
    if (!flow.reason.empty()) say("a connection is not used as a whole: " + flow.reason);
  std::size_t complete = 0, conflicts = 0;
  for (const AssembledOp& op : findings.ops) {
    complete += op.complete ? 1 : 0;
    conflicts += op.conflict ? 1 : 0;
  }
  if (conflicts > 0) say(fmt::format("{} all-reduces have copies that differ: their ranges are not given", conflicts));
  const bool refused = std::any_of(findings.plan.buckets.begin(), findings.plan.buckets.end(),
                                   [](const PlannedBucket& bucket) { return !bucket.reason.empty(); });
  if (frames.roce_frames == 0) {
    say("verdict: no RoCE frame was seen");
  } else if (data_flows == 0) {
    say("verdict: RoCE is there, but no data connection of NCCL");
  } else if (!findings.buckets_given) {
    verdict.good = missing == 0 && directions.empty() && mismatches == 0;
    say(fmt::format("verdict: {} data connections{}; name the all-reduces with --bucket ELEMENTS:DTYPE", data_flows,
                    verdict.good ? ", every packet of both directions" : ", NOT whole"));
  } else if (complete == findings.ops.size() && complete > 0 && !refused) {
    verdict.good = true;
    say(fmt::format("verdict: complete: all {} all-reduces, every final byte", complete));
  } else {
    say(fmt::format("verdict: INCOMPLETE: {} of {} all-reduces are whole", complete, findings.ops.size()));
  }
  return verdict;
}

}  // namespace gradtap::dataplane
