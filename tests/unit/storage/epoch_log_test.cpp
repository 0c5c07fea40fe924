#include "storage/epoch_log.h"

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <fmt/format.h>

#include "storage/directory_store.h"
#include "storage/object_key.h"
#include "tests/unit/storage/memory_store.h"
#include "tests/unit/storage/point_fixture.h"

using namespace gradtap;
using namespace gradtap::storage;
using namespace gradtap::storage::test;

namespace {

// The epoch after `newest`, as `proposer` wants it.
schema::EpochRecord next(const std::optional<StoredEpoch>& newest, const std::string& proposer) {
  schema::EpochRecord record;
  record.number = newest ? newest->record.number + 1 : 1;
  if (newest) record.previous = newest->digest;
  record.members = {{"tap0", "a:1", "http://a:2", "rack-a", 1, schema::MemberState::kIn, 1},
                    {"tap1", "b:1", "http://b:2", "rack-b", 1, schema::MemberState::kIn, 1}};
  record.owners = {{0, 1}, {1, 0}};
  record.proposer = proposer;
  return record;
}

// `count` epochs, one after the other.
void make(ObjectStore& store, std::uint64_t count) {
  for (std::uint64_t n = 0; n < count; ++n) REQUIRE(ok(create_epoch(store, next(ok(newest_epoch(store)), "tap0"))));
}

// Does what it is asked, but the answer to a create() is lost.
class LostAnswers final : public ObjectStore {
 public:
  explicit LostAnswers(ObjectStore& store) : store_(store) {}
  int lose = 0;

  Status put(std::string_view key, const std::vector<ByteSpan>& parts) override { return store_.put(key, parts); }
  Result<Created> create(std::string_view key, ByteSpan bytes) override {
    auto created = store_.create(key, bytes);
    if (lose == 0) return created;
    --lose;
    return fail(ErrorCode::kObjectStore, "the answer was lost", std::string(key));
  }
  Result<std::vector<std::uint8_t>> get(std::string_view key, std::uint64_t bytes_max) const override {
    return store_.get(key, bytes_max);
  }
  Result<std::vector<std::uint8_t>> read(std::string_view key, std::uint64_t offset,
                                         std::uint64_t count) const override {
    return store_.read(key, offset, count);
  }
  Result<std::uint64_t> length(std::string_view key) const override { return store_.length(key); }
  Result<std::vector<std::string>> list(std::string_view prefix) const override { return store_.list(prefix); }
  Status remove(const std::vector<std::string>& keys) override { return store_.remove(keys); }
  std::string describe() const override { return "lossy"; }

 private:
  ObjectStore& store_;
};

std::unique_ptr<DirectoryStore> open_at(const std::string& path, const std::string& writer) {
  DirectoryStoreOptions options;
  options.path = path;
  options.writer = writer;
  auto store = DirectoryStore::open(options);
  return store ? std::move(*store) : nullptr;
}

}  // namespace

TEST_CASE("epochs follow each other; each names the bytes of the one before") {
  MemoryStore store;
  CHECK_FALSE(ok(newest_epoch(store)).has_value());
  CHECK(read_epoch(store, 1).error().code == ErrorCode::kObjectMissing);
  make(store, 12);
  const auto newest = ok(newest_epoch(store));
  REQUIRE(newest.has_value());
  CHECK(newest->record.number == 12);
  CHECK(store.objects.size() == 12);
  CHECK(newest->record.previous == sha256(store.objects.at("cluster/epoch/00000000000000000011")));
  CHECK(newest->digest == sha256(store.objects.at("cluster/epoch/00000000000000000012")));
  const auto first = ok(read_epoch(store, 1));
  CHECK(first.record == next(std::nullopt, "tap0"));
  // What has another form is not ours.
  store.objects["cluster/epoch/13"] = {1};
  store.objects["cluster/epoch/00000000000000000000"] = {1};
  CHECK(ok(newest_epoch(store))->record.number == 12);
}

TEST_CASE("of two proposers the second is told so, whatever it proposes") {
  MemoryStore store;
  make(store, 2);
  const auto newest = ok(newest_epoch(store));
  const auto a = next(newest, "tap0"), b = next(newest, "tap1");
  CHECK(ok(create_epoch(store, a)));
  CHECK_FALSE(ok(create_epoch(store, b)));
  CHECK(ok(newest_epoch(store))->record == a);
  // Not the next one: a number too far, another predecessor, a first epoch once there is one.
  auto far = next(ok(newest_epoch(store)), "tap1");
  ++far.number;
  CHECK_FALSE(ok(create_epoch(store, far)));
  auto other = next(ok(newest_epoch(store)), "tap1");
  other.previous[0] ^= 1;
  CHECK_FALSE(ok(create_epoch(store, other)));
  CHECK_FALSE(ok(create_epoch(store, next(std::nullopt, "tap1"))));
  CHECK(store.objects.size() == 3);
}

TEST_CASE("an own try whose answer was lost is success when it is repeated, also after later epochs") {
  MemoryStore memory;
  LostAnswers store(memory);
  make(store, 1);
  const auto record = next(ok(newest_epoch(store)), "tap1");
  store.lose = 1;
  CHECK(create_epoch(store, record).error().code == ErrorCode::kObjectStore);
  CHECK(ok(create_epoch(store, record)));
  CHECK(ok(create_epoch(store, record)));
  make(store, 3);
  CHECK(ok(create_epoch(store, record)));
  CHECK(memory.objects.size() == 5);
}

