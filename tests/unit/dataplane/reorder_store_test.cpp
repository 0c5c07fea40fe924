#include "dataplane/reorder_store.h"

#include <map>
#include <vector>

#include <doctest/doctest.h>

#include "common/random.h"

namespace gradtap::dataplane {
namespace {

TEST_CASE("random inserts and erasures agree with a map of bytes") {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    SeededRandom random(seed);
    StoreBudget budget{1 << 20, 0};
    ReorderStore store(1 << 20, budget);
    std::map<std::uint64_t, std::uint8_t> truth;
    std::uint64_t floor = 0;
    for (int i = 0; i < 300; ++i) {
      const std::uint64_t at = floor + random.below(2000);
      std::vector<std::uint8_t> bytes(1 + random.below(120));
      for (auto& byte : bytes) byte = static_cast<std::uint8_t>(random.next());
      REQUIRE(store.insert(at, bytes));
      for (std::size_t k = 0; k < bytes.size(); ++k) truth.emplace(at + k, bytes[k]);  // the first copy wins
      if (random.below(10) == 0) {
        floor += random.below(300);
        store.erase_before(floor);
        truth.erase(truth.begin(), truth.lower_bound(floor));
      }
      const std::uint64_t from = floor + random.below(2000);
      const auto next = truth.lower_bound(from);
      REQUIRE(store.next_stored(from) == (next == truth.end() ? ReorderStore::kNone : next->first));
      std::uint64_t run = from;
      while (truth.contains(run)) ++run;
      REQUIRE(store.run_end(from) == run);
      std::vector<std::uint8_t> out(64);
      REQUIRE(store.read(from, out.data(), out.size()) == (run - from >= 64));
      if (run - from >= 64) {
        for (std::size_t k = 0; k < 64; ++k) REQUIRE(out[k] == truth[from + k]);
      }
      REQUIRE(store.end() == (truth.empty() ? 0 : truth.rbegin()->first + 1));
    }
    std::map<std::uint64_t, std::uint8_t> visited;
    store.visit(0, ReorderStore::kNone, [&](std::uint64_t at, ByteSpan bytes, const OwnedBytes& owner) {
      REQUIRE(owner != nullptr);
      for (std::size_t k = 0; k < bytes.size(); ++k) visited.emplace(at + k, bytes[k]);
    });
    CHECK(visited == truth);
    CHECK(budget.used == store.cost());
    store.clear();
    CHECK(store.empty());
    CHECK(budget.used == 0);
  }
}

TEST_CASE("bounds: one-byte blocks cost more than a byte; a shared budget holds") {
  StoreBudget budget{3000, 0};
  ReorderStore a(2000, budget);
  ReorderStore b(2000, budget);
  const std::uint8_t byte = 1;
  int stored = 0;
  for (std::uint64_t i = 0; i < 2000; ++i) stored += a.insert(2 * i, {&byte, 1}) ? 1 : 0;
  CHECK(stored == 2000 / 161);
  const std::vector<std::uint8_t> big(1000);
  CHECK(!b.insert(0, big));  // the budget is nearly used up
  CHECK(b.empty());
  a.clear();
  CHECK(b.insert(0, big));
}

TEST_CASE("blocks outlive the store") {
  OwnedBytes kept;
  ByteSpan view;
  {
    StoreBudget budget{1 << 20, 0};
    ReorderStore store(1 << 20, budget);
    const std::vector<std::uint8_t> bytes(100, 0x5a);
    REQUIRE(store.insert(10, bytes));
    store.visit(20, 30, [&](std::uint64_t, ByteSpan part, const OwnedBytes& owner) {
      kept = owner;
      view = part;
    });
  }
  REQUIRE(view.size() == 10);
  CHECK(view[9] == 0x5a);
}

}  // namespace
}  // namespace gradtap::dataplane
