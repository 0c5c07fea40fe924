#include "dataplane/nccl_traffic_plan.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <set>
#include <tuple>

#include "common/random.h"

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

// How many operations of a pattern a flow holds (it need not count them all). Many schedules give the same lengths, so
// answers are kept.
class OperationCounts {
 public:
  std::uint64_t of(const SurveyedFlow& flow, const NcclPattern& pattern) {
    const auto [at, added] = known_.emplace(std::tuple(&flow, pattern.count(), digest(pattern)), 0);
    if (added) at->second = count(flow, pattern);
    return at->second;
  }

 private:
  static std::uint64_t digest(const NcclPattern& pattern) {
    std::uint64_t digest = pattern.line_based() ? 1 : 2;
    for (std::uint64_t i = 0; i < std::min(pattern.count(), kDigested); ++i)
      digest = splitmix64_mix(digest ^ pattern.wire_bytes(i));
    return digest;
  }
  static std::uint64_t count(const SurveyedFlow& flow, const NcclPattern& pattern) {
    constexpr std::uint64_t kEnough = 4;
    NcclProgram program({pattern});
    CountingSink sink;
    std::size_t left = kTriedItems;
    for (const NcclItem& item : flow.items()) {
      if (left-- == 0 || program.operations() >= kEnough) break;
      program.add(item, sink);
    }
    program.finish(sink);
    return program.operations();
  }

  static constexpr std::uint64_t kDigested = 4096;
  std::map<std::tuple<const SurveyedFlow*, std::uint64_t, std::uint64_t>, std::uint64_t> known_;
};

struct Lengths {
  std::set<std::uint64_t> seen;
  bool all = true;    // nothing was lost
  bool open = false;  // of some message it is not known
};

// Data flows from one address to another, of one communicator where the bootstrap named it, in the order of their
// channels where it did so, else in that in which their queue pairs were made.
struct Edge {
  std::vector<const SurveyedFlow*> flows;
  std::vector<std::optional<std::uint32_t>> channels;  // as the bootstrap names them
  std::vector<Lengths> lengths;                        // of the messages of each flow
  std::uint32_t world = 0;                             // 0: not known
  std::uint64_t comm = 0;
  std::optional<std::uint32_t> rank;  // of the sender
  bool order_known = true;            // both ends made their queue pairs in the same order
};

using Edges = std::map<std::tuple<IpAddress, IpAddress, std::uint64_t>, Edge>;

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

Lengths lengths_in(const SurveyedFlow& flow) {
  Lengths lengths;
  std::size_t left = kTriedItems;
  for (const NcclItem& item : flow.items()) {
    if (left-- == 0) break;
    lengths.all = lengths.all && !item.hole;
    lengths.open = lengths.open || (!item.hole && item.message.open_ended);
    if (!item.hole) lengths.seen.insert(item.message.bytes);
  }
  return lengths;
}

// Whether the first messages of the pattern have lengths that occur: all of them, or one with data where some were
// lost.
bool may_hold(const Lengths& lengths, const NcclPattern& pattern) {
  if (lengths.open) return true;
  bool all = true, any = false;
  for (std::uint64_t i = 0; i < std::min<std::uint64_t>(pattern.count(), 64); ++i) {
    const std::uint64_t bytes = pattern.wire_bytes(i);
    const bool seen = lengths.seen.contains(bytes);
    all = all && seen;
    any = any || (seen && bytes > 0);
  }
  return lengths.all ? all : any;
}

