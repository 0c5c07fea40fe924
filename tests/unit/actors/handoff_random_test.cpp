// Hand-off of shards as a random model: coordinations of four nodes with disks that the test knows, epochs that reach
// each node in its own time, reports that are late or lost, nodes that die and come back with or without their disk.
#include <deque>
#include <map>
#include <memory>
#include <set>

#include <doctest/doctest.h>
#include <fmt/format.h>

#include "actors/coordination.h"
#include "common/random.h"
#include "tests/unit/actors/job_fixture.h"

namespace gradtap::actors {
namespace {

using schema::EpochMember;
using schema::MemberState;

constexpr MemberIndex kNodes = 4;
constexpr ShardId kShards = 3;

Sha256 state_digest(ShardId shard, StepNumber step) {
  return sha256(fmt::format("shard {} step {}", shard, step));
}

struct Held {
  StepNumber version = 0;
  StepNumber from = 0;
};

struct RandomNode {
  std::unique_ptr<Coordination> core;  // empty: the process is dead
  std::map<ShardId, Held> memory;      // what its owners have applied
  std::map<ShardId, Held> disk;
  std::vector<PeerReport::Digest> fresh;
  StepNumber told = 0;  // step messages it was given
  std::map<MemberIndex, std::deque<PeerReport>> inbox;
  std::set<MemberIndex> connected;  // peers that it takes for live
};

class Cluster {
 public:
  Cluster(std::uint64_t seed, std::size_t replicas) : random_(seed), replicas_(replicas) {
    for (MemberIndex i = 0; i < kNodes; ++i) {
      EpochMember member;
      member.name = fmt::format("tap{}", i);
      member.domain = member.name;
      member.state = i < 3 ? MemberState::kIn : MemberState::kOut;
      members_.push_back(member);
    }
    new_epoch();
    for (MemberIndex i = 0; i < kNodes; ++i) {
      if (members_[i].state == MemberState::kOut) continue;
      for (ShardId shard = 0; shard < kShards; ++shard)
        for (const std::uint32_t owner : map_[shard])
          if (owner == i) nodes_[i].disk[shard] = {};
      start(i);
    }
  }

  std::size_t released = 0, jumps = 0, wiped = 0, epochs = 0, kept_back = 0;

  void event() {
    clock_.advance_ms(20);
    const MemberIndex i = random_.below(kNodes);
    RandomNode& node = nodes_[i];
    switch (random_.below(16)) {
      case 0:
        change_members();
        break;
      case 1:
        if (node.core && random_.below(4) == 0) die(i, random_.below(2) == 0);
        break;
      case 2:
        if (!node.core && members_[i].state != MemberState::kOut) start(i);
        break;
      case 3:
        connect(i, random_.below(kNodes), random_.below(4) != 0);
        break;
      case 4:
        train();
        break;
      case 5:
        publish(i);
        break;
      case 6:
        adopt(i);
        break;
      case 7:
      case 8:
        report(i, random_.below(4) == 0);
        break;
      case 9:
      case 10:
      case 11:
        hear(i, random_.below(kNodes));
        break;
      case 12:
        flush(i);
        break;
      default:
        work(i);
    }
    retire_drained();
    check();
  }

  // Everybody is there and nothing is lost: each shard comes to lie where the newest epoch says, and nowhere else.
  void settle() {
    for (MemberIndex i = 0; i < kNodes; ++i) {
      if (!nodes_[i].core && members_[i].state != MemberState::kOut) start(i);
      adopt(i);
    }
    int round = 0;
    for (; round < 400 && !settled(); ++round) {
      clock_.advance_ms(100);
      if (round % 4 == 0) train();
      for (MemberIndex i = 0; i < kNodes; ++i) {
        for (MemberIndex other = 0; other < kNodes; ++other) connect(i, other, true);
        give_messages(i);
        for (int many = 0; many < 6; ++many) work(i);
        flush(i);
        publish(i);
        report(i, false);
      }
      for (MemberIndex i = 0; i < kNodes; ++i)
        for (MemberIndex from = 0; from < kNodes; ++from)
          while (hear(i, from)) {
          }
      retire_drained();
      for (MemberIndex i = 0; i < kNodes; ++i) adopt(i);
      check();
    }
    if (!settled()) FAIL(describe());
  }

