#include "actors/cluster_state.h"

#include <doctest/doctest.h>

#include "common/random.h"

namespace gradtap::actors {
namespace {

ClusterConfig three() {
  ClusterConfig config;
  config.replicas = 2;
  for (const char* name : {"tap0", "tap1", "tap2"}) {
    MemberSection member;
    member.name = name;
    member.domain = name;
    config.members.push_back(member);
  }
  return config;
}

}  // namespace

TEST_CASE("the home is the first member in file order that is live and ready") {
  ClusterState state(three(), 1);
  CHECK_FALSE(state.alone());
  CHECK(state.size() == 3);
  CHECK(state.name(2) == "tap2");
  CHECK(state.live(1));
  CHECK_FALSE(state.live(0));
  CHECK_FALSE(state.home());  // nobody is ready
  CHECK_FALSE(state.is_home());
  state.set_ready(1, true);
  CHECK(state.home() == 1);
  CHECK(state.is_home());
  state.set_live(0, true);
  CHECK(state.home() == 1);  // it is still catching up
  state.set_ready(0, true);
  CHECK(state.home() == 0);
  CHECK_FALSE(state.is_home());
  CHECK(state.live_peers() == std::vector<MemberIndex>{0});
  state.set_live(2, true);
  state.set_ready(2, true);
  CHECK(state.home() == 0);
  CHECK(state.live_peers() == std::vector<MemberIndex>{0, 2});
  state.set_live(0, false);
  CHECK(state.home() == 1);
  state.set_live(0, true);
  CHECK(state.home() == 1);  // what it said before it went down is no longer true
  CHECK_FALSE(state.ready(0));
  state.set_ready(1, false);
  CHECK(state.home() == 2);
}

TEST_CASE("a node is live to itself, whatever is said") {
  ClusterState state(three(), 2);
  state.set_ready(2, true);
  state.set_live(2, false);
  CHECK(state.live(2));
  CHECK(state.home() == 2);
  CHECK(state.live_peers().empty());
  // Ready and not live is not ready.
  state.set_ready(0, true);
  CHECK_FALSE(state.ready(0));
  CHECK(state.home() == 2);
}

TEST_CASE("a node alone is a cluster of one") {
  ClusterConfig config = three();
  config.members.resize(1);
  config.replicas = 1;
  ClusterState state(config, 0);
  CHECK(state.alone());
  state.set_ready(0, true);
  CHECK(state.is_home());
  CHECK(state.owners(2) == std::vector<std::vector<MemberIndex>>{{0}, {0}});
}

TEST_CASE("owners are those of the epoch; for another number of shards, those that it would place") {
  ClusterState state(three(), 0);
  const auto without = state.owners(6);
  REQUIRE(without.size() == 6);
  for (const auto& owners : without) CHECK(owners.size() == 2);
  auto epoch = std::make_shared<storage::StoredEpoch>();
  epoch->record = first_epoch(three());
  epoch->record.owners = {{2, 1}, {0, 1}};
  REQUIRE(state.set_epoch(epoch));
  CHECK(state.owners(2) == std::vector<std::vector<MemberIndex>>{{2, 1}, {0, 1}});
  CHECK(state.owners(6) == without);
}

TEST_CASE("the cluster file's capacities are those of the first epoch") {
  ClusterConfig config = three();
  config.replicas = 1;
  config.members[1].capacity = 4;
  const ClusterState state(config, 0);
  std::vector<int> owned(3);
  for (const auto& owners : state.owners(12)) ++owned[owners.at(0)];
  CHECK(owned == std::vector<int>{2, 8, 2});
}

TEST_CASE("an epoch follows only one of a lower number, with the same members at the same places") {
  ClusterState state(three(), 1);
  const auto next = [](std::uint64_t number) {
    auto epoch = std::make_shared<storage::StoredEpoch>();
    epoch->record = first_epoch(three());
    epoch->record.number = number;
    return epoch;
  };
  REQUIRE(state.set_epoch(next(4)));
  CHECK(state.epoch_number() == 4);
  CHECK_FALSE(state.set_epoch(next(4)));
  CHECK_FALSE(state.set_epoch(next(3)));
  auto swapped = next(5);
  std::swap(swapped->record.members[0], swapped->record.members[2]);
  CHECK_FALSE(state.set_epoch(swapped));
  auto shorter = next(5);
  shorter->record.members.pop_back();
  CHECK_FALSE(state.set_epoch(shorter));
  auto longer = next(5);
  longer->record.members.push_back(longer->record.members[0]);
  longer->record.members.back().name = "new";
  REQUIRE(state.set_epoch(longer));
  CHECK(state.size() == 4);
  CHECK(state.index_of("new") == MemberIndex{3});
  CHECK_FALSE(state.live(3));
}

TEST_CASE("a member that drains is the home only while nobody else can be, one that is out never") {
  ClusterState state(three(), 0);
  for (const MemberIndex member : {0U, 1U, 2U}) {
    state.set_live(member, true);
    state.set_ready(member, true);
  }
  CHECK(state.home() == MemberIndex{0});
  auto epoch = std::make_shared<storage::StoredEpoch>();
  epoch->record = first_epoch(three());
  epoch->record.members[0].state = schema::MemberState::kDraining;
  epoch->record.members[1].state = schema::MemberState::kOut;
  REQUIRE(state.set_epoch(epoch));
  CHECK(state.home() == MemberIndex{2});
  CHECK_FALSE(state.live(1));
  CHECK(state.is_out(1));
  state.set_ready(2, false);
  CHECK(state.home() == MemberIndex{0});
}

TEST_CASE("another life of a member's name begins unknown") {
  ClusterState state(three(), 0);
  state.set_live(1, true);
  state.set_ready(1, true);
  state.set_tap(1, true);
  auto epoch = std::make_shared<storage::StoredEpoch>();
  epoch->record = first_epoch(three());
  epoch->record.number = 2;
  epoch->record.members[1].since_epoch = 2;
  REQUIRE(state.set_epoch(epoch));
  CHECK_FALSE(state.live(1));
  CHECK_FALSE(state.ready(1));
  CHECK_FALSE(state.tap(1));
}

TEST_CASE("two nodes with the same view name the same home") {
  SeededRandom random(11);
  ClusterState a(three(), 0);
  ClusterState b(three(), 2);
  for (const MemberIndex both : {0U, 2U})
    for (ClusterState* const state : {&a, &b}) state->set_live(both, true);
  bool live1 = false;
  bool ready[3] = {};
  for (int i = 0; i < 2000; ++i) {
    const MemberIndex member = random.below(3);
    const bool yes = random.below(2) == 0;
    if (member == 1 && random.below(2) == 0) {
      for (ClusterState* const state : {&a, &b}) state->set_live(1, yes);
      live1 = yes;
      if (!yes) ready[1] = false;
    } else {
      for (ClusterState* const state : {&a, &b}) state->set_ready(member, yes);
      ready[member] = yes;
    }
    std::optional<MemberIndex> expected;
    if (ready[2]) expected = 2;
    if (ready[1] && live1) expected = 1;
    if (ready[0]) expected = 0;
    REQUIRE(a.home() == expected);
    REQUIRE(b.home() == expected);
    REQUIRE(a.is_home() == (expected == std::optional<MemberIndex>(0)));
  }
}

}  // namespace gradtap::actors
