// Every recorded capture with each single frame dropped, doubled or swapped with its neighbour: the known vector, or
// exactly the elements missing that the frame carried, never a wrong byte.
#include <fstream>
#include <map>
#include <set>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "dataplane/capture_file.h"
#include "tests/test_files.h"
#include "tests/unit/dataplane/nccl_inspect_harness.h"

namespace gradtap::dataplane {
namespace {

using namespace testing;
using gradtap::testing::capture_path;
using nlohmann::json;

struct Recording {
  std::string name;
  bool completing_send = false;
  std::vector<CapturedFrame> frames;
  std::vector<NcclBucket> buckets;
  json contract;
  json truth;
};

std::optional<Recording> load(const json& contract, const json& truths) {
  Recording recording;
  recording.name = contract["file"];
  const std::string path = capture_path(recording.name, "nccl_captures");
  if (path.empty()) return std::nullopt;
  for (const json& truth : truths["captures"])
    if (truth["file"] == recording.name) recording.truth = truth;
  recording.contract = contract;
  recording.completing_send = contract.contains("ops_default");
  const auto file = CaptureFile::open(path);
  auto walker = file->walk();
  CaptureRecord record;
  while (walker->next(record).value())
    recording.frames.push_back({{record.bytes.begin(), record.bytes.end()}, record.wire_bytes, record.time_ns});
  const json& op = contract["ops"][0];
  recording.buckets.push_back(
      parse_nccl_bucket(std::to_string(op["elements"].get<int>()) + ":" + op["dtype"].get<std::string>()).value());
  return recording;
}

struct FrameOfOp {
  std::size_t op = 0;
  Interval elements;
  bool final = false;
  // Of a first packet whose message lost its last ones too: how long the message is, and so what it holds behind the
  // next gap, is said by nothing that is left.
  std::optional<Interval> unprovable;
};

// What one frame carries, from the list of messages in expected.json alone: its flow by addresses and queue pair, its
// message by PSN, its elements by what is written there about the message.
std::optional<FrameOfOp> carried_by(const Recording& recording, const CapturedFrame& frame) {
  RoceCaptureCounters counters;
  RoceFrame packet;
  if (read_roce_frame(frame.bytes, frame.wire_bytes, counters, packet) != FrameDrop::kNone) return std::nullopt;
  if (packet.meaning.kind != RoceKind::kWrite || packet.payload.empty()) return std::nullopt;
  for (const json& flow : recording.truth["flows"]) {
    if (flow["dst"] != to_hex(packet.target.bytes) || flow["dest_qpn"] != packet.target_qp || flow["role"] != "DATA")
      continue;
    for (const json& message : flow["messages"]) {
      const auto first = message["psn_first"].get<std::uint32_t>(), last = message["psn_last"].get<std::uint32_t>();
      if (packet.psn < first || packet.psn > last || !message.contains("nccl")) continue;
      const json& nccl = message["nccl"];
      const std::string what = nccl["what"];
      const std::uint64_t mtu = flow["pmtu_observed"].is_null() ? 1024 : flow["pmtu_observed"].get<std::uint64_t>();
      const std::uint64_t offset = (packet.psn - first) * mtu;
      FrameOfOp carried;
      if (!nccl.contains("iteration")) return std::nullopt;
      carried.op = nccl["iteration"].get<std::size_t>() - 1;
      if (what.starts_with("allreduce all-gather")) {
        const std::uint64_t begin = nccl["elements"][0].get<std::uint64_t>();
        carried.elements = {begin + offset / 8, begin + (offset + packet.payload.size()) / 8};
        carried.final = true;
        if (packet.psn == first && !message["complete"].get<bool>()) {
          const std::uint64_t gap = message["missing_psns"][0][0].get<std::uint64_t>() - first;
          carried.unprovable = Interval{begin + gap * mtu / 8, nccl["elements"][1].get<std::uint64_t>()};
        }
      } else if (what.starts_with("P2P") && recording.completing_send) {
        carried.elements = {3072 + offset / 4, 3072 + (offset + packet.payload.size()) / 4};
        carried.final = true;
      } else {
        return std::nullopt;
      }
      return carried;
    }
  }
  return std::nullopt;
}

// The present ranges of the contract without those of the dropped frame.
std::vector<Interval> without(const json& present, const std::optional<Interval>& dropped) {
  IntervalSet set;
  for (const json& range : present) set.add(range[0].get<std::uint64_t>(), range[1].get<std::uint64_t>());
  if (dropped) set.remove(dropped->begin, dropped->end);
  return set.ranges();
}

void check(const Recording& recording, const NcclInspection& inspection, const std::optional<FrameOfOp>& dropped) {
  const json& ops = recording.contract["ops"];
  REQUIRE(inspection.ops.size() == ops.size());
  REQUIRE(inspection.counters.conflicts == 0);
  REQUIRE(inspection.counters.wrong_flags == 0);
  for (std::size_t i = 0; i < ops.size(); ++i) {
    const AssembledOp& op = inspection.ops[i];
    const std::optional<Interval> hole =
        dropped && dropped->final && dropped->op == i ? std::optional(dropped->elements) : std::nullopt;
    REQUIRE(op.index == i + 1);
    IntervalSet expected;
    for (const Interval& range : without(ops[i]["present"], hole)) expected.add(range.begin, range.end);
    if (hole && dropped->unprovable && op.present != expected.ranges())
      expected.remove(dropped->unprovable->begin, dropped->unprovable->end);
    REQUIRE(op.present == expected.ranges());
    const bool complete = ops[i]["complete"].get<bool>() && !hole;
    REQUIRE(op.complete == complete);
    if (complete) REQUIRE(to_hex(op.sha256.value()) == ops[i]["sha256"].get<std::string>());
    // What is lost for good is missing, and nothing else is called lost than in the contract or the dropped frame.
    IntervalSet allowed;
    for (const json& range : ops[i]["lost_definitive"])
      allowed.add(range[0].get<std::uint64_t>(), range[1].get<std::uint64_t>());
    if (hole) allowed.add(hole->begin, hole->end);
    for (const Interval& range : op.lost_definitive) REQUIRE(allowed.contains(range.begin, range.end));
  }
}

TEST_CASE("each single frame of the recorded captures dropped, doubled or swapped with its neighbour (N1)") {
  const std::string contract_path = capture_path("inspect-expected.json", "nccl_captures");
  if (contract_path.empty()) return;
  const json contracts = json::parse(std::ifstream(contract_path));
  const json truths = json::parse(std::ifstream(capture_path("expected.json", "nccl_captures")));
  std::uint64_t changed = 0, holes = 0;
  for (const json& contract : contracts["captures"]) {
    const auto recording = load(contract, truths);
    if (!recording) continue;
    CAPTURE(recording->name);
    for (int change = 0; change < 3; ++change) {
      for (std::size_t at = 0; at < recording->frames.size(); ++at) {
        CAPTURE(change);
        CAPTURE(at);
        std::vector<const CapturedFrame*> frames;
        for (const CapturedFrame& frame : recording->frames) frames.push_back(&frame);
        const auto where = frames.begin() + static_cast<std::ptrdiff_t>(at);
        std::optional<FrameOfOp> dropped;
        if (change == 0) {
          dropped = carried_by(*recording, recording->frames[at]);
          frames.erase(where);
        } else if (change == 1) {
          frames.insert(where, *where);
        } else if (at + 1 < frames.size()) {
          std::swap(*where, *(where + 1));
        }
        const NcclInspection inspection(frames, recording->buckets, recording->completing_send);
        check(*recording, inspection, dropped);
        ++changed;
        holes += dropped ? 1 : 0;
      }
    }
  }
  MESSAGE("changed captures: " << changed << ", with a final frame dropped: " << holes);
}

}  // namespace
}  // namespace gradtap::dataplane
