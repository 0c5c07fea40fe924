// The all-reduces of the recorded captures against the contract of `gradtap inspect`.
#include <fstream>
#include <map>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "dataplane/capture_file.h"
#include "tests/test_files.h"
#include "tests/unit/dataplane/nccl_inspect_harness.h"

namespace gradtap::dataplane {
namespace {

using nlohmann::json;
using namespace testing;
using gradtap::testing::capture_path;

std::vector<CapturedFrame> frames_of(const std::string& path) {
  const auto file = CaptureFile::open(path);
  auto walker = file->walk();
  std::vector<CapturedFrame> frames;
  CaptureRecord record;
  while (walker->next(record).value())
    frames.push_back({{record.bytes.begin(), record.bytes.end()}, record.wire_bytes, record.time_ns});
  return frames;
}

std::vector<const CapturedFrame*> all(const std::vector<CapturedFrame>& frames) {
  std::vector<const CapturedFrame*> pointers;
  for (const CapturedFrame& frame : frames) pointers.push_back(&frame);
  return pointers;
}

json ranges(const std::vector<Interval>& intervals) {
  json result = json::array();
  for (const Interval& range : intervals) result.push_back({range.begin, range.end});
  return result;
}

void check_ops(const NcclInspection& inspection, const json& expected) {
  REQUIRE(inspection.ops.size() == expected.size());
  for (std::size_t i = 0; i < expected.size(); ++i) {
    CAPTURE(i);
    const AssembledOp& op = inspection.ops[i];
    CHECK(op.index == expected[i]["index"].get<std::uint64_t>());
    CHECK(op.complete == expected[i]["complete"].get<bool>());
    CHECK(ranges(op.present) == expected[i]["present"]);
    CHECK(ranges(op.lost_definitive) == expected[i]["lost_definitive"]);
    CHECK((op.sha256 ? json(to_hex(*op.sha256)) : json(nullptr)) == expected[i]["sha256"]);
    CHECK(!op.conflict);
  }
}

TEST_CASE("the all-reduces of the recorded captures") {
  const std::string contract = capture_path("inspect-expected.json", "nccl_inspect");
  if (contract.empty()) return;
  const auto known = json::parse(std::ifstream(contract));
  REQUIRE(known["captures"].size() == 5);
  for (const json& capture : known["captures"]) {
    const std::string path = capture_path(capture["file"], "nccl_inspect");
    if (path.empty()) continue;
    CAPTURE(path);
    const auto frames = frames_of(path);
    std::vector<NcclBucket> buckets;
    const json& first = capture["ops"][0];
    buckets.push_back(
        parse_nccl_bucket(std::to_string(first["elements"].get<int>()) + ":" + first["dtype"].get<std::string>())
            .value());
    const bool has_default = capture.contains("ops_default");
    const NcclInspection plain(all(frames), buckets, false);
    for (const PlannedBucket& bucket : plain.plan.buckets) CHECK(bucket.reason == "");
    check_ops(plain, has_default ? capture["ops_default"] : capture["ops"]);
    // Where the trainer's sends are copies of what is there, they agree.
    if (capture["file"] == "allreduce+p2p.pcapng") continue;  // there the whole vector is sent: not declared so
    check_ops(NcclInspection(all(frames), buckets, true), capture["ops"]);
  }
}

TEST_CASE("a size that is not there has a reason") {
  const std::string path = capture_path("iter_40000_p2p.pcapng", "nccl_inspect");
  if (path.empty()) return;
  const auto frames = frames_of(path);
  for (const char* const text : {"4990:float32", "10000:int32", "123456789:float32"}) {
    const NcclInspection inspection(all(frames), {parse_nccl_bucket(text).value()}, false);
    CHECK(inspection.ops.empty());
    CHECK(inspection.plan.buckets[0].reason == "no messages of this size were found");
  }
}

TEST_CASE("bucket texts") {
  const auto bucket = parse_nccl_bucket("5000:bfloat16");
  REQUIRE(bucket.has_value());
  CHECK(bucket->elements == 5000);
  CHECK(bucket->element_bytes == 2);
  for (const char* const text : {"", ":", "5000", "5000:", "0:float32", "-1:float32", "5000:complex64", "5000 :float32",
                                 "99999999999999999999:float32", "999999999999:float32"})
    CHECK(!parse_nccl_bucket(text).has_value());
}

}  // namespace
}  // namespace gradtap::dataplane