 private:
  [[nodiscard]] bool member(MemberIndex i) const { return members_[i].state != MemberState::kOut; }
  [[nodiscard]] bool assigned(MemberIndex i, ShardId shard) const {
    return std::find(map_[shard].begin(), map_[shard].end(), i) != map_[shard].end();
  }
  [[nodiscard]] ClusterShape shape(MemberIndex i) const {
    ClusterShape shape;
    shape.self = i;
    for (const EpochMember& each : members_) {
      shape.names.push_back(each.name);
      shape.out.push_back(each.state == MemberState::kOut);
    }
    for (const auto& owners : map_) shape.owners.emplace_back(owners.begin(), owners.end());
    shape.epoch = epoch_;
    return shape;
  }
  [[nodiscard]] StepNumber best(ShardId shard, MemberIndex without = kNodes) const {
    StepNumber most = 0;
    for (MemberIndex i = 0; i < kNodes; ++i)
      if (const auto held = nodes_[i].disk.find(shard); i != without && held != nodes_[i].disk.end())
        most = std::max(most, held->second.version);
    return most;
  }
  [[nodiscard]] std::size_t copies(ShardId shard, MemberIndex without = kNodes) const {
    std::size_t count = 0;
    for (MemberIndex i = 0; i < kNodes; ++i) count += i != without && nodes_[i].disk.contains(shard) ? 1 : 0;
    return count;
  }

  void new_epoch() {
    map_ = place_shards(members_, replicas_, kShards, map_);
    ++epoch_;
    ++epochs;
  }
  void change_members() {
    const MemberIndex i = random_.below(kNodes);
    MemberState& state = members_[i].state;
    std::size_t in = 0;
    for (const EpochMember& each : members_) in += each.state == MemberState::kIn ? 1 : 0;
    if (state == MemberState::kIn) {
      if (in <= replicas_) return;
      state = MemberState::kDraining;
    } else {
      state = MemberState::kIn;
    }
    new_epoch();
  }
  void retire_drained() {
    for (MemberIndex i = 0; i < kNodes; ++i) {
      if (members_[i].state != MemberState::kDraining || !nodes_[i].disk.empty() || !nodes_[i].memory.empty()) continue;
      members_[i].state = MemberState::kOut;
      new_epoch();
      if (nodes_[i].core) die(i, false);
    }
  }
  void adopt(MemberIndex i) {
    RandomNode& node = nodes_[i];
    if (!node.core) return;
    node.core->on_epoch(shape(i));
    obey(i);
  }
  void start(MemberIndex i) {
    RandomNode& node = nodes_[i];
    node.memory = node.disk;
    std::map<ShardId, HeldShard> held;
    StepNumber version = ~StepNumber{0};
    for (const auto& [shard, has] : node.disk) {
      held[shard] = {has.version, has.from};
      version = std::min(version, has.version);
    }
    CoordinationConfig config;
    config.has_tap = false;
    node.core = std::make_unique<Coordination>(plan_, config, clock_, held.empty() ? 0 : version,
                                               dataplane::SizeTable(), shape(i), held);
    node.told = held.empty() ? 0 : version;
    node.fresh.clear();
    for (const auto& [shard, has] : node.disk) {
      applied(i, shard, has.version);
      node.core->on_durable({shard, has.version, {}});
    }
    obey(i);
  }
  // Everybody that is connected sees it before anything else happens when the disk is gone: a second loss at the same
  // moment is not what copies are for.
  void die(MemberIndex i, bool with_disk) {
    RandomNode& node = nodes_[i];
    if (with_disk)
      for (const auto& [shard, has] : node.disk)
        if (copies(shard, i) == 0 || best(shard, i) < has.version) with_disk = false;
    if (with_disk && !node.disk.empty()) ++wiped;
    if (with_disk) node.disk.clear();
    node.core.reset();
    node.memory.clear();
    node.inbox.clear();
    node.connected.clear();
    if (with_disk || random_.below(2) == 0)
      for (MemberIndex other = 0; other < kNodes; ++other) lose(other, i);
  }
  void lose(MemberIndex i, MemberIndex other) {
    RandomNode& node = nodes_[i];
    node.inbox[other].clear();
    if (node.connected.erase(other) > 0 && node.core) {
      node.core->on_live(other, false);
      obey(i);
    }
  }
  void connect(MemberIndex i, MemberIndex other, bool live) {
    RandomNode& node = nodes_[i];
    if (i == other || !node.core) return;
    if (!live || !nodes_[other].core) return lose(i, other);
    if (!node.connected.insert(other).second) return;
    node.inbox[other].clear();
    node.core->on_live(other, true);
    obey(i);
  }
  void train() {
    ++training_;
    for (MemberIndex i = 0; i < kNodes; ++i)
      if (random_.below(4) != 0) give_messages(i);
  }
  void give_messages(MemberIndex i) {
    RandomNode& node = nodes_[i];
    if (!node.core) return;
    while (node.told < training_) {
      auto message = std::make_shared<replica::StepMessage>();
      message->seq = message->step = ++node.told;
      message->scalars = test::scalars_of(*plan_, message->step);
      message->synced_backwards = 1;
      node.core->on_step(message);
      obey(i);
    }
  }
  void publish(MemberIndex i) {
    RandomNode& node = nodes_[i];
    if (!node.core) return;
    const auto step = node.core->progress().publishable();
    if (!step || *step <= published_) return;
    published_ = *step;
    node.core->on_published(published_, {});
    obey(i);
  }
  void report(MemberIndex i, bool lost) {
    RandomNode& node = nodes_[i];
    if (!node.core) return;
    PeerReport report;
    report.member = i;
    report.training = node.core->training();
    report.bound = node.core->bound();
    report.published = node.core->published();
    report.epoch = node.core->shape().epoch;
    for (ShardId shard = 0; shard < kShards; ++shard)
      if (const ShardHolder* own = node.core->progress().holder(shard, i); own != nullptr && own->progress.known)
        report.shards.push_back({shard, own->progress.version, own->progress.durable, own->progress.from});
    report.digests = std::exchange(node.fresh, {});
    if (lost) return;
    for (MemberIndex other = 0; other < kNodes; ++other)
      if (nodes_[other].core && nodes_[other].connected.contains(i)) nodes_[other].inbox[i].push_back(report);
  }
  bool hear(MemberIndex i, MemberIndex from) {
    RandomNode& node = nodes_[i];
    auto& queue = node.inbox[from];
    if (!node.core || queue.empty()) return false;
    const PeerReport said = std::move(queue.front());
    queue.pop_front();
    node.core->on_peer(said);
    obey(i);
    return true;
  }
  void applied(MemberIndex i, ShardId shard, StepNumber step) {
    RandomNode& node = nodes_[i];
    node.fresh.push_back({shard, step, state_digest(shard, step)});
    node.core->on_applied({shard, step, state_digest(shard, step), {}});
  }
  void apply_next(MemberIndex i, ShardId shard, StepNumber step) {
    RandomNode& node = nodes_[i];
    const auto held = node.memory.find(shard);
    if (held == node.memory.end() || held->second.version + 1 != step || step > training_) return;
    if (held->second.version > node.disk[shard].version + 2) return;  // the keeper is behind
    held->second.version = step;
    applied(i, shard, step);
  }
  void work(MemberIndex i) {
    RandomNode& node = nodes_[i];
    if (!node.core) return;
    if (!node.memory.empty() && random_.below(3) != 0) {
      auto held = node.memory.begin();
      std::advance(held, random_.below(node.memory.size()));
      if (node.disk.contains(held->first)) apply_next(i, held->first, held->second.version + 1);
    }
    node.core->tick();
    obey(i);
  }
  void flush(MemberIndex i) {
    RandomNode& node = nodes_[i];
    if (!node.core) return;
    for (const auto& [shard, held] : std::map(node.memory)) {
      if (random_.below(3) == 0) continue;
      node.disk[shard] = held;
      node.core->on_durable({shard, held.version, {}});
    }
    obey(i);
  }

