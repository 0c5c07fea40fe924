#include "actors/placement.h"

#include <map>
#include <set>
#include <utility>

#include <doctest/doctest.h>
#include <fmt/format.h>

#include "common/random.h"

namespace gradtap::actors {
namespace {

std::vector<std::string> different(std::size_t members) {
  std::vector<std::string> domains;
  for (std::size_t i = 0; i < members; ++i) domains.push_back(fmt::format("rack-{}", i));
  return domains;
}

}  // namespace

TEST_CASE("owners of three members with two copies, written down by hand") {
  const std::vector<std::vector<MemberIndex>> table = {{0, 1}, {1, 2}, {2, 0}, {0, 2}, {1, 0}, {2, 1}};
  for (ShardId shard = 0; shard < 60; ++shard) {
    CAPTURE(shard);
    CHECK(owners_of(shard, different(3), 2) == table[shard % 6]);
  }
  CHECK(owners_of(7, different(1), 1) == std::vector<MemberIndex>{0});
  CHECK(owners_of(7, different(1), 3) == std::vector<MemberIndex>{0});
  CHECK(owners_of(4, different(2), 2) == std::vector<MemberIndex>{0, 1});
  CHECK(owners_of(5, different(2), 2) == std::vector<MemberIndex>{1, 0});
  CHECK(owners_of(5, different(2), 9).size() == 2);
}

TEST_CASE("members of different domains hold exactly the same number, and every pair shares some shards") {
  for (std::size_t members = 1; members <= 9; ++members)
    for (std::size_t replicas = 1; replicas <= members; ++replicas) {
      CAPTURE(members);
      CAPTURE(replicas);
      const std::size_t shards = members * (members > 1 ? members - 1 : 1) * 2;
      std::map<MemberIndex, std::size_t> held;
      std::map<MemberIndex, std::size_t> primary;
      std::set<std::pair<MemberIndex, MemberIndex>> pairs;
      for (ShardId shard = 0; shard < shards; ++shard) {
        const auto owners = owners_of(shard, different(members), replicas);
        REQUIRE(owners.size() == replicas);
        REQUIRE(std::set<MemberIndex>(owners.begin(), owners.end()).size() == replicas);
        ++primary[owners.front()];
        for (const MemberIndex owner : owners) {
          REQUIRE(owner < members);
          ++held[owner];
          for (const MemberIndex other : owners)
            if (owner != other) pairs.emplace(owner, other);
        }
      }
      for (MemberIndex member = 0; member < members; ++member) {
        CHECK(held[member] == shards * replicas / members);
        CHECK(primary[member] == shards / members);
      }
      if (replicas >= 2) CHECK(pairs.size() == members * (members - 1));
    }
}

TEST_CASE("owners of a shard stand in different domains where the file allows it") {
  SeededRandom random(3);
  for (int round = 0; round < 300; ++round) {
    const std::size_t members = 1 + random.below(9);
    std::vector<std::string> domains;
    for (std::size_t i = 0; i < members; ++i) domains.push_back(fmt::format("rack-{}", random.below(4)));
    const std::size_t apart = std::set<std::string>(domains.begin(), domains.end()).size();
    const std::size_t replicas = 1 + random.below(4);
    for (ShardId shard = 0; shard < 40; ++shard) {
      const auto owners = owners_of(shard, domains, replicas);
      REQUIRE(owners.size() == std::min(members, replicas));
      REQUIRE(std::set<MemberIndex>(owners.begin(), owners.end()).size() == owners.size());
      REQUIRE(owners.front() == shard % members);
      std::set<std::string> of_owners;
      for (const MemberIndex owner : owners) of_owners.insert(domains[owner]);
      REQUIRE(of_owners.size() == std::min(apart, owners.size()));
    }
  }
}

TEST_CASE("with two members in each of two domains, loads stay near each other") {
  for (const auto& domains : {std::vector<std::string>{"a", "a", "b", "b"}, {"a", "b", "a", "b"}}) {
    std::map<MemberIndex, std::size_t> held;
    for (ShardId shard = 0; shard < 120; ++shard)
      for (const MemberIndex owner : owners_of(shard, domains, 2)) ++held[owner];
    for (MemberIndex member = 0; member < 4; ++member) {
      CHECK(held[member] >= 45);  // 60 each would be even
      CHECK(held[member] <= 75);
    }
  }
}

}  // namespace gradtap::actors
