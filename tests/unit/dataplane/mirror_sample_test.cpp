// What a mirror port delivers, judged: from whom, whole or cut, with right checksums.
#include "dataplane/mirror_sample.h"

#include <doctest/doctest.h>

#include "tests/unit/dataplane/decode_harness.h"

namespace gradtap::dataplane {
namespace {

using namespace testing;

std::vector<IpAddress> three_hosts() {
  return {*parse_ip("10.77.0.10"), *parse_ip("10.77.0.11"), *parse_ip("10.77.0.12")};
}

std::vector<std::uint8_t> from_to(const char* source, const char* target, std::size_t payload) {
  FrameSpec spec;
  spec.source = source;
  spec.target = target;
  spec.payload.assign(payload, 7);
  return make_frame(spec);
}

}  // namespace

TEST_CASE("a sample says which of the job's hosts send, and how much") {
  MirrorSample sample(three_hosts(), SampledTraffic::kTcp);
  sample.frame(from_to("10.77.0.10", "10.77.0.11", 100), 0);
  sample.frame(from_to("10.77.0.10", "10.77.0.12", 40), 0);
  sample.frame(from_to("10.77.0.11", "10.77.0.12", 3), 0);
  sample.frame(from_to("10.77.0.12", "10.99.0.1", 500), 0);  // to a stranger
  sample.frame(from_to("10.99.0.1", "10.77.0.12", 500), 0);  // from one
  CHECK(sample.sent == std::vector<std::uint64_t>{140, 3, 0});
  CHECK(sample.frames == 5);
  CHECK(sample.job_frames == 3);
  CHECK(sample.dropped(FrameDrop::kNone) == 5);
  CHECK(sample.longest_bytes == 14 + 20 + 20 + 500);
}

TEST_CASE("a frame that the mirror cut, and one with a wrong checksum, are counted as that") {
  MirrorSample sample(three_hosts(), SampledTraffic::kTcp);
  const auto whole = from_to("10.77.0.10", "10.77.0.11", 1000);
  auto cut = whole;
  cut.resize(200);
  sample.frame(cut, static_cast<std::uint32_t>(whole.size()));
  CHECK(sample.dropped(FrameDrop::kTruncated) == 1);
  CHECK(sample.longest_bytes == whole.size());
  auto wrong = whole;
  wrong.back() ^= 1;
  sample.frame(wrong, 0);
  CHECK(sample.dropped(FrameDrop::kBadTcpChecksum) == 1);
  // Of others it means nothing.
  auto of_others = from_to("10.99.0.2", "10.99.0.1", 1000);
  of_others.back() ^= 1;
  sample.frame(of_others, 0);
  CHECK(sample.dropped(FrameDrop::kBadTcpChecksum) == 1);
  CHECK(sample.sent == std::vector<std::uint64_t>{0, 0, 0});
  CHECK(sample.job_frames == 0);
}

TEST_CASE("what is no RoCE is counted as that where RoCE is looked for") {
  MirrorSample sample(three_hosts(), SampledTraffic::kRoce);
  sample.frame(from_to("10.77.0.10", "10.77.0.11", 100), 0);
  CHECK(sample.dropped(FrameDrop::kNotRoce) == 1);
  sample.frame({}, 0);
  CHECK(sample.frames == 2);
  CHECK(sample.dropped(FrameDrop::kNone) == 0);
}

}  // namespace gradtap::dataplane
