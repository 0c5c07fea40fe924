#include "actors/fetcher.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "actors/side_batch.h"
#include "common/charged.h"
#include "recovery/full_version.h"
#include "replica/json_fields.h"

namespace gradtap::actors {

namespace {

constexpr std::chrono::milliseconds kFeedDeadline{10'000};
constexpr std::size_t kEntriesPerFeed = 512;
constexpr std::size_t kBytesPerFeed = std::size_t{8} << 20;

struct FetcherState {
  static inline const char* name = "fetcher";
  FetcherOptions options;
  WiringPtr wiring;
  std::uint64_t gradients = 0;
  std::uint64_t gradient_bytes = 0;
  std::uint64_t versions = 0;
  std::uint64_t version_bytes = 0;
  std::uint64_t side_entries = 0;
  std::uint64_t failures = 0;
  std::string last_error;
};

using FetcherPointer = FetcherActor::stateful_pointer<FetcherState>;

// Co-owners first: theirs is a log; then everybody else, whose taps may have kept it.
std::vector<MemberIndex> sources(const FetcherState& state, ShardId shard) {
  const ClusterState& cluster = *state.options.cluster;
  std::vector<MemberIndex> list;
  const auto owners = state.wiring && state.wiring->plan ? cluster.owners(state.wiring->plan->shards.shards().size())
                                                         : std::vector<std::vector<MemberIndex>>();
  for (const MemberIndex owner : shard < owners.size() ? owners[shard] : std::vector<MemberIndex>())
    if (owner != cluster.self() && cluster.live(owner)) list.push_back(owner);
  for (const MemberIndex peer : cluster.live_peers())
    if (std::find(list.begin(), list.end(), peer) == list.end()) list.push_back(peer);
  return list;
}

Error nobody(const std::string& where) {
  return {ErrorCode::kStepUnavailable, "no live peer has it", where, {}, {}, "start the nodes that are down"};
}

void remember(FetcherState& state, const Error& error) {
  ++state.failures;
  state.last_error = error.text();
}

PulledGradientPtr pull(FetcherState& state, LineageId lineage, ShardId shard, StepNumber step) {
  auto pulled = std::make_shared<PulledGradient>();
  pulled->shard = shard;
  pulled->step = step;
  pulled->outcome = {false, nobody(fmt::format("shard {} step {}", shard, step))};
  for (const MemberIndex source : sources(state, shard)) {
    link::BulkRequest request;
    request.kind = link::BulkKind::kGradient;
    request.job = job_id(state.options.job_name);
    request.lineage = lineage;
    request.shard = shard;
    request.step = step;
    auto answer = state.options.link->call(state.options.cluster->name(source), request, state.options.call_timeout_ms);
    if (!answer) {
      // One that could not be asked may have it: that is no proof that nobody has.
      if (answer.error().code != ErrorCode::kStepUnavailable) {
        remember(state, answer.error());
        pulled->outcome = {false, answer.error()};
      }
      continue;
    }
    Sha256 digest{};
    if (!answer->meta.empty() && from_hex(answer->meta, digest.data(), digest.size())) pulled->digest = digest;
    pulled->bytes = std::move(answer->bytes);
    pulled->memory = std::move(answer->memory);
    pulled->source = state.options.cluster->name(source);
    pulled->outcome = {};
    ++state.gradients;
    state.gradient_bytes += pulled->bytes.size();
    return pulled;
  }
  return pulled;
}

// One full version in memory, as a source to rebuild from.
class OneVersion final : public recovery::ShardSource {
 public:
  OneVersion(StepNumber step, std::vector<recovery::FullKind> kinds) : step_(step), kinds_(std::move(kinds)) {}
  [[nodiscard]] Result<std::vector<StepNumber>> full_steps(ShardId) const override { return std::vector{step_}; }
  [[nodiscard]] Result<std::vector<recovery::FullKind>> full_version(ShardId, StepNumber) const override {
    return kinds_;
  }
  [[nodiscard]] Result<recovery::SourceBytes> log(ShardId, StepNumber) const override { return none(); }
  [[nodiscard]] Result<std::vector<std::uint8_t>> step_message(StepNumber) const override { return none(); }
  [[nodiscard]] Result<std::optional<Sha256>> state_digest(ShardId, StepNumber) const override {
    return std::optional<Sha256>();
  }

 private:
  static std::unexpected<Error> none() { return fail(ErrorCode::kStepUnavailable, "only a full version was sent"); }
  StepNumber step_;
  std::vector<recovery::FullKind> kinds_;
};

Result<replica::Shard> read_version(const JobPlan& plan, ShardId shard, StepNumber at_least,
                                    const link::NodeLink::Answer& answer) {
  const std::string where = fmt::format("full version of shard {}", shard);
  GRADTAP_LET(meta, replica::parse_json_object(answer.meta, where));
  GRADTAP_LET(step, replica::json_uint(meta, "step", where, std::uint64_t{1} << 62));
  GRADTAP_LET(digest_text, replica::json_text(meta, "digest", where));
  GRADTAP_LET(list, replica::json_array(meta, "kinds", where, 256));
  Sha256 digest{};
  if (step < at_least || !from_hex(digest_text, digest.data(), digest.size()))
    return fail(ErrorCode::kRequestMalformed, "a peer's full version is not what was asked for", where);
  std::vector<recovery::FullKind> kinds;
  std::size_t at = 0;
  for (const auto& entry : *list) {
    if (!entry.is_array() || entry.size() != 2)
      return fail(ErrorCode::kRequestMalformed, "a peer's full version has no list of kinds", where);
    GRADTAP_LET(kind, replica::json_uint_value(entry[0], where, 255));
    GRADTAP_LET(bytes, replica::json_uint_value(entry[1], where, answer.bytes.size()));
    if (bytes > answer.bytes.size() - at)
      return fail(ErrorCode::kRequestMalformed, "a peer's full version is shorter than it says", where);
    kinds.push_back({static_cast<std::uint8_t>(kind), {ByteSpan(answer.bytes).subspan(at, bytes), nullptr}});
    at += bytes;
  }
  GRADTAP_LET(rebuilt, recovery::read_full_version(OneVersion(step, std::move(kinds)), plan, shard, step));
  const Sha256 actual = rebuilt.digest().sha;
  if (actual != digest)
    return fail(ErrorCode::kDigestMismatch, "a full version changed on its way", where, to_hex(digest), to_hex(actual),
                "it is asked for again");
  return std::move(rebuilt);
}

PulledVersionPtr pull_version(FetcherState& state, ShardId shard, StepNumber at_least) {
  auto pulled = std::make_shared<PulledVersion>();
  pulled->outcome = {false, nobody(fmt::format("full version of shard {} at step {} or newer", shard, at_least))};
  if (!state.wiring || !state.wiring->plan || shard >= state.wiring->plan->shards.shards().size()) return pulled;
  const JobPlanPtr plan = state.wiring->plan;
  auto lease = state.options.memory->lease(MemoryAccount::kShards, recovery::state_bytes(*plan, shard),
                                           "a shard that comes from a peer");
  if (!lease) {
    remember(state, lease.error());
    pulled->outcome = {false, lease.error()};
    return pulled;
  }
  for (const MemberIndex source : sources(state, shard)) {
    link::BulkRequest request;
    request.kind = link::BulkKind::kFullVersion;
    request.job = plan->job;
    request.lineage = plan->lineage;
    request.shard = shard;
    request.argument = at_least;
    auto answer =
        state.options.link->call(state.options.cluster->name(source), request, 5 * state.options.call_timeout_ms);
    if (!answer) {
      if (answer.error().code != ErrorCode::kStepUnavailable) remember(state, answer.error());
      continue;
    }
    auto read = read_version(*plan, shard, at_least, *answer);
    if (!read) {
      remember(state, read.error());
      pulled->outcome = {false, read.error()};
      continue;
    }
    pulled->shard = charged(std::move(*read), std::move(*lease));
    pulled->source = state.options.cluster->name(source);
    pulled->outcome = {};
    ++state.versions;
    state.version_bytes += answer->bytes.size();
    return pulled;
  }
  return pulled;
}

Result<std::vector<storage::SideEntry>> scan(FetcherState& state, MemberIndex source, StepNumber after) {
  link::BulkRequest request;
  request.kind = link::BulkKind::kSideScan;
  request.job = job_id(state.options.job_name);
  request.step = after;
  auto answer = state.options.link->call(state.options.cluster->name(source), request, state.options.call_timeout_ms);
  if (!answer) return std::unexpected(answer.error());
  return decode_side_batch(answer->bytes);
}

Outcome sync(FetcherPointer self, MemberIndex source, StepNumber after) {
  FetcherState& state = self->state;
  if (!state.wiring || !state.wiring->feed || source >= state.options.cluster->size())
    return {false, {ErrorCode::kNodeBusy, "the node is starting", {}, {}, {}, {}}};
  auto entries = scan(state, source, after);
  if (!entries) {
    remember(state, entries.error());
    return {false, entries.error()};
  }
  Outcome outcome;
  for (std::size_t at = 0; at < entries->size() && outcome.ok;) {
    auto part = std::make_shared<SideEntries>();
    std::size_t bytes = 0;
    for (; at < entries->size() && part->entries.size() < kEntriesPerFeed && bytes < kBytesPerFeed; ++at) {
      bytes += (*entries)[at].bytes.size();
      part->entries.push_back(std::move((*entries)[at]));
    }
    state.side_entries += part->entries.size();
    caf::scoped_actor waiter{self->system()};
    waiter->request(state.wiring->feed, kFeedDeadline, side_atom_v, SideEntriesPtr(std::move(part)))
        .receive([&](const Outcome& got) { outcome = got; },
                 [&](const caf::error& error) {
                   outcome = {false,
                              {ErrorCode::kTimeout,
                               "side entries were not stored in time",
                               {},
                               {},
                               self->system().render(error),
                               {}}};
                 });
  }
  if (!outcome.ok) remember(state, outcome.error);
  return outcome;
}

FetcherActor::behavior_type fetcher(FetcherPointer self, const FetcherOptions& options) {
  self->state.options = options;
  return {
      [self](pull_atom, std::uint32_t lineage, std::uint32_t shard, std::uint64_t step) {
        return pull(self->state, lineage, shard, step);
      },
      [self](version_atom, std::uint32_t shard, std::uint64_t at_least) {
        return pull_version(self->state, shard, at_least);
      },
      [self](sync_atom, std::uint64_t source, std::uint64_t after) { return sync(self, source, after); },
      [self](wire_atom, const WiringPtr& wiring) { self->state.wiring = wiring; },
      [self](status_atom) {
        const FetcherState& state = self->state;
        const nlohmann::json body = {{"gradients", state.gradients},       {"gradient_bytes", state.gradient_bytes},
                                     {"versions", state.versions},         {"version_bytes", state.version_bytes},
                                     {"side_entries", state.side_entries}, {"failures", state.failures},
                                     {"last_error", state.last_error}};
        return ActorStatus{FetcherState::name, body.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace)};
      },
  };
}

}  // namespace

FetcherActor spawn_fetcher(caf::actor_system& system, FetcherOptions options) {
  return system.spawn<caf::detached>(fetcher, std::move(options));
}

}  // namespace gradtap::actors
