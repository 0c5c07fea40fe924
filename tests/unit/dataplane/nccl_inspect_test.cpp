// The all-reduces of the recorded captures against the contract of `gradtap inspect`.
#include <algorithm>
#include <fstream>
#include <map>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "dataplane/capture_file.h"
#include "dataplane/nccl_report.h"
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

TEST_CASE("the report says it as the contract does, and the flows as they are known") {
  const std::string contract = capture_path("inspect-expected.json", "nccl_report");
  if (contract.empty()) return;
  const auto contracts = json::parse(std::ifstream(contract));
  const auto truths = json::parse(std::ifstream(capture_path("expected.json", "nccl_report")));
  for (std::size_t c = 0; c < contracts["captures"].size(); ++c) {
    const json& capture = contracts["captures"][c];
    const std::string path = capture_path(capture["file"], "nccl_report");
    if (path.empty()) continue;
    CAPTURE(path);
    const auto frames = frames_of(path);
    const json& first = capture["ops"][0];
    const std::vector<NcclBucket> buckets{
        parse_nccl_bucket(std::to_string(first["elements"].get<int>()) + ":" + first["dtype"].get<std::string>())
            .value()};
    const NcclInspection inspection(all(frames), buckets, capture.contains("ops_default"));
    const NcclFindings findings{inspection.survey, inspection.plan, inspection.ops, inspection.counters, {}, true};
    const json report = nccl_report_json(findings);
    for (const char* const key : {"frames", "roce_frames", "icrc_bad", "ops"}) {
      CAPTURE(key);
      CHECK(report[key] == capture[key]);
    }
    CHECK(!report.contains("cut"));
    CHECK(!report.contains("refused"));
    const bool whole =
        std::all_of(inspection.ops.begin(), inspection.ops.end(), [](const AssembledOp& op) { return op.complete; });
    const NcclVerdict verdict = nccl_verdict(findings);
    CHECK(verdict.good == whole);
    CHECK(verdict.lines.back().starts_with(whole ? "verdict: complete" : "verdict: INCOMPLETE"));
    for (const json& truth : truths["captures"]) {
      if (truth["file"] != capture["file"]) continue;
      REQUIRE(report["flows"].size() == truth["flows"].size());
      for (const json& expected : truth["flows"]) {
        json missing = json::array();
        for (const json& message : expected["messages"])
          for (const json& range : message.value("missing_psns", json::array()))
            missing.push_back({range[0], range[1].get<int>() + 1});
        const json wanted = {{"src", expected["src"]},
                             {"dst", expected["dst"]},
                             {"dest_qpn", expected["dest_qpn"]},
                             {"udp_sport", expected["udp_sport"]},
                             {"role", expected["role"]},
                             {"packets", expected["write_packets"]},
                             {"psn_first", expected["first_psn"]},
                             {"psn_last", expected["last_psn"]},
                             {"psn_missing", missing}};
        const bool found = std::any_of(report["flows"].begin(), report["flows"].end(), [&](const json& flow) {
          return std::all_of(wanted.items().begin(), wanted.items().end(),
                             [&](const auto& field) { return flow[field.key()] == field.value(); });
        });
        CHECK_MESSAGE(found, wanted.dump());
      }
      // What is known to be a broadcast, an all-gather or a send is none of the all-reduces.
      std::size_t foreign = 0;
      for (const json& flow : truth["flows"])
        for (const json& message : flow["messages"])
          foreign +=
              message.contains("nccl") && !message["nccl"]["what"].get<std::string>().starts_with("allreduce") ? 1 : 0;
      std::size_t reported = 0;
      for (const json& other : report["other_ops"]) {
        reported += other["messages"].get<std::size_t>();
        if (other["kind"] == "all-gather") CHECK(other["bytes"] == 8);  // one int64
      }
      if (capture.contains("ops_default")) --foreign;  // its send completes the all-reduce
      CHECK(reported == foreign);
    }
  }
}

TEST_CASE("one direction of two is said, and without sizes every message is listed") {
  const std::string path = capture_path("iter_40000_p2p.pcapng", "nccl_report");
  if (path.empty()) return;
  const auto frames = frames_of(path);
  const NcclInspection inspection(all(frames), {}, false);
  const NcclFindings findings{inspection.survey, inspection.plan, inspection.ops, inspection.counters, {}, false};
  const json report = nccl_report_json(findings);
  REQUIRE(report["messages"].size() == 6);
  CHECK(report["messages"][2]["bytes"] == 40000);
  CHECK(report["messages"][2]["protocol"] == "LL");
  CHECK(report["messages"][2]["flag"] == 3);
  CHECK(report["messages"][5]["protocol"] == "Simple");
  const NcclVerdict verdict = nccl_verdict(findings);
  CHECK(!verdict.good);
  REQUIRE(verdict.lines.size() == 2);
  CHECK(verdict.lines[0].starts_with("one direction of two"));
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