  void obey(MemberIndex i) {
    RandomNode& node = nodes_[i];
    if (obeying_) return;
    obeying_ = true;
    for (auto list = node.core->take_commands(); !list.empty(); list = node.core->take_commands())
      for (const Command& command : list) {
        if (const auto* ask = std::get_if<AskVersion>(&command)) take_version(i, *ask);
        if (const auto* fetch = std::get_if<FetchShard>(&command); fetch != nullptr && random_.below(4) != 0)
          apply_next(i, fetch->shard, fetch->go->scalars.step);
        if (const auto* fetch = std::get_if<FetchStep>(&command))
          for (ShardId shard = 0; shard < kShards; ++shard) apply_next(i, shard, fetch->go->scalars.step);
        if (const auto* release = std::get_if<ReleaseShard>(&command)) let_go(i, release->shard);
      }
    obeying_ = false;
  }
  void take_version(MemberIndex i, const AskVersion& ask) {
    RandomNode& node = nodes_[i];
    if (random_.below(3) == 0) return;
    const MemberIndex source = random_.below(kNodes);
    if (source == i || !nodes_[source].core || !node.connected.contains(source)) return;
    const auto held = nodes_[source].disk.find(ask.shard);
    if (held == nodes_[source].disk.end() || held->second.version < ask.at_least) return;
    if (node.memory.contains(ask.shard) && node.memory[ask.shard].version >= held->second.version) return;
    ++jumps;
    const StepNumber version = held->second.version;
    node.memory[ask.shard] = {version, version};
    node.core->on_jumped(ask.shard, version);
    applied(i, ask.shard, version);
  }
  void let_go(MemberIndex i, ShardId shard) {
    RandomNode& node = nodes_[i];
    CAPTURE(i);
    CAPTURE(shard);
    if (const auto held = node.disk.find(shard); held != node.disk.end()) {
      ++released;
      // Not by its own view: by what lies on the disks.
      REQUIRE(best(shard, i) >= held->second.version);
      REQUIRE(copies(shard, i) >= std::min(replicas_, in_sync_wanted(i, shard)));
    }
    node.disk.erase(shard);
    node.memory.erase(shard);
  }
  // So many members were assigned in the epoch in which the node is.
  [[nodiscard]] std::size_t in_sync_wanted(MemberIndex i, ShardId shard) const {
    return nodes_[i].core->shape().owners[shard].size();
  }

