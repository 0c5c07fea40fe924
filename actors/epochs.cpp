#include "actors/epochs.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "actors/drain_check.h"
#include "actors/member_command.h"

namespace gradtap::actors {

namespace {

using nlohmann::json;

constexpr std::chrono::milliseconds kCoordinatorDeadline{1000};
constexpr int kRacesMax = 32;

struct EpochState {
  static inline const char* name = "epochs";
  EpochOptions options;
  WiringPtr wiring;
  std::uint64_t reads = 0;
  std::uint64_t proposals = 0;
  std::uint64_t races_lost = 0;
  std::uint64_t failures = 0;
  bool failing = false;  // the last look at the store
  std::string last_error;
};

using EpochPointer = EpochActor::stateful_pointer<EpochState>;

void remember(EpochPointer self, const Error& error) {
  EpochState& state = self->state;
  ++state.failures;
  state.last_error = error.text();
  if (std::exchange(state.failing, true)) return;
  state.options.events->add(LogLevel::kWarn, "epochs cannot be read or made: members stay as they are",
                            {{"error", error.text()}});
}

void take(EpochPointer self, storage::StoredEpoch&& stored) {
  EpochState& state = self->state;
  const bool newer = stored.record.number > state.options.cluster->epoch_number();
  if (!newer) {
    state.failing = false;
    return;
  }
  const auto epoch = std::make_shared<const storage::StoredEpoch>(std::move(stored));
  state.options.adopt(epoch);
  if (state.options.cluster->epoch_number() < epoch->record.number)
    return remember(self, {ErrorCode::kObjectForeign, "the newest epoch does not follow the one in force",
                           fmt::format("epoch {}", epoch->record.number), "the same members at the same places",
                           fmt::format("epoch {} stays in force", state.options.cluster->epoch_number()),
                           "find out who wrote it; restart this node when it is right"});
  state.options.events->add(
      LogLevel::kInfo, "an epoch is in force",
      {{"epoch", epoch->record.number}, {"cause", epoch->record.cause}, {"proposer", epoch->record.proposer}});
  state.failing = false;
}

void look(EpochPointer self) {
  EpochState& state = self->state;
  ++state.reads;
  auto newest = storage::newest_epoch(*state.options.objects);
  if (!newest) return remember(self, newest.error());
  if (*newest) take(self, std::move(**newest));
}

std::size_t shards_of(const EpochState& state) {
  if (state.wiring && state.wiring->plan) return state.wiring->plan->shards.shards().size();
  return state.options.cluster->epoch()->record.owners.size();
}

// Nothing: the cluster has a job, and this node cannot say where its shards are. That is not the same as no shards.
std::optional<PlacementView> view_of(EpochPointer self) {
  EpochState& state = self->state;
  std::optional<PlacementView> view;
  if (!state.wiring || !state.wiring->coordinator) {
    if (state.options.cluster->epoch()->record.owners.empty()) view.emplace();
    return view;
  }
  caf::scoped_actor waiter{self->system()};
  waiter->request(state.wiring->coordinator, kCoordinatorDeadline, placement_atom_v)
      .receive([&](const PlacementViewPtr& got) { view = *got; }, [](const caf::error&) {});
  return view;
}

DrainCheck check_of(EpochPointer self, MemberIndex member) {
  const auto view = view_of(self);
  DrainCheck check = check_drain(*self->state.options.cluster, view.value_or(PlacementView{}), member);
  if (!view) check.reasons.emplace_back("this node cannot say now where the shards are");
  return check;
}

std::string text_of(const json& body) {
  return body.dump(-1, ' ', false, json::error_handler_t::replace);
}

json check_json(const DrainCheck& check) {
  return {{"safe", check.safe()},           {"reasons", check.reasons},           {"held_shards", check.held_shards},
          {"held_bytes", check.held_bytes}, {"short_shards", check.short_shards}, {"is_home", check.is_home}};
}

// What the newest epoch does not forbid may still lose what only this member has.
Status allowed(EpochPointer self, const MemberCommand& command) {
  if (command.action != MemberAction::kRetire && command.action != MemberAction::kRemove) return {};
  const ClusterState& cluster = *self->state.options.cluster;
  const auto member = cluster.index_of(command.name);
  if (!member) return {};
  if (command.action == MemberAction::kRetire) {
    const auto view = view_of(self);
    // What it holds counts when it has said so itself; a dead one cannot, but others must have everything.
    const bool heard = view && *member < view->heard.size() && view->heard[*member];
    if (!view || (cluster.live(*member) && !view->shards.empty() && !heard))
      return fail(ErrorCode::kMemberUnsafe, "it is not known now which shards the member holds", command.name,
                  "a report of its own", "none", "try again, or ask another member");
    std::size_t held = 0;
    std::string waits;
    for (const ShardView& shard : view->shards)
      for (const HolderView& holder : shard.holders)
        if (holder.member == *member && holder.version) {
          ++held;
          waits = holder.waits_for;
        }
    if (held > 0)
      return fail(ErrorCode::kMemberUnsafe, "the member still holds shards", command.name, "none",
                  fmt::format("{} ({})", held, waits), "wait for the hand-off: `gradtap nodes drain` does");
    if (const std::size_t alone = check_drain(cluster, *view, *member).alone_shards; alone > 0)
      return fail(ErrorCode::kMemberUnsafe, "shards have no other live owner that keeps up", command.name, "none",
                  std::to_string(alone), "start their owners first");
    if (cluster.home() == *member)
      return fail(ErrorCode::kMemberUnsafe, "the member is still the home of the job", command.name,
                  "another ready member", "none", "wait until another member is ready");
    return {};
  }
  const DrainCheck check = check_of(self, *member);
  if (check.safe() || command.force) return {};
  return fail(ErrorCode::kMemberUnsafe, "something would be lost with this member", command.name,
              "nothing that only it has", fmt::format("{}", fmt::join(check.reasons, "; ")),
              "drain it, or repeat with --force and accept the loss");
}

Result<json> carry_out(EpochPointer self, const MemberCommand& command) {
  EpochState& state = self->state;
  storage::ObjectStore& objects = *state.options.objects;
  const ClusterState& cluster = *state.options.cluster;
  for (int race = 0; race < kRacesMax; ++race) {
    auto newest = storage::newest_epoch(objects);
    if (!newest) return std::unexpected(newest.error());
    if (!*newest) return fail(ErrorCode::kObjectMissing, "the cluster has no epoch yet", "cluster/epoch");
    const schema::EpochRecord now = (*newest)->record;
    const Sha256 digest = (*newest)->digest;
    take(self, std::move(**newest));
    const std::size_t shards = shards_of(state);
    auto next = next_epoch(now, command, shards);
    json answer = {{"epoch", now.number}, {"changed", next && next->has_value()}, {"moves", 0}};
    if (const auto member = cluster.index_of(command.name)) answer["check"] = check_json(check_of(self, *member));
    if (!next) {
      // Whether a member may be lost is another question than whether it may be drained.
      if (!command.check || !answer.contains("check")) return std::unexpected(next.error());
      answer["refused"] = next.error().text();
      return answer;
    }
    if (*next) {
      const ShardPlacement before =
          now.owners.size() == shards ? now.owners : place_shards(now.members, now.replicas, shards, {});
      answer["moves"] = shards_moved(before, (*next)->owners);
      answer["shards_in_one_domain"] = shards_in_one_domain((*next)->members, (*next)->owners);
    }
    if (command.check || !*next) return answer;
    GRADTAP_TRY(allowed(self, command));
    schema::EpochRecord& record = **next;
    record.previous = digest;
    record.proposer = cluster.name(cluster.self());
    record.created_wall_ms = state.options.clock->wall_ms();
    ++state.proposals;
    const auto created = storage::create_epoch(objects, record);
    if (!created) return std::unexpected(created.error());
    if (!*created) {
      ++state.races_lost;
      continue;
    }
    if (state.options.kill_points != nullptr) state.options.kill_points->reached(storage::kEpochAfterCreate);
    answer["epoch"] = record.number;
    look(self);
    return answer;
  }
  return fail(ErrorCode::kLimitReached, "other proposers were always faster", "cluster/epoch",
              fmt::format("at most {} races", kRacesMax), {}, "try again");
}

// A lineage of another number of shards: the map that everybody computes is stored, by the home alone.
void store_map(EpochPointer self) {
  EpochState& state = self->state;
  const ClusterState& cluster = *state.options.cluster;
  if (!state.wiring || !state.wiring->plan || !cluster.is_home()) return;
  const EpochPtr now = cluster.epoch();
  const std::size_t shards = state.wiring->plan->shards.shards().size();
  if (now->record.owners.size() == shards) return;
  schema::EpochRecord next = with_shards(now->record, shards);
  next.previous = now->digest;
  next.proposer = cluster.name(cluster.self());
  next.created_wall_ms = state.options.clock->wall_ms();
  ++state.proposals;
  const auto created = storage::create_epoch(*state.options.objects, next);
  if (!created) return remember(self, created.error());
  state.races_lost += *created ? 0 : 1;
  look(self);
}

HttpAnswer command(EpochPointer self, const std::string& text) {
  const auto parsed = parse_member_command(text);
  if (!parsed) return http_error(parsed.error(), 422);
  auto done = carry_out(self, *parsed);
  if (done) {
    if (!parsed->check && (*done)["changed"] == true)
      self->state.options.events->add(LogLevel::kInfo, "a command for the members was carried out",
                                      {{"action", member_action_name(parsed->action)}, {"member", parsed->name}});
    return {200, text_of(*done)};
  }
  const Error& error = done.error();
  if (error.code == ErrorCode::kObjectStore || error.code == ErrorCode::kStoreFull) {
    remember(self, error);
    return http_error(error, 503);
  }
  return http_error(error, 409);
}

EpochActor::behavior_type epochs(EpochPointer self, const EpochOptions& options) {
  self->state.options = options;
  self->send(self, tick_atom_v);
  return {
      [self](tick_atom) {
        look(self);
        store_map(self);
        self->delayed_send(self, std::chrono::milliseconds(self->state.options.look_every_ms), tick_atom_v);
      },
      [self](epoch_atom, std::uint64_t number) {
        if (number > self->state.options.cluster->epoch_number()) look(self);
      },
      [self](nodes_atom, const std::string& text) { return command(self, text); },
      [self](wire_atom, const WiringPtr& wiring) { self->state.wiring = wiring; },
      [self](status_atom) {
        const EpochState& state = self->state;
        const json body = {{"epoch", state.options.cluster->epoch_number()},
                           {"reads", state.reads},
                           {"proposals", state.proposals},
                           {"races_lost", state.races_lost},
                           {"failures", state.failures},
                           {"failing", state.failing},
                           {"last_error", state.last_error}};
        return ActorStatus{EpochState::name, text_of(body)};
      },
  };
}

}  // namespace

EpochActor spawn_epochs(caf::actor_system& system, EpochOptions options) {
  return system.spawn<caf::detached>(epochs, std::move(options));
}

Result<EpochPtr> join_epoch(storage::ObjectStore& objects, const ClusterConfig& config, const std::string& node,
                            const Clock& clock) {
  for (int race = 0; race < kRacesMax; ++race) {
    auto newest = storage::newest_epoch(objects);
    if (!newest) return std::unexpected(newest.error());
    if (*newest) {
      const schema::EpochRecord& record = (*newest)->record;
      const auto member = std::find_if(record.members.begin(), record.members.end(),
                                       [&](const schema::EpochMember& each) { return each.name == node; });
      if (member == record.members.end() || member->state == schema::MemberState::kOut)
        return fail(ErrorCode::kNotAMember, "this node is not a member of the cluster", node,
                    fmt::format("a member of epoch {}", record.number),
                    member == record.members.end() ? "another name" : "a member that left",
                    fmt::format("run `gradtap nodes add {} ...` on any member", node));
      return std::make_shared<const storage::StoredEpoch>(std::move(**newest));
    }
    schema::EpochRecord first = first_epoch(config);
    first.proposer = node;
    first.created_wall_ms = clock.wall_ms();
    const auto created = storage::create_epoch(objects, first);
    if (!created) return std::unexpected(created.error());
  }
  return fail(ErrorCode::kLimitReached, "the first epoch can be neither made nor read", "cluster/epoch/1");
}

}  // namespace gradtap::actors
