#include "dataplane/nccl_traffic_plan.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <set>

namespace gradtap::dataplane {
namespace {

constexpr std::size_t kTriedItems = 4096;  // of a flow, to find the schedule
constexpr std::uint32_t kMaxTriedRanks = 64;
constexpr std::uint32_t kMaxTriedChannels = 32;
constexpr std::uint32_t kThreads[] = {512, 256, 128, 96, 64};
constexpr NcclLayout kLayouts[] = {NcclLayout::kUpTo2_19, NcclLayout::k2_20To2_21, NcclLayout::kFrom2_22};
constexpr NcclProtocol kProtocols[] = {NcclProtocol::kLl, NcclProtocol::kSimple};

class CountingSink final : public NcclProgramSink {
 public:
  void found(const NcclStep&, const NcclItem&) override {}
  void lost(const NcclStep&) override {}
  void foreign(const NcclItem&) override {}
};

std::uint64_t operations_in(const SurveyedFlow& flow, const NcclPattern& pattern) {
  NcclProgram program({pattern});
  CountingSink sink;
  std::size_t left = kTriedItems;
  for (const NcclItem& item : flow.items()) {
    if (left-- == 0) break;
    program.add(item, sink);
  }
  program.finish(sink);
  return program.operations();
}

// Data flows from one address to another, in the order in which their queue pairs were made.
struct Edge {
  std::vector<const SurveyedFlow*> flows;
  std::optional<std::uint32_t> rank;  // of the sender
  bool order_known = true;            // both ends made their queue pairs in the same order
};

using Edges = std::map<std::pair<IpAddress, IpAddress>, Edge>;

// The rank of each address as a sender of data, from clear-to-send tags; none where tags differ.
std::map<IpAddress, std::optional<std::uint32_t>> ranks_of(const NcclSurvey& survey) {
  std::map<IpAddress, std::optional<std::uint32_t>> ranks;
  for (const auto& flow : survey.flows()) {
    if (flow->role() != NcclRole::kCts || flow->tags().size() != 1) continue;
    const auto [at, added] = ranks.emplace(flow->identity().target, *flow->tags().begin());
    if (!added && at->second != *flow->tags().begin()) at->second.reset();
  }
  return ranks;
}

Edges edges_of(const NcclSurvey& survey) {
  const auto ranks = ranks_of(survey);
  Edges edges;
  for (const auto& flow : survey.flows())
    if (flow->role() == NcclRole::kData)
      edges[{flow->identity().source, flow->identity().target}].flows.push_back(flow.get());
  for (auto& [ends, edge] : edges) {
    std::sort(edge.flows.begin(), edge.flows.end(), [](const SurveyedFlow* a, const SurveyedFlow* b) {
      return a->identity().target_qp < b->identity().target_qp;
    });
    std::uint32_t last = 0;
    for (const SurveyedFlow* flow : edge.flows) {
      const SurveyedFlow* const partner = survey.partner(*flow);
      if (partner == nullptr) continue;
      edge.order_known = edge.order_known && partner->identity().target_qp > last;
      last = partner->identity().target_qp;
    }
    if (const auto at = ranks.find(ends.first); at != ranks.end()) edge.rank = at->second;
    if (edge.rank) continue;
    // Of two ranks the other one's is enough; more are not concluded from.
    if (const auto at = ranks.find(ends.second); at != ranks.end() && at->second && *at->second < 2)
      edge.rank = 1 - *at->second;
  }
  return edges;
}

std::vector<std::uint32_t> possible_ranks(const NcclSurvey& survey, const Edges& edges) {
  std::set<IpAddress> addresses;
  std::set<std::uint32_t> worlds;
  std::uint32_t highest = 0;
  for (const auto& [ends, edge] : edges) addresses.insert({ends.first, ends.second});
  for (const auto& flow : survey.flows())
    for (const std::uint32_t tag : flow->tags()) highest = std::max(highest, tag);
  const auto hosts = std::min<std::uint32_t>(static_cast<std::uint32_t>(addresses.size()), kMaxTriedRanks);
  for (std::uint32_t world = std::max<std::uint32_t>(2, highest + 1); world <= hosts; ++world) worlds.insert(world);
  worlds.insert(std::max<std::uint32_t>(2, highest + 1));
  return {worlds.begin(), worlds.end()};
}

struct Assignment {
  std::uint32_t position = 0;
  std::vector<std::pair<const SurveyedFlow*, std::uint32_t>> channels;
  bool order_used = false;  // lengths did not tell the channels apart
  std::uint64_t operations = 0;
};

// Which flows of the edge are the op's channels, for one ring position. None: they are not these.
std::optional<Assignment> assign(const Edge& edge, const NcclSchedule& schedule, std::uint32_t position) {
  Assignment result{.position = position, .channels = {}};
  const std::uint32_t channels = schedule.op().channels;
  for (const SurveyedFlow* flow : edge.flows) {
    std::vector<std::uint64_t> fits(channels, 0);
    std::size_t fitting = 0;
    for (std::uint32_t channel = 0; channel < channels; ++channel) {
      fits[channel] = operations_in(*flow, NcclPattern::ring(0, schedule, position, channel));
      fitting += fits[channel] > 0 ? 1 : 0;
    }
    if (fitting == 0) continue;
    const auto channel = static_cast<std::uint32_t>(result.channels.size());
    if (channel == channels || fits[channel] == 0) return std::nullopt;
    result.channels.emplace_back(flow, channel);
    result.operations += fits[channel];
    if (fitting > 1) result.order_used = true;
  }
  if (result.channels.size() != channels || (result.order_used && !edge.order_known)) return std::nullopt;
  return result;
}

struct Candidate {
  NcclSchedule schedule;
  std::map<const Edge*, Assignment> edges;
  std::uint64_t operations = 0;
  bool position_unclear = false;
};

std::optional<Candidate> try_op(const NcclOp& op, const Edges& edges) {
  const auto schedule = NcclSchedule::of(op);
  if (!schedule) return std::nullopt;
  Candidate candidate{.schedule = *schedule, .edges = {}};
  for (const auto& [ends, edge] : edges) {
    std::optional<Assignment> found;
    for (std::uint32_t position = 0; position < op.ranks; ++position) {
      if (edge.rank && *edge.rank != position) continue;
      auto assignment = assign(edge, *schedule, position);
      if (!assignment) continue;
      if (found) candidate.position_unclear = true;
      found = std::move(assignment);
    }
    if (!found) continue;
    candidate.operations += found->operations;
    candidate.edges.emplace(&edge, std::move(*found));
  }
  if (candidate.edges.empty()) return std::nullopt;
  return candidate;
}

// Whether two candidates put every message of the flows that they share at the same place.
bool same_places(const Candidate& a, const Candidate& b) {
  if (a.edges.size() != b.edges.size()) return false;
  for (const auto& [edge, left] : a.edges) {
    const auto at = b.edges.find(edge);
    if (at == b.edges.end() || at->second.channels != left.channels) return false;
    for (const auto& [flow, channel] : left.channels) {
      const std::uint64_t count = a.schedule.message_count(left.position, channel);
      if (count != b.schedule.message_count(at->second.position, channel)) return false;
      for (std::uint64_t i = 0; i < count; ++i)
        if (a.schedule.message(left.position, channel, i) != b.schedule.message(at->second.position, channel, i))
          return false;
    }
  }
  return true;
}

std::optional<Candidate> find_schedule(const NcclSurvey& survey, const Edges& edges, PlannedBucket& planned) {
  std::size_t widest = 0;
  for (const auto& [ends, edge] : edges) widest = std::max(widest, edge.flows.size());
  const auto most_channels = static_cast<std::uint32_t>(std::min<std::size_t>(widest, kMaxTriedChannels));
  std::optional<Candidate> best;
  bool several = false;
  std::set<NcclOp> tried;
  for (const std::uint32_t ranks : possible_ranks(survey, edges))
    for (const NcclLayout layout : kLayouts)
      for (const NcclProtocol protocol : kProtocols)
        for (std::uint32_t channels = 1; channels <= most_channels; ++channels)
          for (const std::uint32_t threads : kThreads) {
            const NcclTuning tuning{.layout = layout, .ranks = ranks, .channels = most_channels};
            const auto op = nccl_plan_on(tuning, protocol, NcclCollective::kAllReduce, planned.bucket.elements,
                                         planned.bucket.element_bytes, channels, threads);
            if (!op || !tried.insert(*op).second) continue;
            auto candidate = try_op(*op, edges);
            if (!candidate) continue;
            if (!best || candidate->operations > best->operations) {
              best = std::move(candidate);
              several = false;
            } else if (candidate->operations == best->operations && !same_places(*candidate, *best)) {
              several = true;
            }
          }
  if (!best) {
    planned.reason = "no messages of this size were found";
  } else if (several) {
    planned.reason = "several layouts of NCCL fit the messages: their places are not proven";
  } else if (best->position_unclear) {
    planned.reason = "the sender's rank was not seen (no clear-to-send) and several fit";
  }
  if (!planned.reason.empty()) return std::nullopt;
  return best;
}

constexpr NcclStep kForeignStep{PlannedFlow::kForeign, 0, 0, {}};

class StepRecorder final : public NcclProgramSink {
 public:
  explicit StepRecorder(PlannedFlow& flow) : flow_(flow) {}
  void found(const NcclStep& step, const NcclItem& item) override { set(item.message.number, step); }
  void lost(const NcclStep& step) override { flow_.lost_steps.push_back(step); }
  void foreign(const NcclItem& item) override {
    if (!item.hole) set(item.message.number, kForeignStep);
  }

