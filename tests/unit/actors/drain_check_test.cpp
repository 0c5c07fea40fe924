#include "actors/drain_check.h"

#include <doctest/doctest.h>

namespace gradtap::actors {
namespace {

// Three members that are live, ready and have mirror ports; tap0 is this node. Shard 0 on tap0 and tap1, 1 on tap1,
// tap2.
struct View {
  ClusterState cluster;
  PlacementView view;

  static ClusterConfig config() {
    ClusterConfig config;
    config.replicas = 2;
    for (const char* name : {"tap0", "tap1", "tap2"}) {
      MemberSection member;
      member.name = member.domain = name;
      config.members.push_back(member);
    }
    return config;
  }
  View() : cluster(config(), 0) {
    for (const MemberIndex member : {0U, 1U, 2U}) {
      cluster.set_live(member, true);
      cluster.set_ready(member, true);
      cluster.set_tap(member, true);
    }
    view.durable = view.published = 10;
    for (ShardId shard = 0; shard < 2; ++shard) {
      view.shards.push_back({shard, 1000 * (shard + 1), {}});
      for (const MemberIndex member : {MemberIndex{shard}, MemberIndex{shard} + 1})
        view.shards[shard].holders.push_back({member, HolderRole::kInSync, true, true, 12, 11, 0, {}});
    }
  }
  HolderView& holder(ShardId shard, std::size_t place) { return view.shards[shard].holders[place]; }
  [[nodiscard]] DrainCheck of(MemberIndex member) const { return check_drain(cluster, view, member); }
  [[nodiscard]] std::string reason(MemberIndex member) const {
    const DrainCheck check = of(member);
    return check.reasons.size() == 1 ? check.reasons.front() : std::to_string(check.reasons.size());
  }
};

}  // namespace

TEST_CASE("a member may go while every shard has another live owner that keeps up") {
  View now;
  const DrainCheck home = now.of(0);
  CHECK(home.safe());
  CHECK(home.is_home);
  CHECK(home.held_shards == 1);
  CHECK(home.held_bytes == 1000);
  CHECK(home.short_shards == 1);
  const DrainCheck both = now.of(1);
  CHECK(both.safe());
  CHECK_FALSE(both.is_home);
  CHECK(both.held_shards == 2);
  CHECK(both.held_bytes == 3000);
  CHECK(both.short_shards == 2);
}

TEST_CASE("the other owner does not count when it is down, copies still, has nothing stored, or less than is durable") {
  View now;
  HolderView& other = now.holder(0, 1);
  SUBCASE("down") {
    other.live = false;
  }
  SUBCASE("it copies still") {
    other.role = HolderRole::kSyncing;
  }
  SUBCASE("nothing in its store") {
    other.durable.reset();
  }
  SUBCASE("less than is published") {
    other.durable = 9;
  }
  SUBCASE("a leaving one, less than is durable") {
    other.role = HolderRole::kReleasing;
    other.assigned = false;
    now.view.published = 3;
    other.durable = 9;
  }
  CHECK(now.reason(0) == "no other live owner has 1 of the shards in sync: 0");
  CHECK(now.of(0).alone_shards == 1);
  CHECK(now.of(0).short_shards == 1);
}

TEST_CASE("a leaving owner counts as long as it has everything") {
  View now;
  now.holder(0, 1).role = HolderRole::kReleasing;
  now.holder(0, 1).assigned = false;
  CHECK(now.of(0).safe());
  // With a third copy no shard would be short of two.
  now.view.shards[0].holders.push_back({2, HolderRole::kInSync, true, true, 12, 11, 0, {}});
  CHECK(now.of(0).short_shards == 0);
}

TEST_CASE("a shard of which nothing is known is no reason to feel safe, and of many only some are named") {
  View now;
  now.view.shards[1].holders.clear();
  CHECK(now.reason(0) == "no other live owner has 1 of the shards in sync: 1");
  for (ShardId shard = 2; shard < 20; ++shard) now.view.shards.push_back({shard, 1, {}});
  CHECK(now.reason(0) == "no other live owner has 19 of the shards in sync: 1, 2, 3, 4, 5, 6, 7, 8, ...");
  CHECK(now.of(0).held_shards == 1);
}

TEST_CASE("somebody must be able to be the home, and some mirror port must stay") {
  View now;
  for (const MemberIndex member : {1U, 2U}) now.cluster.set_ready(member, false);
  CHECK(now.reason(0) == "no other member is ready to be the home");
  now.cluster.set_ready(2, true);
  CHECK(now.of(0).safe());
  auto epoch = std::make_shared<storage::StoredEpoch>();
  epoch->record = first_epoch(View::config());
  epoch->record.members[2].state = schema::MemberState::kDraining;
  REQUIRE(now.cluster.set_epoch(epoch));
  CHECK(now.reason(0) == "no other member is ready to be the home");  // who drains is none
  now.cluster.set_ready(1, true);
  now.cluster.set_tap(1, false);
  now.cluster.set_tap(2, false);
  CHECK(now.reason(0) == "no other live member has a mirror port");
  now.cluster.set_tap(0, false);
  CHECK(now.of(0).safe());  // it takes none away
}

TEST_CASE("a cluster without a job, and members that there are not") {
  View now;
  now.view.shards.clear();
  CHECK(now.of(1).safe());
  CHECK(now.of(1).held_shards == 0);
  CHECK(now.of(77).safe());
  now.view.shards.push_back({0, 1, {{99, HolderRole::kInSync, true, true, 12, 11, 0, {}}}});
  CHECK(now.of(1).safe());
}

}  // namespace gradtap::actors
