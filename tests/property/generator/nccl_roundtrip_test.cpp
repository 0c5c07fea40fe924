// From a generated fabric to vectors: what the decoder and assembly make of the frames that the mirror delivered is the
// reduced vector, or has exactly the holes that the lost frames make.
//
// What can be known is computed from the generator's own notes: a byte is there if a frame that carries it in final
// form was delivered on any link.
#include <algorithm>
#include <cstdlib>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "common/clock.h"
#include "dataplane/nccl_decoder.h"
#include "dataplane/nccl_ring.h"
#include "dataplane/op_buffer.h"
#include "tests/property/generator/fabric_case.h"

namespace gradtap::dataplane {
namespace {

using generator::FrameKind;
using generator::HeldFrame;
using gradtap::testing::FabricCase;
using gradtap::testing::FabricRun;

// Segments into op buffers, as assembly does it; kept blocks live as long as the sink.
class Assembler final : public SegmentSink {
 public:
  Assembler(const NcclRing& ring, OpSize size, std::uint64_t pool_bytes)
      : ring_(ring), size_(size), pool_(OpBufferPool::create(pool_bytes)), limbo_(pool_bytes) {}
  void segment(const Segment& segment) override {
    auto found = ops.find(segment.op.tag);
    if (found == ops.end()) {
      const std::vector<OpSize> sizes{size_};
      found = ops.emplace(segment.op.tag, std::make_unique<OpBuffer>(segment.op, ring_, pool_, limbo_, counters,
                                                                     OpBufferLimits{}, sizes))
                  .first;
    }
    (void)found->second->add(segment);
  }
  void keep(const OwnedBytes& bytes) override { kept_.push_back(bytes); }
  void hand_over(std::uint16_t, std::uint32_t) override { FAIL("one queue only"); }

  std::map<std::uint32_t, std::unique_ptr<OpBuffer>> ops;  // by tag
  AssemblyCounters counters;