 private:
  void set(std::uint64_t number, const NcclStep& step) {
    if (number >= flow_.steps.size()) flow_.steps.resize(number + 1, kForeignStep);
    flow_.steps[number] = step;
  }
  PlannedFlow& flow_;
};

void parse_flow(const SurveyedFlow& flow, std::vector<NcclPattern> patterns, PlannedFlow& planned) {
  NcclProgram program(std::move(patterns));
  StepRecorder recorder(planned);
  for (const NcclItem& item : flow.items()) program.add(item, recorder);
  program.finish(recorder);
  if (program.doubtful())
    planned.reason = "a foreign message of the same length: where operations begin is not proven";
  else if (program.ambiguous() > 0)
    planned.reason = "messages fit several of the sizes";
  else if (!program.aligned())
    planned.reason = "lost packets may have hidden a whole operation: later ones are not numbered";
  if (program.doubtful() || program.ambiguous() > 0) {
    planned.steps.clear();
    planned.lost_steps.clear();
  }
  std::erase_if(planned.lost_steps, [](const NcclStep& step) { return step.occurrence == 0; });
  for (NcclStep& step : planned.steps)
    if (step.occurrence == 0) step.pattern = PlannedFlow::kForeign;
}

std::optional<std::uint32_t> dtype_bytes(std::string_view dtype) {
  static const std::map<std::string_view, std::uint32_t> kBytes{
      {"int8", 1},   {"uint8", 1},   {"float16", 2}, {"bfloat16", 2}, {"int32", 4},
      {"uint32", 4}, {"float32", 4}, {"int64", 8},   {"uint64", 8},   {"float64", 8}};
  const auto at = kBytes.find(dtype);
  return at == kBytes.end() ? std::nullopt : std::optional(at->second);
}

}  // namespace

Result<NcclBucket> parse_nccl_bucket(std::string_view text) {
  const auto refused = [&] {
    return fail(ErrorCode::kBadText, "not a bucket", {}, "ELEMENTS:DTYPE, for example 5000:float32",
                std::string(text.substr(0, 64)), "give the number of elements and their type");
  };
  const std::size_t colon = text.find(':');
  if (colon == std::string_view::npos) return refused();
  NcclBucket bucket;
  const auto [end, error] = std::from_chars(text.data(), text.data() + colon, bucket.elements);
  if (error != std::errc() || end != text.data() + colon) return refused();
  if (bucket.elements == 0 || bucket.elements > kMaxNcclElements) return refused();
  bucket.dtype = text.substr(colon + 1);
  const auto bytes = dtype_bytes(bucket.dtype);
  if (!bytes) return refused();
  bucket.element_bytes = *bytes;
  return bucket;
}

std::vector<Interval> NcclTrafficPlan::unsent(std::size_t bucket, std::uint32_t position) const {
  const NcclSchedule& schedule = *buckets[bucket].schedule;
  IntervalSet sent;
  for (std::uint32_t channel = 0; channel < schedule.op().channels; ++channel) {
    const std::uint64_t count = schedule.message_count(position, channel);
    for (std::uint64_t i = 0; i < count; ++i) {
      const auto message = schedule.message(position, channel, i);
      if (message && message->phase == Phase::kFinal && message->begin < message->end)
        sent.add(message->begin, message->end);
    }
  }
  return sent.missing(0, schedule.op().elements);
}

NcclTrafficPlan plan_nccl_traffic(const NcclSurvey& survey, std::span<const NcclBucket> buckets, bool completing_send) {
  NcclTrafficPlan plan;
  plan.flows.resize(survey.flows().size());
  const Edges edges = edges_of(survey);
  for (const NcclBucket& bucket : buckets) {
    PlannedBucket& planned = plan.buckets.emplace_back();
    planned.bucket = bucket;
    const auto candidate = find_schedule(survey, edges, planned);
    if (!candidate) continue;
    bool consistent = true;
    for (const auto& [edge, assignment] : candidate->edges) {
      for (const auto& [flow, channel] : assignment.channels) {
        const PlannedFlow& known = plan.flows[flow->identity().flow];
        consistent = consistent && (known.kind == PlannedFlow::Kind::kOther ||
                                    (known.position == assignment.position && known.channel == channel));
      }
    }
    if (!consistent) {
      planned.reason = "its channels contradict those of another size";
      continue;
    }
    for (const auto& [edge, assignment] : candidate->edges) {
      planned.channel_order_assumed = planned.channel_order_assumed || assignment.order_used;
      for (const auto& [flow, channel] : assignment.channels) {
        PlannedFlow& ring = plan.flows[flow->identity().flow];
        ring.kind = PlannedFlow::Kind::kRing;
        ring.position = assignment.position;
        ring.channel = channel;
      }
    }
    planned.schedule = candidate->schedule;
  }

  std::map<IpAddress, std::uint32_t> positions;
  for (const auto& flow : survey.flows()) {
    PlannedFlow& planned = plan.flows[flow->identity().flow];
    if (planned.kind != PlannedFlow::Kind::kRing) continue;
    positions[flow->identity().source] = planned.position;
    std::vector<NcclPattern> patterns;
    for (std::uint32_t b = 0; b < plan.buckets.size(); ++b) {
      const auto& schedule = plan.buckets[b].schedule;
      if (schedule && planned.channel < schedule->op().channels)
        patterns.push_back(NcclPattern::ring(b, *schedule, planned.position, planned.channel));
    }
    parse_flow(*flow, std::move(patterns), planned);
  }
  if (!completing_send) return plan;
  for (const auto& flow : survey.flows()) {
    PlannedFlow& planned = plan.flows[flow->identity().flow];
    const auto position = positions.find(flow->identity().source);
    if (planned.kind == PlannedFlow::Kind::kRing || flow->role() != NcclRole::kData || position == positions.end())
      continue;
    std::vector<NcclPattern> patterns;
    for (std::uint32_t b = 0; b < plan.buckets.size(); ++b) {
      if (!plan.buckets[b].schedule) continue;
      std::uint64_t elements = 0;
      for (const Interval& range : plan.unsent(b, position->second)) elements += range.length();
      patterns.push_back(NcclPattern::send(b, elements * plan.buckets[b].bucket.element_bytes));
    }
    PlannedFlow send;
    send.kind = PlannedFlow::Kind::kSend;
    send.position = position->second;
    parse_flow(*flow, std::move(patterns), send);
    const bool any = std::any_of(send.steps.begin(), send.steps.end(),
                                 [](const NcclStep& step) { return step.pattern != PlannedFlow::kForeign; });
    if (any || !send.reason.empty()) planned = std::move(send);
  }
  return plan;
}

}  // namespace gradtap::dataplane
