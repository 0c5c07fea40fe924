#include "common/memory_ledger.h"

#include <atomic>
#include <optional>
#include <thread>
#include <vector>

#include <doctest/doctest.h>

#include "common/charged.h"

using namespace gradtap;

TEST_CASE("what is taken never passes the limit, and what is refused is counted for its account") {
  MemoryLedger ledger(100);
  CHECK(ledger.take(MemoryAccount::kOps, 60));
  CHECK_FALSE(ledger.take(MemoryAccount::kLimbo, 41));
  CHECK(ledger.take(MemoryAccount::kLimbo, 40));
  CHECK_FALSE(ledger.take(MemoryAccount::kLimbo, 1));
  CHECK_FALSE(ledger.take(MemoryAccount::kOps, ~std::uint64_t{0}));  // and no sum overflows
  CHECK(ledger.total().in_use_bytes == 100);
  CHECK(ledger.total().refused == 3);
  CHECK(ledger.usage(MemoryAccount::kOps).in_use_bytes == 60);
  CHECK(ledger.usage(MemoryAccount::kOps).refused == 1);
  CHECK(ledger.usage(MemoryAccount::kLimbo).refused == 2);
  ledger.give_back(MemoryAccount::kOps, 60);
  CHECK(ledger.take(MemoryAccount::kLimbo, 60));
  CHECK(ledger.total().peak_bytes == 100);
  CHECK(ledger.usage(MemoryAccount::kOps).peak_bytes == 60);
  CHECK(ledger.usage(MemoryAccount::kOps).in_use_bytes == 0);
  CHECK(ledger.usage(MemoryAccount::kLimbo).peak_bytes == 100);
}

TEST_CASE("a lease gives back what it took, once, wherever it was moved") {
  auto ledger = std::make_shared<MemoryLedger>(100);
  auto lease = ledger->lease(MemoryAccount::kPeers, 30, "a test");
  REQUIRE(lease);
  CHECK(lease->grow(50));
  CHECK_FALSE(lease->grow(21));
  CHECK(lease->bytes() == 80);
  {
    MemoryLease moved = std::move(*lease);
    CHECK(moved.bytes() == 80);
    CHECK(ledger->total().in_use_bytes == 80);
    MemoryLease other;
    other = std::move(moved);
    CHECK(ledger->total().in_use_bytes == 80);
    auto second = ledger->lease(MemoryAccount::kPeers, 20, "a test");
    REQUIRE(second);
    other = std::move(*second);  // the 80 go
    CHECK(ledger->total().in_use_bytes == 20);
  }
  CHECK(ledger->total().in_use_bytes == 0);
}

TEST_CASE("a lease that is refused says what for, how much is free, and what to do") {
  auto ledger = std::make_shared<MemoryLedger>(100);
  REQUIRE(ledger->take(MemoryAccount::kShards, 90));
  const auto lease = ledger->lease(MemoryAccount::kPeers, 11, "an answer");
  REQUIRE_FALSE(lease);
  CHECK(lease.error().code == ErrorCode::kMemoryExhausted);
  CHECK(lease.error().what == "no memory is left for an answer");
  CHECK(lease.error().where == "limits.memory_bytes");
  CHECK(lease.error().expected == "11 bytes free");
  CHECK(lease.error().actual == "10 of 100 bytes free");
  CHECK_FALSE(lease.error().remedy.empty());
}

TEST_CASE("a charged value and its memory go together, whoever held it last") {
  auto ledger = std::make_shared<MemoryLedger>(100);
  auto lease = ledger->lease(MemoryAccount::kVersions, 40, "a test");
  REQUIRE(lease);
  std::shared_ptr<const std::vector<int>> held = charged(std::vector<int>{1, 2, 3}, std::move(*lease));
  auto other = held;
  held.reset();
  CHECK(*other == std::vector<int>{1, 2, 3});
  CHECK(ledger->total().in_use_bytes == 40);
  ledger.reset();  // the lease keeps it
  other.reset();
}

TEST_CASE("threads that take and give back at once never pass the limit together") {
  constexpr std::uint64_t kLimit = 1000;
  MemoryLedger ledger(kLimit);
  std::atomic<std::uint64_t> granted{0};
  {
    std::vector<std::jthread> threads;
    for (std::uint64_t t = 0; t < 4; ++t)
      threads.emplace_back([&, t] {
        const auto account = static_cast<MemoryAccount>(t);
        for (std::uint64_t i = 0; i < 20'000; ++i) {
          const std::uint64_t bytes = 1 + (i * 37 + t * 11) % 600;
          if (!ledger.take(account, bytes)) continue;
          granted.fetch_add(1, std::memory_order_relaxed);
          ledger.give_back(account, bytes);
        }
      });
  }
  CHECK(ledger.total().in_use_bytes == 0);
  CHECK(ledger.total().peak_bytes <= kLimit);
  CHECK(granted.load() + ledger.total().refused == 80'000);
  for (std::uint64_t t = 0; t < 4; ++t) CHECK(ledger.usage(static_cast<MemoryAccount>(t)).in_use_bytes == 0);
}