TEST_CASE("an epoch that nobody could read is not stored") {
  MemoryStore store;
  auto record = next(std::nullopt, "tap0");
  record.owners[0] = {0, 2};
  const auto impossible = create_epoch(store, record);
  REQUIRE_FALSE(impossible.has_value());
  CHECK(impossible.error().code == ErrorCode::kOutOfRange);
  record = next(std::nullopt, "tap0");
  record.members.resize(schema::kEpochMembersMax + 1);
  CHECK(create_epoch(store, record).error().code == ErrorCode::kLimitReached);
  CHECK(store.objects.empty());
}

TEST_CASE("a gap, a damaged or foreign newest epoch and another predecessor are errors, and no new epoch is made") {
  MemoryStore store;
  make(store, 4);
  const auto newest = ok(newest_epoch(store));
  const auto intact = store.objects;
  const auto refused = [&](ErrorCode code, const std::string& where) {
    const auto found = newest_epoch(store);
    REQUIRE_FALSE(found.has_value());
    CHECK(found.error().code == code);
    CHECK(found.error().where.find(where) != std::string::npos);
    const auto created = create_epoch(store, next(newest, "tap1"));
    REQUIRE_FALSE(created.has_value());
    CHECK(created.error().code == code);
    CHECK(store.objects.size() <= 4);
    store.objects = intact;
    store.broken.clear();
  };
  store.objects.erase(epoch_key(2));
  refused(ErrorCode::kObjectMissing, epoch_key(2));
  store.objects.erase(epoch_key(1));
  refused(ErrorCode::kObjectMissing, epoch_key(1));
  store.objects.at(epoch_key(4))[40] ^= 1;
  refused(ErrorCode::kObjectCorrupt, epoch_key(4));
  store.objects.at(epoch_key(4)).clear();
  refused(ErrorCode::kObjectCorrupt, epoch_key(4));
  store.objects.at(epoch_key(4))[4] = 2;  // format of the envelope
  refused(ErrorCode::kStoreFormat, epoch_key(4));
  store.objects.at(epoch_key(4)) = store.objects.at(epoch_key(3));
  refused(ErrorCode::kObjectForeign, epoch_key(4));
  // Whole, of the right number, and still not the one that epoch 4 was made from.
  store.objects.at(epoch_key(3)) = schema::encode(next(ok(read_epoch(store, 2)), "somebody")).value();
  refused(ErrorCode::kObjectCorrupt, epoch_key(3));
  store.objects.at(epoch_key(4)).resize(schema::kEpochBytesMax + 1);
  refused(ErrorCode::kLimitReached, epoch_key(4));
  store.broken[epoch_key(4)] = ErrorCode::kObjectStore;
  refused(ErrorCode::kObjectStore, epoch_key(4));
  CHECK(ok(newest_epoch(store))->record.number == 4);
  store.unlistable = true;
  CHECK(newest_epoch(store).error().code == ErrorCode::kObjectStore);
  CHECK(create_epoch(store, next(newest, "tap1")).error().code == ErrorCode::kObjectStore);
}

TEST_CASE("many proposers in a directory: every epoch has exactly one winner, and the chain holds (J6)") {
  TempDir dir(true);
  constexpr std::uint64_t kRounds = 8;
  constexpr std::size_t kProposers = 8;
  std::vector<std::atomic<int>> winners(kRounds + 1);
  std::atomic<int> failures = 0;
  {
    std::vector<std::jthread> threads;
    for (std::size_t i = 0; i < kProposers; ++i)
      threads.emplace_back([&, i] {
        const auto store = open_at(dir.path, fmt::format("tap{}", i));
        if (!store) {
          ++failures;
          return;
        }
        for (;;) {
          const auto newest = newest_epoch(*store);
          if (!newest) {
            ++failures;
            return;
          }
          if (*newest && (*newest)->record.number >= kRounds) return;
          const auto record = next(*newest, fmt::format("tap{}", i));
          const auto created = create_epoch(*store, record);
          if (!created) {
            ++failures;
            return;
          }
          if (*created) ++winners[record.number];
        }
      });
  }
  CHECK(failures == 0);
  for (std::uint64_t number = 1; number <= kRounds; ++number) CHECK(winners[number] == 1);
  const auto store = open_at(dir.path, "reader");
  REQUIRE(store);
  CHECK(ok(newest_epoch(*store))->record.number == kRounds);
  Sha256 previous{};
  for (std::uint64_t number = 1; number <= kRounds; ++number) {
    const auto epoch = ok(read_epoch(*store, number));
    CHECK(epoch.record.previous == previous);
    previous = epoch.digest;
  }
}

TEST_CASE("a directory that cannot be read gives no epoch and no empty answer") {
  TempDir dir(true);
  const auto store = open_at(dir.path + "/points", "tap0");
  REQUIRE(store);
  make(*store, 2);
  std::filesystem::resize_file(dir.path + "/points/" + epoch_key(2), 100);
  CHECK(newest_epoch(*store).error().code == ErrorCode::kObjectCorrupt);
  std::filesystem::remove_all(dir.path + "/points");
  CHECK(newest_epoch(*store).error().code == ErrorCode::kObjectStore);
}
