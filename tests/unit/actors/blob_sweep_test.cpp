#include "actors/blob_sweep.h"

#include <algorithm>

#include <doctest/doctest.h>

#include "tests/unit/actors/side_fixture.h"

namespace gradtap::actors {
namespace {

using Keys = std::vector<std::string>;

struct BlobRig {
  test::StoredJob job{test::three_shards(test::sgd())};
  test::SideWriter side{job};
  BlobSweep blobs;

  [[nodiscard]] Keys sweep() {
    auto given_up = blobs.sweep(*job.store, job.plan->job, job.plan->lineage);
    if (!given_up) FAIL(given_up.error().text());
    return std::move(*given_up);
  }
  [[nodiscard]] std::string key(std::uint32_t rank, std::string_view content) const {
    return test::blob_key(*job.plan, rank, content);
  }
};

}  // namespace

TEST_CASE("a blob goes when two sweeps in a row found no message that names it") {
  BlobRig rig;
  CHECK(rig.sweep().empty());
  rig.side.blob(0, "named");
  rig.side.blob(0, "not yet named");
  rig.side.blob(1, "named");  // of another rank, whose message does not name it
  rig.side.message(1, 0, {{"blobs", {{"data", test::blob_entry("named")}}}});
  CHECK(rig.sweep().empty());  // uploaded a moment ago: its message may be under way
  rig.side.message(2, 0, {{"blobs", {{"scaler", test::blob_entry("not yet named")}}}});
  CHECK(rig.sweep() == Keys{rig.key(1, "named")});
  // Given up is not gone: whoever sweeps deletes.
  CHECK(rig.sweep().empty());
  CHECK(rig.sweep() == Keys{rig.key(1, "named")});
}

TEST_CASE("a blob goes with the last message that names it") {
  BlobRig rig;
  rig.side.blob(0, "old");
  rig.side.blob(0, "kept");
  for (StepNumber step = 1; step <= 3; ++step)
    rig.side.message(
        step, 0,
        {{"blobs", {{"data", test::blob_entry(step < 3 ? "old" : "kept")}, {"again", test::blob_entry("kept")}}}});
  test::require_ok(rig.job.store->remove_side({test::message_key(*rig.job.plan, 1, 0)}));
  for (int i = 0; i < 3; ++i) CHECK(rig.sweep().empty());  // step 2 names it
  test::require_ok(rig.job.store->remove_side({test::message_key(*rig.job.plan, 2, 0)}));
  CHECK(rig.sweep().empty());
  CHECK(rig.sweep() == Keys{rig.key(0, "old")});
}

TEST_CASE("a blob that is named between two sweeps begins anew") {
  BlobRig rig;
  rig.side.blob(1, "b");
  CHECK(rig.sweep().empty());
  rig.side.message(5, 1, {{"blobs", {{"data", test::blob_entry("b")}}}});
  CHECK(rig.sweep().empty());
  test::require_ok(rig.job.store->remove_side({test::message_key(*rig.job.plan, 5, 1)}));
  CHECK(rig.sweep().empty());
  CHECK(rig.sweep() == Keys{rig.key(1, "b")});
}

TEST_CASE("messages that name nothing in a known way name nothing, one that cannot be read gives nothing up") {
  BlobRig rig;
  rig.side.blob(0, "b");
  rig.side.message(1, 0, {{"blobs", 5}});
  rig.side.message(2, 0, {{"blobs", {{"x", 5}, {"y", {{"digest", 5}}}, {"z", {{"digest", "abc"}}}}}});
  CHECK(rig.sweep().empty());
  test::require_ok(rig.job.store->put_side(test::message_key(*rig.job.plan, 3, 0), test::text_bytes("none"), true));
  CHECK_FALSE(rig.blobs.sweep(*rig.job.store, rig.job.plan->job, 1));
  test::require_ok(rig.job.store->remove_side({test::message_key(*rig.job.plan, 3, 0)}));
  CHECK(rig.sweep() == Keys{rig.key(0, "b")});
}

TEST_CASE("blobs and messages of another lineage are another matter") {
  BlobRig rig;
  rig.side.blob(0, "b");
  const auto swept = rig.blobs.sweep(*rig.job.store, rig.job.plan->job, 2);
  REQUIRE(swept);
  CHECK(swept->empty());
  CHECK(rig.sweep().empty());
  CHECK(rig.sweep().size() == 1);
}

}  // namespace gradtap::actors