 private:
  const NcclRing& ring_;
  OpSize size_;
  std::shared_ptr<OpBufferPool> pool_;
  LimboBudget limbo_;
  std::vector<OwnedBytes> kept_;
};

struct RoundTripTotals {
  std::uint64_t complete = 0;
  std::uint64_t with_holes = 0;
  std::uint64_t hole_bytes = 0;
  std::uint64_t unknowable = 0;  // vectors of which something was seen that nothing on the wire gives a place
};

void check_round_trip(const FabricCase& c, RoundTripTotals& totals) {
  CAPTURE(c.text());
  const FabricRun run = gradtap::testing::run_case(c);
  const std::uint32_t element = generator::element_bytes(c.type);
  const OpSize size{c.elements * element, element};
  const auto ring = NcclRing::make(run.job.tuning);
  REQUIRE(ring);

  FlowDirectory directory;
  std::vector<IpAddress> endpoints;
  for (const generator::JobHost& host : run.job.hosts) endpoints.push_back(host.address);
  REQUIRE(directory.set_endpoints(endpoints));
  ManualClock clock;
  NcclDecoderConfig config;
  config.comm.tuning = run.job.tuning;
  NcclDecoder decoder(config, directory, clock);
  Assembler assembler(*ring, size, std::max<std::uint64_t>(64ULL << 20, 4 * c.ops * size.bytes));
  SizeTable sizes;
  REQUIRE(sizes.add(size));
  decoder.set_sizes(sizes, assembler);

  const std::vector<gradtap::testing::Knowable> known = gradtap::testing::knowable(run, c.ops);
  for (std::size_t at = 0; at < run.seen.size();) {
    std::vector<Frame> burst;
    for (; at < run.seen.size() && burst.size() < 32; ++at) {
      const HeldFrame& held = run.seen[at];
      burst.push_back({held.bytes.data(), static_cast<std::uint32_t>(held.bytes.size()),
                       static_cast<std::uint32_t>(held.bytes.size()), nullptr});
    }
    decoder.decode(burst, assembler);
    clock.advance_ns(10'000);
  }
  const auto rest = [&] {  // longer than an edge waits that shows fewer connections than another
    for (int i = 0; i < 30; ++i) {
      clock.advance_ms(100);
      decoder.tick(assembler);
    }
  };
  rest();
  decoder.flush_holes(assembler);
  rest();

  CHECK(assembler.counters.conflicts == 0);
  CHECK(assembler.ops.size() <= c.ops);
  for (std::uint32_t op = 0; op < c.ops; ++op) {
    CAPTURE(op);
    const std::vector<std::uint8_t>& reduced = run.reduced[op];
    const auto found = assembler.ops.find(op);
    if (found == assembler.ops.end()) {
      CHECK(known[op].least.empty());
      continue;
    }
    std::vector<std::uint8_t> assembled(reduced.size());
    found->second->copy_covered(assembled);
    const std::vector<Interval> missing = found->second->missing(reduced.size());
    IntervalSet holes;
    for (const Interval& range : missing) holes.add(range.begin, range.end);
    std::uint64_t too_few = 0, too_many = 0;
    for (const Interval& range : known[op].least.ranges())
      holes.split(range.begin, range.end,
                  [&](std::uint64_t begin, std::uint64_t end, bool hole) { too_few += hole ? end - begin : 0; });
    for (const Interval& range : known[op].most.missing(0, reduced.size()))
      holes.split(range.begin, range.end,
                  [&](std::uint64_t begin, std::uint64_t end, bool hole) { too_many += hole ? 0 : end - begin; });
    CHECK(too_few == 0);
    CHECK(too_many == 0);
    // Whatever is there must be right, whether or not it is as much as could be.
    std::uint64_t wrong = 0;
    holes.split(0, reduced.size(), [&](std::uint64_t begin, std::uint64_t end, bool hole) {
      if (!hole && std::memcmp(&assembled[begin], &reduced[begin], end - begin) != 0) ++wrong;
    });
    CHECK(wrong == 0);
    totals.complete += missing.empty() ? 1 : 0;
    totals.with_holes += missing.empty() ? 0 : 1;
    totals.hole_bytes += holes.total();
    totals.unknowable += known[op].endless_messages + known[op].nameless_edges > 0 ? 1 : 0;
  }
}

}  // namespace

namespace {

// GRADTAP_CASES asks for more of them.
std::uint64_t cases() {
  const char* const asked = std::getenv("GRADTAP_CASES");
  return std::max<std::uint64_t>(520, asked == nullptr ? 0 : std::strtoull(asked, nullptr, 10));
}

}  // namespace

TEST_CASE("NCCL round trip: vectors are equal, or their holes are what the mirror lost on every link") {
  RoundTripTotals totals;
  for (std::uint64_t number = 0; number < cases(); ++number)
    check_round_trip(gradtap::testing::draw_case(number), totals);
  MESSAGE(totals.complete << " complete vectors, " << totals.with_holes << " with holes of " << totals.hole_bytes
                          << " bytes in all; " << totals.unknowable
                          << " with packets that nothing on the wire gives a place");
  CHECK(totals.complete > 900);
  CHECK(totals.with_holes >= 20);
}

// GRADTAP_LARGE says how many; `make test-all` does.
TEST_CASE("NCCL round trip, vectors of up to 64 MiB") {
  const char* const asked = std::getenv("GRADTAP_LARGE");
  const std::uint64_t count = asked == nullptr ? 0 : std::strtoull(asked, nullptr, 10);
  RoundTripTotals totals;
  for (std::uint64_t number = 0; number < count; ++number)
    check_round_trip(gradtap::testing::draw_large_case(number), totals);
  if (count > 0)
    MESSAGE(totals.complete << " complete vectors, " << totals.with_holes << " with holes of " << totals.hole_bytes
                            << " bytes in all");
  CHECK(totals.complete + totals.with_holes == count);
}

}  // namespace gradtap::dataplane