  void check() {
    for (ShardId shard = 0; shard < kShards; ++shard) {
      const StepNumber now = best(shard);
      REQUIRE(copies(shard) > 0);
      REQUIRE(now >= best_[shard]);
      best_[shard] = now;
      for (MemberIndex i = 0; i < kNodes; ++i) {
        if (!nodes_[i].core) continue;
        const Coordination& core = *nodes_[i].core;
        REQUIRE(core.durable() <= now);
        REQUIRE(core.published() <= core.durable());
        REQUIRE_FALSE(core.progress().diverged());
        const ShardHolder* own = core.progress().holder(shard, i);
        if (own != nullptr && !own->assigned && core.progress().kept_because(shard, i, core.published())) ++kept_back;
      }
    }
  }
  [[nodiscard]] bool settled() const {
    for (MemberIndex i = 0; i < kNodes; ++i) {
      const RandomNode& node = nodes_[i];
      if (members_[i].state == MemberState::kDraining) return false;
      if (member(i) != static_cast<bool>(node.core)) return false;
      for (ShardId shard = 0; shard < kShards; ++shard) {
        if (node.disk.contains(shard) != (member(i) && assigned(i, shard))) return false;
        if (!node.core) continue;
        for (const ShardHolder& holder : node.core->progress().holders(shard))
          if (node.core->progress().role(shard, holder) != HolderRole::kInSync) return false;
      }
    }
    return true;
  }
  [[nodiscard]] std::string describe() const {
    std::string text = fmt::format("training {} published {} epoch {}\n", training_, published_, epoch_);
    for (MemberIndex i = 0; i < kNodes; ++i) {
      const RandomNode& node = nodes_[i];
      text += fmt::format("tap{} state {} {}\n", i, static_cast<int>(members_[i].state), node.core ? "up" : "dead");
      if (!node.core) continue;
      for (ShardId shard = 0; shard < kShards; ++shard)
        for (const ShardHolder& holder : node.core->progress().holders(shard))
          text += fmt::format(
              "  shard {} tap{} {} version {} durable {} from {}: {}\n", shard, holder.member,
              holder_role_name(node.core->progress().role(shard, holder)), holder.progress.version,
              holder.progress.durable.value_or(0), holder.progress.from,
              node.core->progress().kept_because(shard, holder.member, node.core->published()).value_or("may go"));
    }
    return text;
  }

  SeededRandom random_;
  std::size_t replicas_;
  ManualClock clock_;
  JobPlanPtr plan_ = test::plan_of(test::three_shards(test::sgd()));
  std::vector<EpochMember> members_;
  ShardPlacement map_;
  std::uint64_t epoch_ = 0;
  RandomNode nodes_[kNodes];
  StepNumber training_ = 0;
  StepNumber published_ = 0;
  StepNumber best_[kShards] = {};
  bool obeying_ = false;
};

}  // namespace

TEST_CASE("whatever happens, no shard is given up that others do not have, and all ends where it belongs") {
  std::size_t released = 0, jumps = 0, wiped = 0, epochs = 0, kept_back = 0;
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    CAPTURE(seed);
    Cluster cluster(seed, 1 + seed % 2);
    for (int event = 0; event < 700; ++event) {
      CAPTURE(event);
      cluster.event();
    }
    cluster.settle();
    released += cluster.released;
    jumps += cluster.jumps;
    wiped += cluster.wiped;
    epochs += cluster.epochs;
    kept_back += cluster.kept_back;
  }
  // All of it did happen.
  CHECK(released > 300);
  CHECK(jumps > 500);
  CHECK(wiped > 30);
  CHECK(epochs > 1000);
  CHECK(kept_back > 1000);
}

}  // namespace gradtap::actors
