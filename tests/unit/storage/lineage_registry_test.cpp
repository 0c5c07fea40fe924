#include "storage/lineage_registry.h"

#include <set>
#include <string>
#include <thread>

#include "storage/directory_store.h"
#include "tests/unit/storage/memory_store.h"
#include "tests/unit/storage/point_fixture.h"

using namespace gradtap;
using namespace gradtap::storage;
using namespace gradtap::storage::test;

namespace {

LineageRequest request(const std::string& nonce, LineageId parent = 0, StepNumber step = 0) {
  LineageRequest out;
  out.job_name = "a";
  out.run_nonce = nonce;
  out.parent_lineage = parent;
  out.parent_step = step;
  out.node = "tap0";
  return out;
}

}  // namespace

TEST_CASE("the same run gets its number again, another run the next one (I3)") {
  MemoryStore store;
  const auto first = ok(claim_lineage(store, request("r1")));
  CHECK(first.created);
  CHECK(first.claim.lineage == 1);
  CHECK(first.claim.job == job_id("a"));
  const auto second = ok(claim_lineage(store, request("r2", 1, 40)));
  CHECK(second.claim.lineage == 2);
  CHECK(second.claim.parent_step == 40);
  // Adopted as it was claimed, whatever is asked now.
  const auto again = ok(claim_lineage(store, request("r1", 0, 7)));
  CHECK_FALSE(again.created);
  CHECK(again.superseded);
  CHECK(again.claim == first.claim);
  CHECK_FALSE(ok(claim_lineage(store, request("r2"))).superseded);
  auto above = request("r3");
  above.at_least = 9;
  CHECK(ok(claim_lineage(store, above)).claim.lineage == 9);
  CHECK(ok(claim_lineage(store, request("r4"))).claim.lineage == 10);
  CHECK(claim_lineage(store, request("r5", 11)).error().code == ErrorCode::kOutOfRange);
  CHECK(claim_lineage(store, request("")).error().code == ErrorCode::kBadText);
  const auto all = ok(list_lineages(store, "a"));
  REQUIRE(all.size() == 4);
  CHECK(all[3].lineage == 10);
  CHECK_FALSE(all[3].superseded);
  CHECK(all[2].superseded);
  CHECK(ok(list_lineages(store, "b")).empty());
  CHECK(ok(list_jobs(store)) == std::vector<std::string>{"a"});
}

TEST_CASE("a damaged claim holds its number; an unreadable one stops new claims") {
  MemoryStore store;
  ok(claim_lineage(store, request("r1")));
  ok(claim_lineage(store, request("r2")));
  store.objects.at(lineage_claim_key("a", 2))[30] ^= 1;
  const auto all = ok(list_lineages(store, "a"));
  REQUIRE(all.size() == 2);
  CHECK_FALSE(all[1].claim.has_value());
  CHECK(all[1].problem.code == ErrorCode::kObjectCorrupt);
  CHECK(all[1].problem.where.find(lineage_claim_key("a", 2)) != std::string::npos);
  CHECK(ok(claim_lineage(store, request("r3"))).claim.lineage == 3);
  store.broken[lineage_claim_key("a", 1)] = ErrorCode::kObjectStore;
  CHECK(claim_lineage(store, request("r4")).error().code == ErrorCode::kObjectStore);
  CHECK(ok(claim_lineage(store, request("r3"))).claim.lineage == 3);
  // A claim copied to another number is foreign.
  store.objects[lineage_claim_key("a", 7)] = store.objects.at(lineage_claim_key("a", 3));
  CHECK(read_claim(store, "a", 7).error().code == ErrorCode::kObjectForeign);
}

TEST_CASE("contending runs on several nodes get different numbers without a hole, the same run one (I3)") {
  TempDir dir(true);
  std::vector<LineageId> numbers(12);
  {
    std::vector<std::jthread> threads;
    for (std::size_t i = 0; i < numbers.size(); ++i)
      threads.emplace_back([&, i] {
        DirectoryStoreOptions options;
        options.path = dir.path;
        options.writer = "tap" + std::to_string(i);
        auto store = DirectoryStore::open(options);
        if (!store) return;
        if (const auto grant = claim_lineage(**store, request("run " + std::to_string(i / 2))))
          numbers[i] = grant->claim.lineage;
      });
  }
  std::set<LineageId> runs;
  for (std::size_t i = 0; i < numbers.size(); i += 2) {
    CHECK(numbers[i] == numbers[i + 1]);
    runs.insert(numbers[i]);
  }
  CHECK(runs == std::set<LineageId>{1, 2, 3, 4, 5, 6});
}
