// verify must name every single damage of a point: each bit of each of its objects and records, each cut, each missing
// or exchanged file.
#include "storage/point_verify.h"

#include <set>
#include <string>

#include "tests/unit/storage/memory_store.h"
#include "tests/unit/storage/point_fixture.h"

using namespace gradtap;
using namespace gradtap::storage;
using namespace gradtap::storage::test;

namespace {

VerifyOptions options_reading(std::uint64_t bytes) {
  VerifyOptions options;
  options.read_bytes = bytes;
  return options;
}

struct Job {
  MemoryStore store;
  PointMaker maker{store};
  LineageId lineage = 0;
  std::set<std::string> parts;  // keys of the point at step 3

  explicit Job(std::size_t bytes = 8) {
    maker.bytes = bytes;
    maker.shards = 2;
    maker.start();
    maker.publish(1, 5, {4, 4});
    lineage = maker.start(1, 5);
    const StoredPoint point = maker.publish(lineage, 3, {1, 2});
    parts.insert(point_key(maker.job, lineage, 3));
    parts.insert(lineage_claim_key(maker.job, lineage));
    for (const PointObject& object : objects_of(point.record)) parts.insert(object.ref->key);
  }
  VerifyReport verify() const { return ok(verify_point(store, maker.job, lineage, 3, options_reading(100))); }
};

bool names(const VerifyReport& report, const std::string& key) {
  for (const Finding& finding : report.findings)
    if (finding.key == key && !finding.what.empty() && !finding.actual.empty()) return true;
  return false;
}

}  // namespace

