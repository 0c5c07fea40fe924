// The live decoder on generated traffic: every all-reduce gets its number, whatever else is on the wire, and assembly
// holds exactly the values that were given to the generator, or names what is missing.
#include "dataplane/nccl_decoder.h"

#include <cstring>
#include <map>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "common/clock.h"
#include "common/random.h"
#include "dataplane/nccl_ring.h"
#include "dataplane/op_window.h"
#include "generator/fabric_faults.h"
#include "generator/nccl_job.h"
#include "tests/unit/generator/generated.h"

namespace gradtap::generator {
namespace {

using dataplane::NcclLayout;
using dataplane::OpKey;
using Bytes = std::vector<std::uint8_t>;

JobConfig job_config(NcclLayout layout, std::uint32_t ranks, std::uint32_t channels, std::uint64_t ll_max_bytes) {
  JobConfig config;
  config.tuning.layout = layout;
  config.tuning.ranks = ranks;
  config.tuning.channels = channels;
  config.tuning.ll_max_bytes = ll_max_bytes;
  config.cts = cts_format_of(layout);
  for (std::uint32_t rank = 0; rank < ranks; ++rank)
    config.hosts.push_back({MacAddress{2, 0, 0, 0, 0, static_cast<std::uint8_t>(rank)},
                            *dataplane::parse_ip("10.0.0." + std::to_string(rank + 1))});
  return config;
}

// A tap: frames in, through decoder and op window. Frames are freed after each call: what assembly has must be copies.
class Tap final : public FrameSink, private dataplane::SegmentSink {
 public:
  explicit Tap(const JobConfig& job)
      : schedule_(ring_of(job)), window_({}, schedule_), decoder_(config_of(job), directory_, clock_) {
    std::vector<dataplane::IpAddress> endpoints;
    for (const JobHost& host : job.hosts) endpoints.push_back(host.address);
    REQUIRE(directory_.set_endpoints(endpoints));
  }

  void frame(std::uint64_t time_ns, ByteSpan bytes, const FrameNote& /*note*/) override {
    if (time_ns > now_ns_) {
      clock_.advance_ns(time_ns - now_ns_);
      now_ns_ = time_ns;
    }
    const Bytes copy(bytes.begin(), bytes.end());
    const dataplane::Frame frame{copy.data(), static_cast<std::uint32_t>(copy.size()), 0, nullptr};
    decoder_.decode({&frame, 1}, *this);
    kept_.clear();
  }
  void learn(const std::vector<std::uint64_t>& elements) {
    for (const std::uint64_t count : elements) REQUIRE(sizes_.add({count * 4, 4}));
    window_.set_sizes(sizes_);
    decoder_.set_sizes(sizes_, *this);
  }
  // Everything that time and an empty queue bring.
  void rest(std::uint64_t ms = 100) {
    clock_.advance_ms(ms);
    now_ns_ += ms * 1'000'000;
    decoder_.tick(*this);
    decoder_.flush_holes(*this);
    decoder_.tick(*this);
    kept_.clear();
  }
  // "whole", "other" (wrong bytes), or the missing ranges.
  std::string compare(std::uint32_t tag, const Bytes& expected) {
    const OpKey op{comm, tag};
    const auto bound = window_.bind(op, expected.size());
    if (bound) return std::memcmp((*bound)->data(), expected.data(), expected.size()) == 0 ? "whole" : "other";
    std::string text;
    for (const Interval& range : window_.missing(op, expected.size()))
      text += "[" + std::to_string(range.begin) + "," + std::to_string(range.end) + ")";
    return text;
  }

  std::uint32_t comm = 0;
  [[nodiscard]] const dataplane::NcclDecoder& decoder() const { return decoder_; }
  [[nodiscard]] std::vector<OpKey> open() const { return window_.open_ops(); }
  dataplane::FlowDirectory& directory() { return directory_; }

 private:
  static std::shared_ptr<const dataplane::NcclRing> ring_of(const JobConfig& job) {
    auto ring = dataplane::NcclRing::make(job.tuning);
    REQUIRE(ring);
    return std::make_shared<const dataplane::NcclRing>(std::move(*ring));
  }
  static dataplane::NcclDecoderConfig config_of(const JobConfig& job) {
    dataplane::NcclDecoderConfig config;
    config.comm.tuning = job.tuning;
    return config;
  }
  void segment(const dataplane::Segment& segment) override { window_.add(segment); }
  void keep(const dataplane::OwnedBytes& bytes) override { kept_.push_back(bytes); }
  void hand_over(std::uint16_t /*queue*/, std::uint32_t /*frame_index*/) override { FAIL("one queue"); }

  ManualClock clock_;
  std::uint64_t now_ns_ = 0;
  dataplane::FlowDirectory directory_;
  std::shared_ptr<const dataplane::NcclRing> schedule_;
  dataplane::OpWindow window_;
  dataplane::SizeTable sizes_;
  dataplane::NcclDecoder decoder_;
  std::vector<dataplane::OwnedBytes> kept_;
};

struct Op {
  std::uint32_t tag = 0;
  Bytes values;
};

}  // namespace

TEST_CASE("every all-reduce has the number of its collective, broadcasts between them are counted") {
  for (const NcclLayout layout : {NcclLayout::kUpTo2_19, NcclLayout::k2_20To2_21, NcclLayout::kFrom2_22})
    for (const std::uint32_t ranks : {2U, 3U, 5U})
      for (const std::uint32_t channels : {1U, 2U, 4U})
        for (const std::uint64_t ll : {std::uint64_t{0}, std::uint64_t{1} << 20, std::uint64_t{100'000}}) {
          CAPTURE(static_cast<int>(layout));
          CAPTURE(ranks);
          CAPTURE(channels);
          CAPTURE(ll);
          SeededRandom random(ranks * 100 + channels);
          const JobConfig config = job_config(layout, ranks, channels, ll);
          auto job = NcclJob::make(config);
          REQUIRE(job);
          Tap tap(config);
          tap.learn({184'897, 66'000, 25'005, 93'892});
          std::vector<Op> ops;
          std::uint32_t tag = 0;
          const auto reduce = [&](std::uint64_t elements) {
            ops.push_back({tag++, floats(elements, random)});
            REQUIRE(job->all_reduce(ElementType::kFloat32, ops.back().values, {}, tap));
          };
          reduce(184'897);
          job->wait_until(job->now_ns() + 50'000'000);
          for (int i = 0; i < 2; ++i) {
            const Bytes word(8, static_cast<std::uint8_t>(i));
            REQUIRE(job->broadcast(0, word, tap));
            ++tag;
          }
          for (int step = 0; step < 3; ++step) {
            for (const std::uint64_t elements : {66'000, 25'005, 93'892}) reduce(elements);
            job->wait_until(job->now_ns() + 50'000'000);
          }
          tap.rest();
          CHECK(tap.open().size() == tag);  // the broadcasts too
          for (const Op& op : ops) {
            CAPTURE(op.tag);
            CHECK(tap.compare(op.tag, op.values) == "whole");
          }
          CHECK(tap.decoder().nccl_counters().lost_parses == 0);
        }
}

}  // namespace gradtap::generator
