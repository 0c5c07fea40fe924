// What a map should be is computed here in another way: which number of domains is possible by trying all sets of
// members, the most even loads by the greedy of polymatroids (Federgruen and Groenevelt: for the sum of load^2 /
// capacity it is exact), and minimal movement by comparing with what was there.
#include "actors/placement.h"

#include <algorithm>
#include <bit>
#include <map>
#include <set>
#include <utility>

#include <doctest/doctest.h>
#include <fmt/format.h>

#include "common/random.h"

namespace gradtap::actors {
namespace {

using schema::EpochMember;
using schema::MemberState;

EpochMember member(std::size_t index, const std::string& domain, std::uint32_t capacity = 1) {
  return {fmt::format("tap{}", index), "a:1", "http://a:2", domain, capacity, MemberState::kIn, 1};
}

std::vector<EpochMember> different(std::size_t members) {
  std::vector<EpochMember> out;
  for (std::size_t i = 0; i < members; ++i) out.push_back(member(i, fmt::format("rack-{}", i)));
  return out;
}

struct Cluster {
  std::vector<EpochMember> members;
  std::size_t replicas = 1;
  std::size_t shards = 0;
};

Cluster random_cluster(SeededRandom& random, std::size_t members_max) {
  Cluster cluster;
  const std::size_t members = 2 + random.below(members_max - 1);
  const std::size_t domains = 1 + random.below(5);
  const std::uint64_t capacity_max = random.below(2) == 0 ? 1 : 4;
  for (std::size_t i = 0; i < members; ++i)
    cluster.members.push_back(member(i, fmt::format("rack-{}", random.below(domains)),
                                     static_cast<std::uint32_t>(1 + random.below(capacity_max))));
  if (random.below(3) == 0)
    for (std::size_t i = 0; i < members; ++i) cluster.members[i].domain = cluster.members[i].name;
  cluster.replicas = 1 + random.below(3);
  cluster.shards = random.below(201);
  return cluster;
}

std::vector<std::size_t> those_in(const Cluster& cluster) {
  std::vector<std::size_t> in;
  for (std::size_t i = 0; i < cluster.members.size(); ++i)
    if (cluster.members[i].state == MemberState::kIn) in.push_back(i);
  return in;
}

// Of each set of members that are in (a bit each): how many domains it has.
std::vector<std::size_t> domains_of_sets(const Cluster& cluster) {
  const auto in = those_in(cluster);
  std::vector<std::size_t> out(std::size_t{1} << in.size());
  for (std::size_t set = 0; set < out.size(); ++set) {
    std::set<std::string> domains;
    for (std::size_t i = 0; i < in.size(); ++i)
      if (set >> i & 1) domains.insert(cluster.members[in[i]].domain);
    out[set] = domains.size();
  }
  return out;
}

// The smallest possible sum of load^2 / capacity (times 12, so that it is whole for capacities 1 to 4) when every shard
// stands in as many domains as any set of that size does.
std::uint64_t smallest_sum(const Cluster& cluster) {
  const auto in = those_in(cluster);
  const auto domains = domains_of_sets(cluster);
  const std::size_t copies = std::min(cluster.replicas, in.size());
  std::size_t best = 0;
  for (std::size_t set = 0; set < domains.size(); ++set)
    if (static_cast<std::size_t>(std::popcount(set)) == copies) best = std::max(best, domains[set]);
  // How many owners of one shard can lie in a set of members.
  std::vector<std::uint64_t> most(domains.size());
  for (std::size_t whole = 0; whole < domains.size(); ++whole) {
    if (static_cast<std::size_t>(std::popcount(whole)) != copies || domains[whole] != best) continue;
    for (std::size_t set = 0; set < domains.size(); ++set)
      most[set] = std::max<std::uint64_t>(most[set], static_cast<std::uint64_t>(std::popcount(set & whole)));
  }
  std::vector<std::uint64_t> load(in.size()), of_set(domains.size());
  for (std::size_t given = 0; given < copies * cluster.shards; ++given) {
    std::size_t lightest = in.size();
    std::uint64_t least = ~std::uint64_t{0};
    for (std::size_t i = 0; i < in.size(); ++i) {
      const std::uint64_t grows = (2 * load[i] + 1) * 12 / cluster.members[in[i]].capacity;
      if (grows >= least) continue;
      bool possible = true;
      for (std::size_t set = 0; set < domains.size() && possible; ++set)
        possible = (set >> i & 1) == 0 || of_set[set] < most[set] * cluster.shards;
      if (!possible) continue;
      lightest = i;
      least = grows;
    }
    REQUIRE(lightest < in.size());
    ++load[lightest];
    for (std::size_t set = 0; set < domains.size(); ++set) of_set[set] += set >> lightest & 1;
  }
  std::uint64_t sum = 0;
  for (std::size_t i = 0; i < in.size(); ++i) sum += load[i] * load[i] * 12 / cluster.members[in[i]].capacity;
  return sum;
}

std::map<std::uint32_t, std::uint64_t> loads(const ShardPlacement& placement) {
  std::map<std::uint32_t, std::uint64_t> load;
  for (const auto& owners : placement)
    for (const std::uint32_t owner : owners) ++load[owner];
  return load;
}

std::uint64_t sum_of(const Cluster& cluster, const ShardPlacement& placement) {
  std::uint64_t sum = 0;
  for (const auto& [owner, load] : loads(placement)) sum += load * load * 12 / cluster.members[owner].capacity;
  return sum;
}

// Copies that lie where nothing lay before.
std::size_t moved(const ShardPlacement& before, const ShardPlacement& after) {
  std::size_t count = 0;
  for (std::size_t shard = 0; shard < std::min(before.size(), after.size()); ++shard)
    for (const std::uint32_t owner : after[shard])
      if (std::find(before[shard].begin(), before[shard].end(), owner) == before[shard].end()) ++count;
  return count;
}

// Whatever the map before was.
void check_map(const Cluster& cluster, const ShardPlacement& placement) {
  const auto in = those_in(cluster);
  std::set<std::string> domains;
  for (const std::size_t i : in) domains.insert(cluster.members[i].domain);
  REQUIRE(placement.size() == cluster.shards);
  for (const auto& owners : placement) {
    REQUIRE(owners.size() == std::min(cluster.replicas, in.size()));
    std::set<std::string> of_owners;
    for (const std::uint32_t owner : owners) {
      REQUIRE(owner < cluster.members.size());
      REQUIRE(cluster.members[owner].state == MemberState::kIn);
      of_owners.insert(cluster.members[owner].domain);
    }
    REQUIRE(std::set<std::uint32_t>(owners.begin(), owners.end()).size() == owners.size());
    REQUIRE(of_owners.size() == std::min(domains.size(), owners.size()));
  }
  // When all domains differ, the lighter of two may have more than one shard per unit of capacity less only if it has
  // all.
  auto load = loads(placement);
  if (domains.size() == in.size())
    for (const std::size_t a : in)
      for (const std::size_t b : in) {
        const auto of_a = load[static_cast<std::uint32_t>(a)], of_b = load[static_cast<std::uint32_t>(b)];
        const std::uint64_t ca = cluster.members[a].capacity, cb = cluster.members[b].capacity;
        REQUIRE((of_b == cluster.shards || of_a * cb <= of_b * ca + ca * cb));
      }
  // A primary's role goes to another owner only if that makes primaries more even: no single change does.
  std::map<std::uint32_t, std::uint64_t> primaries;
  for (const auto& owners : placement)
    if (!owners.empty()) ++primaries[owners.front()];
  for (const auto& owners : placement)
    for (std::size_t i = 1; i < owners.size(); ++i) {
      const std::uint64_t from = primaries[owners.front()], to = primaries[owners[i]];
      REQUIRE((2 * from - 1) * cluster.members[owners[i]].capacity <=
              (2 * to + 1) * cluster.members[owners.front()].capacity);
    }
  // Its own output is a fixed point.
  REQUIRE(place_shards(cluster.members, cluster.replicas, cluster.shards, placement) == placement);
}

}  // namespace

TEST_CASE("owners of three equal members with two copies, by hand") {
  CHECK(place_shards(different(3), 2, 6, {}) == ShardPlacement{{0, 1}, {2, 0}, {1, 2}, {0, 1}, {2, 0}, {1, 2}});
  CHECK(place_shards(different(1), 3, 2, {}) == ShardPlacement{{0}, {0}});
  CHECK(place_shards(different(2), 2, 3, {}) == ShardPlacement{{0, 1}, {1, 0}, {0, 1}});
  CHECK(place_shards(different(2), 2, 0, {}).empty());
  auto nobody = different(2);
  for (EpochMember& each : nobody) each.state = MemberState::kDraining;
  CHECK(place_shards(nobody, 2, 2, {{0, 1}, {1, 0}}) == ShardPlacement{{}, {}});
  CHECK(place_shards({}, 2, 1, {}) == ShardPlacement{{}});
}

TEST_CASE("every pair of equal members shares some shards, so that all take part when one dies") {
  for (std::size_t members = 2; members <= 9; ++members)
    for (std::size_t replicas = 2; replicas <= members; ++replicas) {
      CAPTURE(members);
      CAPTURE(replicas);
      std::set<std::pair<std::uint32_t, std::uint32_t>> pairs;
      for (const auto& owners : place_shards(different(members), replicas, members * (members - 1) * 2, {}))
        for (const std::uint32_t a : owners)
          for (const std::uint32_t b : owners)
            if (a != b) pairs.emplace(a, b);
      CHECK(pairs.size() == members * (members - 1));
    }
}

TEST_CASE("maps of random clusters: legal, separated, a fixed point") {
  SeededRandom random(3);
  for (int round = 0; round < 3000; ++round) {
    CAPTURE(round);
    Cluster cluster = random_cluster(random, 12);
    check_map(cluster, place_shards(cluster.members, cluster.replicas, cluster.shards, {}));
  }
}

TEST_CASE("loads are as even as domains allow, from nothing and after changes") {
  SeededRandom random(4);
  for (int round = 0; round < 300; ++round) {
    CAPTURE(round);
    Cluster cluster = random_cluster(random, 7);
    cluster.shards = random.below(60);
    ShardPlacement placement;
    for (int change = 0; change < 3; ++change) {
      placement = place_shards(cluster.members, cluster.replicas, cluster.shards, placement);
      REQUIRE(sum_of(cluster, placement) == smallest_sum(cluster));
      EpochMember& other = cluster.members[random.below(cluster.members.size())];
      other.state = other.state == MemberState::kIn ? MemberState::kOut : MemberState::kIn;
      if (those_in(cluster).empty()) other.state = MemberState::kIn;
    }
  }
}

TEST_CASE("sequences of add, drain and remove: legal maps, and no more moves than needed") {
  SeededRandom random(5);
  std::size_t removals = 0, exact = 0;
  for (int round = 0; round < 400; ++round) {
    CAPTURE(round);
    Cluster cluster = random_cluster(random, 8);
    const bool apart = round % 2 == 0;  // all domains differ: then the number of moves is known exactly
    if (apart)
      for (EpochMember& each : cluster.members) each.domain = each.name;
    ShardPlacement placement = place_shards(cluster.members, cluster.replicas, cluster.shards, {});
    for (int change = 0; change < 8; ++change) {
      CAPTURE(change);
      const ShardPlacement before = placement;
      const auto load_before = loads(before);
      const std::size_t copies_before = std::min(cluster.replicas, those_in(cluster).size());
      std::uint32_t changed = static_cast<std::uint32_t>(random.below(cluster.members.size()));
      if (cluster.members.size() < 12 && random.below(3) == 0) {
        changed = static_cast<std::uint32_t>(cluster.members.size());
        cluster.members.push_back(member(changed, "", static_cast<std::uint32_t>(1 + random.below(4))));
        cluster.members[changed].domain =
            apart ? cluster.members[changed].name : fmt::format("rack-{}", random.below(5));
      } else {
        MemberState& state = cluster.members[changed].state;
        state = state == MemberState::kIn ? (random.below(2) == 0 ? MemberState::kDraining : MemberState::kOut)
                                          : MemberState::kIn;
      }
      if (those_in(cluster).empty()) {  // the last one stays
        cluster.members[changed].state = MemberState::kIn;
        continue;
      }
      placement = place_shards(cluster.members, cluster.replicas, cluster.shards, before);
      check_map(cluster, placement);
      if (!apart) continue;
      const std::size_t copies = std::min(cluster.replicas, those_in(cluster).size());
      auto load = loads(placement);
      const std::size_t count = moved(before, placement);
      if (cluster.members[changed].state == MemberState::kIn) {
        // What goes to the one that came must move, nothing else; with it every shard may get one owner more.
        REQUIRE(count == std::max<std::size_t>(load[changed], (copies - copies_before) * cluster.shards));
        continue;
      }
      // What the one that left had must move, unless every shard has an owner less now. More moves only where members
      // own so much that a shard meets members that own it already.
      const auto had = load_before.find(changed);
      const std::size_t least =
          (had == load_before.end() ? 0 : had->second) - (copies_before - copies) * cluster.shards;
      std::uint64_t most = 0;
      for (const auto& [owner, of_owner] : load) most = std::max(most, of_owner);
      if (most * 2 <= cluster.shards)
        REQUIRE(count == least);
      else
        REQUIRE((least <= count && count <= 2 * least));
      removals += least > 0 ? 1 : 0;
      exact += least > 0 && count == least ? 1 : 0;
    }
  }
  CHECK(removals > 300);
  CHECK(exact * 10 > removals * 8);
}

TEST_CASE("one more member takes its fair share, and only that moves") {
  std::vector<EpochMember> members = different(5);
  const ShardPlacement before = place_shards(members, 2, 100, {});
  members.push_back(member(5, "rack-5"));
  const ShardPlacement after = place_shards(members, 2, 100, before);
  CHECK(moved(before, after) == 33);  // 200 / 6
  CHECK(loads(after)[5] == 33);
  members[5].capacity = 5;
  const ShardPlacement wide = place_shards(members, 2, 100, before);
  CHECK(moved(before, wide) == 100);  // 200 * 5 / 10
  CHECK(loads(wide)[5] == 100);
}

TEST_CASE("a map of other shards, other replicas or nonsense is used as far as it can be") {
  const std::vector<EpochMember> members = different(4);
  const ShardPlacement ten = place_shards(members, 2, 10, {});
  const ShardPlacement twenty = place_shards(members, 2, 20, ten);
  CHECK(moved(ten, twenty) == 0);
  CHECK(moved(ten, place_shards(members, 2, 5, ten)) <= 2);
  CHECK(moved(ten, place_shards(members, 1, 10, ten)) <= 1);
  CHECK(moved(ten, place_shards(members, 3, 10, ten)) == 10);
  const Cluster cluster{members, 2, 4};
  check_map(cluster, place_shards(members, 2, 4, {{9, 9}, {1, 1, 1}, {}, {3, 2, 1, 0}}));
}

TEST_CASE("shards whose owners share a domain are counted") {
  const std::vector<EpochMember> members = {member(0, "a"), member(1, "a"), member(2, "b")};
  CHECK(shards_in_one_domain(members, {{0, 1}, {0, 2}, {0}, {}, {1, 0}}) == 2);
  CHECK(shards_in_one_domain(members, place_shards(members, 2, 30, {})) == 0);
  CHECK(shards_in_one_domain({member(0, "a"), member(1, "a")}, place_shards(different(2), 2, 30, {})) == 30);
}

TEST_CASE("a large cluster is placed, and changes by as little as a small one") {
  std::vector<EpochMember> members = different(100);
  for (std::size_t i = 0; i < members.size(); ++i) members[i].domain = fmt::format("rack-{}", i % 10);
  const ShardPlacement before = place_shards(members, 2, 65'536, {});
  auto load = loads(before);
  for (std::uint32_t i = 0; i < 100; ++i) CHECK((load[i] == 1310 || load[i] == 1311));
  members[7].state = MemberState::kDraining;
  const ShardPlacement after = place_shards(members, 2, 65'536, before);
  CHECK(moved(before, after) == load[7]);
  // Who was primary and still owns the shard still is, but for what evenness needs.
  std::size_t roles = 0;
  for (std::size_t shard = 0; shard < before.size(); ++shard)
    if (before[shard].front() != 7 && after[shard].front() != before[shard].front()) ++roles;
  CHECK(roles <= load[7] / 10);
}

}  // namespace gradtap::actors
