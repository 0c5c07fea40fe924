// Keys are compared with text written by hand from docs/formats.md.
#include "storage/object_key.h"

#include <string>
#include <vector>

#include <doctest/doctest.h>

using namespace gradtap;
using namespace gradtap::storage;

TEST_CASE("keys as documented, and back") {
  const std::string base = "jobs/gpt-2.small/00000000000000000003/";
  CHECK(lineage_claim_key("gpt-2.small", 3) == "jobs/gpt-2.small/lineage/00000000000000000003");
  CHECK(full_key("gpt-2.small", 3, 7, 64, "ab1") == base + "shard/00007/full/00000000000000000064-ab1");
  CHECK(log_key("gpt-2.small", 3, 7, 65, "ab1") == base + "shard/00007/log/00000000000000000065-ab1");
  CHECK(step_key("gpt-2.small", 3, 65, "ab1") == base + "step/00000000000000000065-ab1");
  CHECK(side_state_key("gpt-2.small", 3, 65, "ab1") == base + "side/00000000000000000065-ab1");
  CHECK(meta_key("gpt-2.small", 3, "ab1") == base + "meta/ab1");
  CHECK(point_key("gpt-2.small", 3, 65) == base + "point/00000000000000000065");
  CHECK(build_key({KeyKind::kLease, "gpt-2.small", 3, 0, 65, "ab1", 2}) ==
        base + "lease/00000000000000000065-ab1-00000000000000000002");
  CHECK(build_key({KeyKind::kStoreId, {}, 0, 0, 0, {}}) == "cluster/store-id");
  CHECK(build_key({KeyKind::kSeen, "tap-0", 0, 0, 0, "ab1"}) == "cluster/seen/tap-0-ab1");
  CHECK(epoch_key(12) == "cluster/epoch/00000000000000000012");
  CHECK(epochs_prefix() == "cluster/epoch/");
  CHECK(points_prefix("gpt-2.small", 3) == base + "point/");
  const ObjectKey keys[] = {
      {KeyKind::kStoreId, {}, 0, 0, 0, {}},
      {KeyKind::kSeen, "tap-0", 0, 0, 0, "ab1"},
      {KeyKind::kLineage, "a", ~LineageId{0}, 0, 0, {}},
      {KeyKind::kFull, "a", 1, ~ShardId{0}, ~StepNumber{0}, "z"},
      {KeyKind::kLog, "lineage", 1, 99999, 0, "z"},
      {KeyKind::kStep, "..", 1, 0, 5, "z"},
      {KeyKind::kSide, "a/b c%", 1, 0, 5, "z"},
      {KeyKind::kMeta, "a", 1, 0, 0, "z"},
      {KeyKind::kPoint, "a", 1, 0, 5, {}},
      {KeyKind::kLease, "a", 1, 0, 5, "z", ~std::uint64_t{0}},
      {KeyKind::kEpoch, {}, 0, 0, 0, {}, 1},
      {KeyKind::kEpoch, {}, 0, 0, 0, {}, ~std::uint64_t{0}},
  };
  for (const ObjectKey& key : keys) {
    const std::string text = build_key(key);
    CAPTURE(text);
    CHECK(is_plain_key(text));
    REQUIRE(parse_key(text).has_value());
    CHECK(*parse_key(text) == key);
  }
}

TEST_CASE("job names become one safe segment each") {
  CHECK(job_segment("gpt-2.small_x") == "gpt-2.small_x");
  CHECK(job_segment("..") == "%2E.");
  CHECK(job_segment("a/b%") == "a%2Fb%25");
  CHECK(job_segment(std::string("\0\xff", 2)) == "%00%FF");
  CHECK(job_of_segment("a%2Fb%25") == "a/b%");
  for (const char* wrong : {"", "a%2", "a%2f", "%61", "a/b", ".a", "a b"})
    CHECK_FALSE(job_of_segment(wrong).has_value());
}

TEST_CASE("what is no key is none: another form of the same number, hostile paths (I4, I17)") {
  const std::string base = "jobs/a/00000000000000000003/";
  const std::vector<std::string> wrong = {
      "",
      "/",
      "jobs",
      "jobs/a",
      "jobs/../x/y",
      "jobs/a/lineage/3",
      "jobs/a/lineage/00000000004294967296",
      "jobs/a/lineage/00000000000000000003/x",
      "jobs/a/3/point/00000000000000000005",
      base + "point/5",
      base + "point/0000000000000000005",
      base + "point/000000000000000000005",
      base + "point/99999999999999999999",
      base + "point/0000000000000000000x",
      base + "point/00000000000000000005/x",
      base + "point//00000000000000000005",
      base + "step/00000000000000000005",
      base + "step/00000000000000000005-",
      base + "step/00000000000000000005-A",
      base + "step/00000000000000000005-a-b",
      base + "shard/7/log/00000000000000000005-a",
      base + "shard/000007/log/00000000000000000005-a",
      base + "shard/00007/other/00000000000000000005-a",
      base + "lease/00000000000000000005-a",
      base + "lease/00000000000000000005-a-1",
      base + "meta/" + std::string(65, 'a'),
      base + "other/00000000000000000005-a",
      "cluster/store-id2",
      "cluster/seen/a",
      "cluster/epoch",
      "cluster/epoch/1",
      "cluster/epoch/00000000000000000000",
      "cluster/epoch/0000000000000000001x",
      "cluster/epoch/99999999999999999999",
      "cluster/epoch/00000000000000000001/x",
      "tmp/a.b",
  };
  for (const std::string& key : wrong) CHECK_FALSE_MESSAGE(parse_key(key).has_value(), key);
  for (const std::string& key :
       {std::string("a//b"), std::string("../a"), std::string("a/.b"), std::string("/a"), std::string("a/"),
        std::string("a\0b", 3), std::string("a b"), std::string(1025, 'a'), std::string(256, 'a')})
    CHECK_FALSE(is_plain_key(key));
}

TEST_CASE("text order of points is step order") {
  CHECK(point_key("a", 1, 9) < point_key("a", 1, 10));
  CHECK(point_key("a", 1, 255) < point_key("a", 1, 256));
  SeededRandom random(1);
  const std::string uid = new_uid(random);
  CHECK(uid.size() == 32);
  CHECK(uid != new_uid(random));
}
