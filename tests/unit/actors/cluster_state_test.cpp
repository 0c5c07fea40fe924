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

TEST_CASE("owners follow the file's order") {
  const ClusterState state(three(), 0);
  CHECK(state.owners(4) == std::vector<std::vector<MemberIndex>>{{0, 1}, {1, 2}, {2, 0}, {0, 2}});
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