TEST_CASE("every flipped bit of a point is named with its file and a digest (M3)") {
  Job job;
  const VerifyReport clean = job.verify();
  for (const Finding& finding : clean.findings) FAIL(finding.error().text());
  CHECK(clean.objects == job.parts.size() - 2);
  std::uint64_t flips = 0;
  for (const std::string& key : job.parts) {
    auto& bytes = job.store.objects.at(key);
    for (std::size_t bit = 0; bit < bytes.size() * 8; ++bit) {
      bytes[bit / 8] ^= static_cast<std::uint8_t>(1U << bit % 8);
      const VerifyReport report = job.verify();
      bytes[bit / 8] ^= static_cast<std::uint8_t>(1U << bit % 8);
      ++flips;
      if (!names(report, key) || !report.findings.front().offset.has_value() ||
          report.findings.front().actual.find("SHA-256") == std::string::npos)
        FAIL("bit ", bit, " of ", key, " is not found");
    }
  }
  CHECK(flips > 20'000);
  CHECK(job.verify().whole());
}

TEST_CASE("every cut, addition, missing and exchanged part is named") {
  Job job;
  for (const std::string& key : job.parts) {
    auto& bytes = job.store.objects.at(key);
    const auto whole = bytes;
    for (std::size_t size = 0; size < whole.size(); size += 7) {
      bytes.resize(size);
      CHECK_MESSAGE(names(job.verify(), key), key);
      bytes = whole;
    }
    bytes.push_back(0);
    CHECK_MESSAGE(names(job.verify(), key), key);
    bytes = whole;
    job.store.objects.erase(key);
    const VerifyReport missing = job.verify();
    bool named = false;
    for (const Finding& finding : missing.findings)
      named = named || (finding.key == key && finding.code == ErrorCode::kObjectMissing);
    CHECK_MESSAGE(named, key);
    for (const std::string& other : job.parts) {
      if (other == key) continue;
      job.store.objects[key] = job.store.objects.at(other);
      CHECK_MESSAGE(names(job.verify(), key), key, " replaced by ", other);
    }
    job.store.objects[key] = whole;
    job.store.broken[key] = ErrorCode::kObjectStore;
    bool unreadable = false;
    for (const Finding& finding : job.verify().findings)
      unreadable = unreadable || (finding.key == key && finding.code == ErrorCode::kObjectStore);
    CHECK_MESSAGE(unreadable, key);
    job.store.broken.clear();
  }
  CHECK(job.verify().whole());
}

TEST_CASE("a record that was replaced by another whole one is known by its successor and by child lineages") {
  Job job;
  const std::string key = point_key(job.maker.job, job.lineage, 3);
  auto record = ok(read_point(job.store, job.maker.job, job.lineage, 3)).record;
  record.publisher = "somebody";
  job.store.objects[key] = ok(schema::encode(record));
  CHECK(job.verify().whole());  // nothing yet speaks against it
  job.store.objects.erase(key);
  record.publisher = "tap0";
  job.store.objects[key] = ok(schema::encode(record));
  job.maker.publish(job.lineage, 4, {1, 2});
  CHECK(job.verify().whole());
  record.publisher = "somebody";
  job.store.objects[key] = ok(schema::encode(record));
  CHECK(names(job.verify(), key));
  Job parent;
  const LineageId child = parent.maker.start(parent.lineage, 3);
  CHECK(child == 3);
  CHECK(parent.verify().whole());
  const std::string parent_point = point_key(parent.maker.job, parent.lineage, 3);
  auto replaced = ok(read_point(parent.store, parent.maker.job, parent.lineage, 3)).record;
  replaced.software = "other";
  parent.store.objects[parent_point] = ok(schema::encode(replaced));
  CHECK(names(parent.verify(), parent_point));
}

TEST_CASE("what a publisher recorded wrongly is found although every digest fits") {
  const auto found = [](auto change, ErrorCode code) {
    Job job;
    auto record = ok(read_point(job.store, job.maker.job, job.lineage, 3)).record;
    change(job, record);
    job.store.objects[point_key(job.maker.job, job.lineage, 3)] = ok(schema::encode(record));
    const VerifyReport report = job.verify();
    return !report.whole() && report.findings.front().code == code;
  };
  using schema::PointRecord;
  CHECK(found([](Job&, PointRecord& p) { p.canonical.step_message[0] ^= 1; }, ErrorCode::kDigestMismatch));
  CHECK(found([](Job&, PointRecord& p) { p.canonical.ranks[1].digest[0] ^= 1; }, ErrorCode::kDigestMismatch));
  CHECK(found([](Job&, PointRecord& p) { p.canonical.parent_step = 4; }, ErrorCode::kObjectForeign));
  CHECK(found([](Job& job, PointRecord& p) { p.meta = job.maker.lineages.at(1).meta; }, ErrorCode::kObjectForeign));
  CHECK(found(
      [](Job& job, PointRecord& p) {
        const auto state = job.maker.side(job.lineage, 2);
        p.side = job.maker.object(side_state_key(job.maker.job, job.lineage, 3, "x"), ok(schema::encode(state)));
      },
      ErrorCode::kObjectForeign));
  CHECK(found(
      [](Job& job, PointRecord& p) {
        p.steps[0].object = job.maker.object(step_key(job.maker.job, job.lineage, 2, "x"), {1, 2, 3});
      },
      ErrorCode::kObjectCorrupt));
}

TEST_CASE("objects of several chunks and reads of any size give the same verdict") {
  Job job(3 << 20);
  for (const std::uint64_t read_bytes : {std::uint64_t{1} << 14, std::uint64_t{1} << 20, std::uint64_t{1} << 26}) {
    CHECK(ok(verify_point(job.store, job.maker.job, job.lineage, 3, options_reading(read_bytes))).whole());
    const std::string key = job.maker.lineages.at(job.lineage).logs.begin()->second.key;
    auto& bytes = job.store.objects.at(key);
    bytes[kObjectHeaderBytes + (2 << 20) + 17] ^= 4;
    const auto report = ok(verify_point(job.store, job.maker.job, job.lineage, 3, options_reading(read_bytes)));
    bytes[kObjectHeaderBytes + (2 << 20) + 17] ^= 4;
    REQUIRE(report.findings.size() == 1);
    CHECK(report.findings[0].offset == kObjectHeaderBytes + (2 << 20));
  }
}
