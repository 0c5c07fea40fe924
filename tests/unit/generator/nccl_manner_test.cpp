// Traffic of NCCL's that is not decoded, written by the generator: a decoder on a live tap and an inspection name it,
// and a ring's is never named so.
#include "dataplane/nccl_manner.h"

#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "common/clock.h"
#include "dataplane/nccl_decoder.h"
#include "dataplane/nccl_report.h"
#include "generator/traffic.h"
#include "tests/unit/dataplane/nccl_inspect_harness.h"

namespace gradtap::generator {
namespace {

using dataplane::Frame;
using dataplane::testing::CapturedFrame;
using dataplane::testing::NcclInspection;

class Recorder final : public FrameSink {
 public:
  void frame(std::uint64_t time_ns, ByteSpan bytes, const FrameNote& note) override {
    if (only_data && note.kind != FrameKind::kData) return;
    frames.push_back({{bytes.begin(), bytes.end()}, static_cast<std::uint32_t>(bytes.size()), time_ns});
  }
  bool only_data = false;
  std::vector<CapturedFrame> frames;
};

class Nowhere final : public dataplane::SegmentSink {
 public:
  void segment(const dataplane::Segment& segment) override { bytes += segment.bytes; }
  void keep(const dataplane::OwnedBytes& /*bytes*/) override {}
  void hand_over(std::uint16_t /*queue*/, std::uint32_t /*frame_index*/) override {}
  std::uint64_t bytes = 0;
};

JobConfig job_of(std::uint32_t ranks, std::uint32_t channels, std::uint64_t ll_max_bytes) {
  JobConfig job;
  job.tuning.ranks = ranks;
  job.tuning.channels = channels;
  job.tuning.ll_max_bytes = ll_max_bytes;
  job.hosts = invented_hosts(1, ranks, false);
  return job;
}

const std::vector<std::uint64_t> kElements{5000, 40'000, 1000};

Recorder record(const JobConfig& config, bool only_data = false) {
  Recorder recorder;
  recorder.only_data = only_data;
  auto job = NcclJob::make(config);
  REQUIRE(job);
  DrawnValues drawn(ElementType::kFloat32, 7);
  for (int step = 0; step < 4; ++step)
    for (std::size_t bucket = 0; bucket < kElements.size(); ++bucket) {
      const ByteSpan values = drawn.draw(0, static_cast<std::uint64_t>(step), bucket, kElements[bucket]);
      REQUIRE(job->all_reduce(ElementType::kFloat32, values, {}, recorder));
    }
  return recorder;
}

// What a node's decoder says after these frames.
std::string live(const JobConfig& job, const Recorder& recorded, std::uint64_t& placed) {
  dataplane::FlowDirectory directory;
  std::vector<dataplane::IpAddress> endpoints;
  for (const JobHost& host : job.hosts) endpoints.push_back(host.address);
  REQUIRE(directory.set_endpoints(endpoints));
  ManualClock clock;
  dataplane::NcclDecoderConfig config;
  config.comm.tuning = job.tuning;
  dataplane::NcclDecoder decoder(config, directory, clock);
  Nowhere sink;
  dataplane::SizeTable sizes;
  for (const std::uint64_t elements : kElements) REQUIRE(sizes.add({elements * 4, 4}));
  decoder.set_sizes(sizes, sink);
  for (const CapturedFrame& frame : recorded.frames) {
    const Frame one{frame.bytes.data(), static_cast<std::uint32_t>(frame.bytes.size()), 0, nullptr};
    decoder.decode({&one, 1}, sink);
    clock.advance_ns(1000);
  }
  for (int i = 0; i < 30; ++i) {
    clock.advance_ms(100);
    decoder.tick(sink);
  }
  placed = sink.bytes;
  decoder.flush_holes(sink);
  CHECK(directory.refusal() == decoder.refusal());
  return decoder.refusal();
}

std::string inspected(const Recorder& recorded) {
  std::vector<const CapturedFrame*> pointers;
  for (const CapturedFrame& frame : recorded.frames) pointers.push_back(&frame);
  std::vector<dataplane::NcclBucket> buckets;
  for (const std::uint64_t elements : kElements) buckets.push_back({elements, "float32", 4});
  const NcclInspection inspection(pointers, buckets, false);
  const dataplane::NcclVerdict verdict =
      dataplane::nccl_verdict({inspection.survey, inspection.plan, inspection.ops, inspection.counters, {}, true});
  std::string text;
  for (const std::string& line : verdict.lines)
    if (line.starts_with("not supported: ")) text += line;
  CHECK(!(verdict.good && !text.empty()));
  return text;
}

bool has(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("a ring is never named as something that is not decoded") {
  for (const std::uint32_t ranks : {2U, 3U, 5U})
    for (const std::uint64_t ll : {std::uint64_t{0}, std::uint64_t{30'000}, std::uint64_t{1} << 20}) {
      CAPTURE(ranks);
      CAPTURE(ll);
      const JobConfig job = job_of(ranks, 2, ll);
      const Recorder recorded = record(job);
      std::uint64_t placed = 0;
      CHECK(live(job, recorded, placed).empty());
      CHECK(placed >= 4 * 4 * 46'000);
      CHECK(inspected(recorded).empty());
    }
}

TEST_CASE("LL128, trees and several queue pairs per connection are named, live and in captures") {
  JobConfig job;
  std::string_view name, remedy;
  bool only_data = false;
  SUBCASE("LL128") {
    job = job_of(3, 2, 1 << 20);
    job.ll128 = true;
    name = "LL128: ";
    remedy = "NCCL_PROTO=LL,Simple";
  }
  SUBCASE("LL128, two ranks, one direction of control unseen") {
    job = job_of(2, 1, 1 << 20);
    job.ll128 = true;
    only_data = true;
    name = "LL128: ";
    remedy = "NCCL_PROTO=LL,Simple";
  }
  SUBCASE("a tree of two ranks") {
    job = job_of(2, 1, 1 << 20);
  }
  SUBCASE("a tree of three ranks") {
    job = job_of(3, 1, 1 << 20);
  }
  SUBCASE("two trees of five ranks") {
    job = job_of(5, 2, 1 << 20);
  }
  if (name.empty()) {
    job.tree = true;
    name = "tree or NVLS: ";
    remedy = "NCCL_ALGO=Ring";
  }
  const Recorder recorded = record(job, only_data);
  std::uint64_t placed = 0;
  const std::string text = live(job, recorded, placed);
  CAPTURE(text);
  CHECK(text.starts_with(name));
  CHECK(has(text, remedy));
  CHECK(has(text, "(costs "));
  const std::string said = inspected(recorded);
  CAPTURE(said);
  CHECK(has(said, name));
  CHECK(has(said, remedy));
}

TEST_CASE("several queue pairs per connection are named, live and in captures") {
  for (const std::uint32_t ranks : {2U, 3U})
    for (const std::uint32_t queue_pairs : {2U, 4U})
      for (const bool cut : {true, false})
        for (const bool ll : {true, false}) {
          CAPTURE(ranks);
          CAPTURE(queue_pairs);
          CAPTURE(cut);
          CAPTURE(ll);
          JobConfig job = job_of(ranks, 2, ll ? 1 << 20 : 0);
          job.queue_pairs = queue_pairs;
          job.cut_over_queue_pairs = cut;
          const Recorder recorded = record(job);
          std::uint64_t placed = 0;
          const std::string text = live(job, recorded, placed);
          CAPTURE(text);
          CHECK(text.starts_with("several queue pairs per connection: "));
          CHECK(has(text, "NCCL_IB_QPS_PER_CONNECTION=1"));
          if (cut) CHECK(has(text, "cut over " + std::to_string(queue_pairs)));
          CHECK(has(inspected(recorded), "several queue pairs per connection: "));
        }
}

}  // namespace gradtap::generator