Edges edges_of(const NcclSurvey& survey) {
  const auto ranks = ranks_of(survey);
  std::map<std::pair<IpAddress, IpAddress>, std::set<std::uint64_t>> comms;  // that the bootstrap named
  for (const auto& flow : survey.flows()) {
    const NcclConnectionName* const name = survey.name_of(*flow);
    if (flow->role() == NcclRole::kData && name != nullptr && name->ring)
      comms[{flow->identity().source, flow->identity().target}].insert(name->comm);
  }
  Edges edges;
  for (const auto& flow : survey.flows()) {
    if (flow->role() != NcclRole::kData || !survey.orderly(*flow)) continue;
    const NcclConnectionName* const name = survey.name_of(*flow);
    if (name != nullptr && !name->ring) continue;
    const std::pair ends(flow->identity().source, flow->identity().target);
    std::uint64_t comm = name == nullptr ? 0 : name->comm;
    // A connection whose exchange was missed goes with the others, if they are of one communicator.
    if (name == nullptr && comms.contains(ends) && comms[ends].size() == 1) comm = *comms[ends].begin();
    Edge& edge = edges[{ends.first, ends.second, comm}];
    edge.comm = comm;
    edge.flows.push_back(flow.get());
  }
  for (auto& [ends, edge] : edges) {
    const auto channel_of = [&](const SurveyedFlow* flow) -> std::optional<std::uint32_t> {
      const NcclConnectionName* const name = survey.name_of(*flow);
      return name == nullptr ? std::nullopt : std::optional(name->channel);
    };
    const bool all_named = std::all_of(edge.flows.begin(), edge.flows.end(),
                                       [&](const SurveyedFlow* flow) { return channel_of(flow).has_value(); });
    std::sort(edge.flows.begin(), edge.flows.end(), [&](const SurveyedFlow* a, const SurveyedFlow* b) {
      return all_named ? channel_of(a) < channel_of(b) : a->identity().target_qp < b->identity().target_qp;
    });
    std::uint32_t last = 0;
    for (const SurveyedFlow* flow : edge.flows) {
      edge.lengths.push_back(lengths_in(*flow));
      edge.channels.push_back(channel_of(flow));
      if (const NcclConnectionName* const name = survey.name_of(*flow)) {
        edge.rank = name->sender;
        edge.world = name->ranks;
      }
      const SurveyedFlow* const partner = survey.partner(*flow);
      if (partner == nullptr) continue;
      edge.order_known = edge.order_known && partner->identity().target_qp > last;
      last = partner->identity().target_qp;
    }
    if (edge.rank) continue;
    if (const auto at = ranks.find(std::get<0>(ends)); at != ranks.end()) edge.rank = at->second;
    if (edge.rank) continue;
    // Of two ranks the other one's is enough; more are not concluded from.
    if (const auto at = ranks.find(std::get<1>(ends)); at != ranks.end() && at->second && *at->second < 2)
      edge.rank = 1 - *at->second;
  }
  // What the bootstrap did not name belongs to the only communicator that is named at its addresses.
  for (auto& [ends, edge] : edges) {
    if (edge.comm != 0) continue;
    std::set<std::uint64_t> near;
    for (const auto& [other_ends, other] : edges) {
      const bool touches = std::get<0>(other_ends) == std::get<0>(ends) ||
                           std::get<1>(other_ends) == std::get<0>(ends) ||
                           std::get<0>(other_ends) == std::get<1>(ends) || std::get<1>(other_ends) == std::get<1>(ends);
      if (touches && std::get<2>(other_ends) != 0) near.insert(std::get<2>(other_ends));
    }
    if (near.size() == 1) edge.comm = *near.begin();
  }
  return edges;
}

