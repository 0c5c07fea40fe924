// The dataplane's buffers against the node's ledger: each is taken before it is there, refused and counted when it is
// not, and given back.
#include <cstring>

#include <doctest/doctest.h>

#include "common/memory_ledger.h"
#include "dataplane/limbo.h"
#include "dataplane/op_bytes.h"
#include "dataplane/reorder_store.h"

using namespace gradtap;
using namespace gradtap::dataplane;

TEST_CASE("op buffers: what is idle goes before anything is refused") {
  auto ledger = std::make_shared<MemoryLedger>(16 << 10);
  auto pool = OpBufferPool::create(1 << 30, ledger);
  {
    const PooledBuffer a = pool->acquire(4096), b = pool->acquire(8192);
    CHECK(a);
    CHECK(b);
    CHECK(ledger->usage(MemoryAccount::kOps).in_use_bytes == 12 << 10);
    CHECK_FALSE(pool->acquire(8192));
    CHECK(pool->usage().refused == 1);
    CHECK(pool->usage().in_use_bytes == 12 << 10);
    CHECK(ledger->total().in_use_bytes == 12 << 10);
  }
  CHECK(pool->usage().idle_bytes == 12 << 10);  // kept, and still taken
  CHECK(ledger->total().in_use_bytes == 12 << 10);
  {
    const PooledBuffer c = pool->acquire(16 << 10);  // of another size: both idle ones must go
    CHECK(c);
    CHECK(pool->usage().idle_bytes == 0);
    CHECK(ledger->total().in_use_bytes == 16 << 10);
  }
  pool.reset();
  CHECK(ledger->total().in_use_bytes == 0);
}

TEST_CASE("limbo: a piece for which no memory is left is refused, and what is kept is given back") {
  auto ledger = std::make_shared<MemoryLedger>(2000);
  LimboBudget budget(1 << 20, ledger);
  const std::vector<std::uint8_t> bytes(4000, 7);
  {
    Limbo limbo(budget);
    CHECK(limbo.add(0, 0, 0, bytes.data(), 500));
    CHECK_FALSE(limbo.add(0, 0, 500, bytes.data(), 4000));
    CHECK(budget.refused() == 1);
    CHECK(ledger->usage(MemoryAccount::kLimbo).in_use_bytes == budget.used());
    CHECK(ledger->usage(MemoryAccount::kLimbo).refused == 1);
    CHECK(budget.used() <= 2000);
  }
  CHECK(budget.used() == 0);
  CHECK(ledger->total().in_use_bytes == 0);
}

TEST_CASE("reorder windows: the bound of all flows, and the ledger, refuse and count") {
  auto ledger = std::make_shared<MemoryLedger>(3000);
  StoreBudget budget{1 << 20, 0, 0, ledger};
  const std::vector<std::uint8_t> bytes(1000, 7);
  {
    ReorderStore one(1 << 20, budget), two(1 << 20, budget);
    CHECK(one.insert(100, ByteSpan(bytes)));
    CHECK(two.insert(100, ByteSpan(bytes)));
    CHECK_FALSE(two.insert(5000, ByteSpan(bytes)));
    CHECK(budget.refused == 1);
    CHECK(ledger->usage(MemoryAccount::kReorder).in_use_bytes == 2 * (1000 + ReorderStore::kBlockOverhead));
    one.clear();
    CHECK(two.insert(5000, ByteSpan(bytes)));
  }
  CHECK(ledger->total().in_use_bytes == 0);
  CHECK(budget.used == 0);

  StoreBudget bounded{1500, 0, 0, nullptr};
  ReorderStore store(1 << 20, bounded);
  CHECK(store.insert(0, ByteSpan(bytes)));
  CHECK_FALSE(store.insert(5000, ByteSpan(bytes)));
  CHECK(bounded.used <= bounded.limit);
}