std::vector<std::uint32_t> possible_ranks(const NcclSurvey& survey, const Edges& edges) {
  std::set<IpAddress> addresses;
  std::set<std::uint32_t> worlds;
  std::uint32_t highest = 0;
  for (const auto& [ends, edge] : edges) {
    addresses.insert({std::get<0>(ends), std::get<1>(ends)});
    if (edge.world != 0) worlds.insert(edge.world);
  }
  if (!worlds.empty()) return {worlds.begin(), worlds.end()};
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
std::optional<Assignment> assign(const Edge& edge, const NcclSchedule& schedule, std::uint32_t position,
                                 OperationCounts& counts) {
  Assignment result{.position = position, .channels = {}};
  const std::uint32_t channels = schedule.op().channels;
  for (std::size_t i = 0; i < edge.flows.size(); ++i) {
    const SurveyedFlow* const flow = edge.flows[i];
    std::vector<std::uint64_t> fits(channels, 0);
    std::size_t fitting = 0;
    for (std::uint32_t channel = 0; channel < channels; ++channel) {
      const NcclPattern pattern = NcclPattern::ring(0, schedule, position, channel);
      if (may_hold(edge.lengths[i], pattern)) fits[channel] = counts.of(*flow, pattern);
      fitting += fits[channel] > 0 ? 1 : 0;
    }
    if (fitting == 0) continue;
    const auto channel = static_cast<std::uint32_t>(result.channels.size());
    if (channel == channels || fits[channel] == 0) return std::nullopt;
    if (edge.channels[i] && *edge.channels[i] != channel) return std::nullopt;
    result.channels.emplace_back(flow, channel);
    result.operations += fits[channel];
    if (fitting > 1 && !edge.channels[i]) result.order_used = true;
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

// The ring position of each sender, counted from rank 0 along the edges; only where every address has one successor.
std::map<IpAddress, std::uint32_t> positions_on(const std::vector<std::pair<IpAddress, IpAddress>>& edges,
                                                const std::set<IpAddress>& rank_zero, std::uint32_t ranks) {
  std::map<IpAddress, std::set<IpAddress>> next, previous;
  for (const auto& [source, target] : edges) {
    next[source].insert(target);
    previous[target].insert(source);
  }
  std::map<IpAddress, std::uint32_t> positions;
  for (const IpAddress& start : rank_zero) {
    std::map<IpAddress, std::uint32_t> ring{{start, 0}};
    bool sound = true;
    IpAddress at = start;
    for (std::uint32_t position = 1; position < ranks && next.contains(at); ++position) {
      if (next[at].size() != 1) sound = false;
      at = *next[at].begin();
      sound = sound && ring.emplace(at, position).second;
      if (!sound) break;
    }
    if (ring.size() == ranks && next.contains(at) && (next[at].size() != 1 || *next[at].begin() != start))
      sound = false;
    at = start;
    for (std::uint32_t position = ranks - 1; sound && ring.size() < ranks && previous.contains(at); --position) {
      if (previous[at].size() != 1) sound = false;
      at = *previous[at].begin();
      sound = sound && ring.emplace(at, position).second;
    }
    if (sound) positions.insert(ring.begin(), ring.end());
  }
  return positions;
}

std::optional<Candidate> try_op(const NcclOp& op, const Edges& edges, OperationCounts& counts) {
  const auto schedule = NcclSchedule::of(op);
  if (!schedule) return std::nullopt;
  Candidate candidate{.schedule = *schedule, .edges = {}};
  // First which edges carry it at all, then where on the ring they are.
  std::vector<std::pair<IpAddress, IpAddress>> carrying;
  std::set<IpAddress> rank_zero;
  std::vector<const Edge*> fitting;
  for (const auto& [ends, edge] : edges) {
    if (edge.world != 0 && edge.world != op.ranks) continue;
    bool fits = false;
    for (std::uint32_t position = 0; position < op.ranks && !fits; ++position)
      fits = assign(edge, *schedule, position, counts).has_value();
    if (!fits) continue;
    fitting.push_back(&edge);
    carrying.emplace_back(std::get<0>(ends), std::get<1>(ends));
    if (edge.rank == 0U) rank_zero.insert(std::get<0>(ends));
  }
  const auto positions = positions_on(carrying, rank_zero, op.ranks);
  for (std::size_t i = 0; i < fitting.size(); ++i) {
    const Edge& edge = *fitting[i];
    std::optional<std::uint32_t> known;
    if (op.ranks == 2) {
      known = edge.rank;
    } else if (const auto at = positions.find(carrying[i].first); at != positions.end()) {
      known = at->second;
    }
    std::optional<Assignment> found;
    for (std::uint32_t position = 0; position < op.ranks; ++position) {
      if (known && *known != position) continue;
      auto assignment = assign(edge, *schedule, position, counts);
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

std::optional<Candidate> find_schedule(const NcclSurvey& survey, const Edges& edges, const NcclPlanConfig& config,
                                       OperationCounts& counts, PlannedBucket& planned) {
  std::size_t widest = 0;
  for (const auto& [ends, edge] : edges) widest = std::max(widest, edge.flows.size());
  const auto most_channels = static_cast<std::uint32_t>(std::min<std::size_t>(widest, kMaxTriedChannels));
  std::optional<Candidate> best;
  bool several = false;
  std::set<NcclOp> tried;
  for (const std::uint32_t ranks : possible_ranks(survey, edges)) {
    if (best) break;
    for (const NcclLayout layout : kLayouts) {
      if (config.layout && layout != *config.layout) continue;
      for (const NcclProtocol protocol : kProtocols)
        for (std::uint32_t channels = 1; channels <= most_channels; ++channels)
          for (const std::uint32_t threads : kThreads) {
            const NcclTuning tuning{.layout = layout, .ranks = ranks, .channels = most_channels};
            const auto op = nccl_plan_on(tuning, protocol, NcclCollective::kAllReduce, planned.bucket.elements,
                                         planned.bucket.element_bytes, channels, threads);
            if (!op || !tried.insert(*op).second) continue;
            auto candidate = try_op(*op, edges, counts);
            if (!candidate) continue;
            if (!best || candidate->operations > best->operations) {
              best = std::move(candidate);
              several = false;
            } else if (candidate->operations == best->operations && !same_places(*candidate, *best)) {
              several = true;
            }
          }
    }
  }
  if (!best) {
    planned.reason = "no messages of this size were found";
  } else if (several) {
    planned.reason = "several layouts of NCCL fit the messages: their places are not proven; name the version";
  } else if (best->position_unclear) {
    planned.reason = "the sender's rank was not seen (no clear-to-send) and several fit";
  }
  if (!planned.reason.empty()) return std::nullopt;
  return best;
}

constexpr NcclStep kForeignStep{PlannedFlow::kForeign, 0, 0, {}};

// Edges that share an address are of one job: rings that do not touch are of different ones. Edges of one pair of
// addresses, but of several communicators, are of different ones too.
std::map<const Edge*, std::uint32_t> groups_of(const Edges& edges, const std::set<const Edge*>& used) {
  std::map<const Edge*, std::uint32_t> groups;
  std::map<std::pair<IpAddress, std::uint64_t>, std::uint32_t> of_address;
  std::uint32_t count = 0;
  for (const auto& [ends, edge] : edges) {
    if (!used.contains(&edge)) continue;
    const std::pair source(std::get<0>(ends), edge.comm), target(std::get<1>(ends), edge.comm);
    const auto left = of_address.find(source), right = of_address.find(target);
    std::uint32_t group = left != of_address.end() ? left->second : right != of_address.end() ? right->second : count++;
    if (right != of_address.end() && right->second != group) {  // two rings grow together
      const std::uint32_t other = right->second;
      for (auto& [address, of] : of_address) of = of == other ? group : of;
      for (auto& [known, of] : groups) of = of == other ? group : of;
    }
    of_address[source] = of_address[target] = group;
    groups[&edge] = group;
  }
  return groups;
}

constexpr std::uint32_t kSeveral = ~std::uint32_t{0};

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

// Whether the n-th operations of all connections of one job are the same one. No rank ends an operation before every
// rank has begun it on every channel, so on the wire all begin the n-th before any begins the next. Where the
// connections do not show equally many (the capture ends), the n-th must also overlap everywhere, and those that not
// all show are not proven. Returns how many are.
std::uint64_t operations_that_line_up(const NcclSurvey& survey, const NcclTrafficPlan& plan, std::uint32_t bucket,
                                      std::uint32_t group) {
  constexpr std::uint64_t kNever = ~std::uint64_t{0};
  struct Spread {
    std::uint64_t first_begin = kNever, last_begin = 0, first_end = kNever;
  };
  std::map<std::uint64_t, Spread> operations;
  std::set<std::uint64_t> counts;
  const std::uint32_t channels = plan.buckets[bucket].schedule->op().channels;
  for (std::size_t f = 0; f < plan.flows.size(); ++f) {
    const PlannedFlow& flow = plan.flows[f];
    if (flow.kind != PlannedFlow::Kind::kRing || flow.group != group || flow.channel >= channels) continue;
    std::uint64_t count = 0;
    std::map<std::uint64_t, std::uint64_t> ends;
    const auto end_with = [&](const NcclStep& step, std::uint64_t frame) {
      count = std::max(count, step.occurrence);
      std::uint64_t& end = ends[step.occurrence];
      end = std::max(end, frame);
    };
    for (std::size_t number = 0; number < flow.steps.size(); ++number) {
      const NcclStep& step = flow.steps[number];
      const NcclItem* const item = survey.flows()[f]->item_of(number);
      if (step.pattern != bucket || item == nullptr) continue;
      end_with(step, item->frame);
      if (step.index != 0) continue;
      Spread& spread = operations[step.occurrence];
      spread.first_begin = std::min(spread.first_begin, item->frame);
      spread.last_begin = std::max(spread.last_begin, item->frame);
    }
    for (const NcclStep& step : flow.lost_steps)
      if (step.pattern == bucket) count = std::max(count, step.occurrence);
    for (const auto& [occurrence, end] : ends)
      operations[occurrence].first_end = std::min(operations[occurrence].first_end, end);
    if (flow.reason.empty()) counts.insert(count);
  }
  std::uint64_t begun = 0;
  for (const auto& [occurrence, spread] : operations) {
    if (spread.first_begin == kNever) continue;
    if (spread.first_begin < begun) return 0;
    if (counts.size() > 1 && occurrence <= *counts.begin() && spread.last_begin > spread.first_end) return 0;
    begun = std::max(begun, spread.last_begin);
  }
  return counts.size() > 1 ? *counts.begin() : kNever;
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

NcclTrafficPlan plan_nccl_traffic(const NcclSurvey& survey, std::span<const NcclBucket> buckets,
                                  const NcclPlanConfig& config) {
  NcclTrafficPlan plan;
  OperationCounts counts;
  plan.flows.resize(survey.flows().size());
  const Edges edges = edges_of(survey);
  std::set<const Edge*> used;
  for (const NcclBucket& bucket : buckets) {
    PlannedBucket& planned = plan.buckets.emplace_back();
    planned.bucket = bucket;
    const auto candidate = find_schedule(survey, edges, config, counts, planned);
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
      used.insert(edge);
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

  for (const auto& [edge, group] : groups_of(edges, used))
    for (const SurveyedFlow* flow : edge->flows) plan.flows[flow->identity().flow].group = group;

  std::map<IpAddress, std::pair<std::uint32_t, std::uint32_t>> positions;  // and groups
  for (const auto& flow : survey.flows()) {
    PlannedFlow& planned = plan.flows[flow->identity().flow];
    if (planned.kind != PlannedFlow::Kind::kRing) continue;
    const std::pair here(planned.position, planned.group);
    const auto [at, added] = positions.emplace(flow->identity().source, here);
    if (!added && at->second != here) at->second.second = kSeveral;
    std::vector<NcclPattern> patterns;
    for (std::uint32_t b = 0; b < plan.buckets.size(); ++b) {
      const auto& schedule = plan.buckets[b].schedule;
      if (schedule && planned.channel < schedule->op().channels)
        patterns.push_back(NcclPattern::ring(b, *schedule, planned.position, planned.channel));
    }
    parse_flow(*flow, std::move(patterns), planned);
  }
  std::set<std::uint32_t> group_numbers;
  for (const PlannedFlow& flow : plan.flows)
    if (flow.kind == PlannedFlow::Kind::kRing) group_numbers.insert(flow.group);
  for (std::uint32_t b = 0; b < plan.buckets.size(); ++b) {
    if (!plan.buckets[b].schedule) continue;
    for (const std::uint32_t group : group_numbers) {
      const std::uint64_t proven = operations_that_line_up(survey, plan, b, group);
      if (proven == 0)
        plan.buckets[b].reason = "operations with messages of the same lengths are between them: not told apart";
      for (PlannedFlow& flow : plan.flows) {
        if (flow.kind != PlannedFlow::Kind::kRing || flow.group != group) continue;
        for (NcclStep& step : flow.steps)
          if (step.pattern == b && step.occurrence > proven) step.pattern = PlannedFlow::kForeign;
        std::erase_if(flow.lost_steps,
                      [&](const NcclStep& step) { return step.pattern == b && step.occurrence > proven; });
      }
    }
  }
  if (!config.completing_send) return plan;
  for (const auto& flow : survey.flows()) {
    PlannedFlow& planned = plan.flows[flow->identity().flow];
    const auto position = positions.find(flow->identity().source);
    if (planned.kind == PlannedFlow::Kind::kRing || flow->role() != NcclRole::kData || position == positions.end() ||
        position->second.second == kSeveral)
      continue;
    std::vector<NcclPattern> patterns;
    for (std::uint32_t b = 0; b < plan.buckets.size(); ++b) {
      if (!plan.buckets[b].schedule) continue;
      std::uint64_t elements = 0;
      for (const Interval& range : plan.unsent(b, position->second.first)) elements += range.length();
      patterns.push_back(NcclPattern::send(b, elements * plan.buckets[b].bucket.element_bytes));
    }
    PlannedFlow send;
    send.kind = PlannedFlow::Kind::kSend;
    send.position = position->second.first;
    send.group = position->second.second;
    parse_flow(*flow, std::move(patterns), send);
    const bool any = std::any_of(send.steps.begin(), send.steps.end(),
                                 [](const NcclStep& step) { return step.pattern != PlannedFlow::kForeign; });
    if (any || !send.reason.empty()) planned = std::move(send);
  }
  return plan;
}

}  // namespace gradtap::dataplane
