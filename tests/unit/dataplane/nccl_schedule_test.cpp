// NCCL's schedule against a table that golden/nccl_schedule_golden.py made by running the rings, against what captures
// of NCCL 2.19 showed, and against what must hold for every ring.
#include "dataplane/nccl_schedule.h"

#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include <doctest/doctest.h>
#include <fmt/format.h>

#include "common/sha256.h"
#include "dataplane/nccl_ring.h"

using namespace gradtap;
using namespace gradtap::dataplane;

namespace {

std::string link_lines(const NcclSchedule& schedule) {
  std::string text;
  for (std::uint32_t position = 0; position < schedule.op().ranks; ++position) {
    for (std::uint32_t channel = 0; channel < schedule.op().channels; ++channel) {
      text += fmt::format("link {} {}", position, channel);
      const std::uint64_t count = schedule.message_count(position, channel);
      for (std::uint64_t i = 0; i < count; ++i) {
        const auto message = schedule.message(position, channel, i);
        if (!message) return "no message " + std::to_string(i);
        text += fmt::format(" {}{}", message->phase == Phase::kFinal ? "F" : "P", message->steps);
        if (message->end > message->begin)
          text += fmt::format(":{}+{}/{}", message->begin, message->end - message->begin, message->wire_bytes);
        else if (message->wire_bytes != 0)
          return "an empty message has bytes";
      }
      if (schedule.message(position, channel, count)) return "a message after the last";
      text += "\n";
    }
  }
  return text;
}

NcclTuning tuning_of(NcclLayout layout, std::uint32_t ranks, std::uint32_t channels) {
  NcclTuning tuning;
  tuning.layout = layout;
  tuning.ranks = ranks;
  tuning.channels = channels;
  return tuning;
}

NcclSchedule all_reduce(NcclLayout layout, NcclProtocol protocol, std::uint32_t ranks, std::uint32_t channels,
                        std::uint64_t elements, std::uint32_t element_bytes = 4) {
  const auto op =
      nccl_plan_with(tuning_of(layout, ranks, channels), protocol, NcclCollective::kAllReduce, elements, element_bytes);
  REQUIRE(op);
  const auto schedule = NcclSchedule::of(*op);
  REQUIRE(schedule);
  return *schedule;
}

struct Range {
  std::uint64_t begin, end;
  bool operator==(const Range&) const = default;
};
Range range_of(const NcclSchedule& schedule, std::uint32_t position, std::uint32_t channel, std::uint64_t index) {
  const auto message = schedule.message(position, channel, index);
  REQUIRE(message);
  return {message->begin, message->end};
}

}  // namespace

TEST_CASE("NCCL schedule: every op of the golden table") {
  std::ifstream table(std::string(GRADTAP_SOURCE_DIR) + "/tests/unit/dataplane/golden/nccl_schedule.txt");
  REQUIRE(table.good());
  std::string line;
  int cases = 0;
  while (std::getline(table, line)) {
    CAPTURE(line);
    std::istringstream words(line);
    std::string kind, layout, protocol, equals, digest;
    NcclTuning tuning;
    std::uint32_t threads = 0, element_bytes = 0, root = 0, used_channels = 0, used_threads = 0;
    std::uint64_t elements = 0;
    NcclSlabs slabs;
    words >> kind >> layout >> protocol >> tuning.ranks >> tuning.channels >> threads >> element_bytes >> elements >>
        root >> equals >> used_channels >> used_threads >> slabs.first >> slabs.middle >> slabs.last >> digest;
    REQUIRE(!digest.empty());
    const auto known = nccl_layout_of(layout);
    REQUIRE(known);
    tuning.layout = *known;
    tuning.ll_threads = tuning.simple_threads = threads;
    const auto op = nccl_plan_with(tuning, protocol == "LL" ? NcclProtocol::kLl : NcclProtocol::kSimple,
                                   kind == "allreduce"   ? NcclCollective::kAllReduce
                                   : kind == "allgather" ? NcclCollective::kAllGather
                                                         : NcclCollective::kBroadcast,
                                   elements, element_bytes, root);
    REQUIRE(op);
    CHECK(op->channels == used_channels);
    CHECK(op->threads == used_threads);
    CHECK(op->slabs == slabs);
    const auto schedule = NcclSchedule::of(*op);
    REQUIRE(schedule);
    CHECK(to_hex(sha256(link_lines(*schedule))) == digest);
    ++cases;
  }
  CHECK(cases == 423);
}

// What two ranks and NCCL 2.19 really sent: positions of chunks and lengths.
TEST_CASE("NCCL schedule: the captured all-reduces of 5000 and 10000 elements") {
  SUBCASE("5000 over one channel") {
    const auto schedule = all_reduce(NcclLayout::kUpTo2_19, NcclProtocol::kLl, 2, 1, 5000);
    CHECK(range_of(schedule, 0, 0, 0) == Range{3072, 5000});
    CHECK(range_of(schedule, 0, 0, 1) == Range{0, 3072});
    CHECK(range_of(schedule, 1, 0, 0) == Range{0, 3072});
    CHECK(range_of(schedule, 1, 0, 1) == Range{3072, 5000});
    CHECK(schedule.message(0, 0, 0)->wire_bytes == 15424);
    CHECK(schedule.message(0, 0, 0)->phase == Phase::kPartial);
    CHECK(schedule.message(0, 0, 1)->phase == Phase::kFinal);
  }
  SUBCASE("10000 over one channel") {
    const auto schedule = all_reduce(NcclLayout::kUpTo2_19, NcclProtocol::kLl, 2, 1, 10000);
    CHECK(range_of(schedule, 0, 0, 0) == Range{5120, 10000});
    CHECK(range_of(schedule, 0, 0, 1) == Range{0, 5120});
    CHECK(schedule.message(0, 0, 1)->wire_bytes == 40960);
  }
  SUBCASE("5000 over two of four channels, two empty messages") {
    const auto schedule = all_reduce(NcclLayout::kUpTo2_19, NcclProtocol::kLl, 2, 4, 5000);
    CHECK(schedule.op().channels == 2);
    CHECK(range_of(schedule, 0, 0, 0) == Range{4096, 5000});
    CHECK(range_of(schedule, 0, 0, 1) == Range{0, 2048});
    CHECK(range_of(schedule, 0, 1, 0) == Range{5000, 5000});
    CHECK(range_of(schedule, 0, 1, 1) == Range{2048, 4096});
    CHECK(schedule.message(0, 1, 0)->wire_bytes == 0);
  }
  SUBCASE("a broadcast of 10000 floats goes in two slots") {
    const auto op =
        nccl_plan_with(tuning_of(NcclLayout::kUpTo2_19, 2, 1), NcclProtocol::kLl, NcclCollective::kBroadcast, 10000, 4);
    REQUIRE(op);
    const auto schedule = NcclSchedule::of(*op);
    REQUIRE(schedule);
    CHECK(schedule->message_count(0, 0) == 2);
    CHECK(schedule->message_count(1, 0) == 0);
    CHECK(schedule->message(0, 0, 0)->wire_bytes == 65536);
    CHECK(schedule->message(0, 0, 1)->wire_bytes == 14464);
  }
  SUBCASE("from 2.22 the same op would be cut in halves") {
    const auto schedule = all_reduce(NcclLayout::kFrom2_22, NcclProtocol::kLl, 2, 1, 5000);
    CHECK(range_of(schedule, 0, 0, 0) == Range{2500, 5000});
    CHECK(range_of(schedule, 0, 0, 1) == Range{0, 2500});
  }
}

TEST_CASE("NCCL schedule: final ranges of all links cover each element once less than there are ranks") {
  for (const auto layout : {NcclLayout::kUpTo2_19, NcclLayout::k2_20To2_21, NcclLayout::kFrom2_22}) {
    for (const auto protocol : {NcclProtocol::kLl, NcclProtocol::kSimple}) {
      for (const std::uint32_t ranks : {2U, 3U, 5U, 8U}) {
        for (const std::uint64_t elements : {1ULL, 37ULL, 5000ULL, 70001ULL, 900000ULL}) {
          for (const std::uint32_t channels : {1U, 3U, 8U}) {
            const auto schedule = all_reduce(layout, protocol, ranks, channels, elements);
            std::vector<std::uint32_t> finals(elements), partials(elements);
            // An element that link r does not bring in final form lies in chunk r+1: every element lacks on one link.
            std::vector<std::uint32_t> lacking(elements);
            for (std::uint32_t position = 0; position < ranks; ++position) {
              std::vector<std::uint8_t> here(elements);
              for (std::uint32_t channel = 0; channel < schedule.op().channels; ++channel) {
                for (std::uint64_t i = 0; i < schedule.message_count(position, channel); ++i) {
                  const auto message = schedule.message(position, channel, i);
                  REQUIRE(message);
                  REQUIRE(message->begin <= message->end);
                  REQUIRE(message->end <= elements);
                  for (std::uint64_t e = message->begin; e < message->end; ++e) {
                    if (message->phase == Phase::kFinal) {
                      here[e] = 1;
                      ++finals[e];
                    } else {
                      ++partials[e];
                    }
                  }
                }
              }
              for (std::uint64_t e = 0; e < elements; ++e) lacking[e] += here[e] == 0 ? 1 : 0;
            }
            bool right = true;
            for (std::uint64_t e = 0; e < elements; ++e)
              right = right && finals[e] == ranks - 1 && partials[e] == ranks - 1 && lacking[e] == 1;
            CHECK(right);
          }
        }
      }
    }
  }
}

TEST_CASE("NCCL schedule: a link lacks exactly the chunk of its target") {
  // One channel and one loop, lengths that divide evenly: chunk c is [c * 1024, (c + 1) * 1024).
  const std::uint32_t ranks = 5;
  for (const auto layout : {NcclLayout::kUpTo2_19, NcclLayout::k2_20To2_21, NcclLayout::kFrom2_22}) {
    const auto schedule = all_reduce(layout, NcclProtocol::kLl, ranks, 1, ranks * 1024ULL);
    for (std::uint32_t position = 0; position < ranks; ++position) {
      std::vector<std::uint32_t> finals(ranks);
      for (std::uint64_t i = 0; i < schedule.message_count(position, 0); ++i) {
        const auto message = schedule.message(position, 0, i);
        REQUIRE(message);
        REQUIRE(message->begin % 1024 == 0);
        REQUIRE(message->end == message->begin + 1024);
        if (message->phase == Phase::kFinal) ++finals[message->begin / 1024];
      }
      for (std::uint32_t chunk = 0; chunk < ranks; ++chunk)
        CHECK(finals[chunk] == (chunk == (position + 1) % ranks ? 0 : 1));
    }
  }
}

TEST_CASE("NCCL schedule: steps, and where an op begins") {
  const auto ll = all_reduce(NcclLayout::kUpTo2_19, NcclProtocol::kLl, 2, 1, 5000);
  CHECK(ll.message(0, 0, 0)->steps == 1);
  CHECK(ll.aligned_step(5) == 5);
  const auto simple = all_reduce(NcclLayout::kUpTo2_19, NcclProtocol::kSimple, 2, 1, 5000);
  CHECK(simple.message_count(0, 0) == 4);
  CHECK(simple.message(0, 0, 0)->steps == 2);
  CHECK(simple.aligned_step(5) == 8);
  CHECK(simple.aligned_step(8) == 8);
  CHECK(nccl_ll_wire_bytes(0) == 0);
  CHECK(nccl_ll_wire_bytes(4) == 16);
  CHECK(nccl_ll_wire_bytes(8) == 16);
  CHECK(nccl_ll_wire_bytes(20000) == 40000);
  CHECK(nccl_ll_step_cleans(0x7ffffff8ULL));
  CHECK(nccl_ll_step_cleans(0x1'7fffffffULL));
  CHECK_FALSE(nccl_ll_step_cleans(0x7ffffff0ULL));
  CHECK_FALSE(nccl_ll_step_cleans(1));
}

TEST_CASE("NCCL schedule: versions") {
  CHECK(nccl_layout_of("2.19.3") == NcclLayout::kUpTo2_19);
  CHECK(nccl_layout_of("2.8.4") == NcclLayout::kUpTo2_19);
  CHECK(nccl_layout_of("2.20.5") == NcclLayout::k2_20To2_21);
  CHECK(nccl_layout_of("2.21.5") == NcclLayout::k2_20To2_21);
  CHECK(nccl_layout_of("2.22") == NcclLayout::kFrom2_22);
  CHECK(nccl_layout_of("2.30.7") == NcclLayout::kFrom2_22);
  for (const char* wrong : {"", "2", "2.", "2.x", "1.3", "3.0", "2.7.8", "2..19", " 2.19", "2.19 ", "2.99999999999"})
    CHECK_FALSE(nccl_layout_of(wrong).has_value());
}

TEST_CASE("NCCL schedule: what cannot be is refused") {
  const NcclTuning tuning = tuning_of(NcclLayout::kFrom2_22, 2, 2);
  const auto plan = [&](NcclTuning t, std::uint64_t elements, std::uint32_t element_bytes) {
    return nccl_plan_with(t, NcclProtocol::kLl, NcclCollective::kAllReduce, elements, element_bytes).has_value();
  };
  CHECK(plan(tuning, 1, 4));
  CHECK_FALSE(plan(tuning, 0, 4));
  CHECK_FALSE(plan(tuning, 1, 3));
  CHECK_FALSE(plan(tuning, 1, 16));
  CHECK_FALSE(plan(tuning, kMaxNcclElements + 1, 4));
  CHECK(plan(tuning, kMaxNcclElements, 8));
  CHECK_FALSE(plan(tuning_of(NcclLayout::kFrom2_22, 1, 2), 1, 4));
  CHECK_FALSE(plan(tuning_of(NcclLayout::kFrom2_22, kMaxNcclRanks + 1, 2), 1, 4));
  CHECK_FALSE(plan(tuning_of(NcclLayout::kFrom2_22, 2, 0), 1, 4));
  CHECK_FALSE(plan(tuning_of(NcclLayout::kFrom2_22, 2, kMaxNcclChannels + 1), 1, 4));

  auto op = *nccl_plan_with(tuning, NcclProtocol::kLl, NcclCollective::kAllReduce, 5000, 4);
  REQUIRE(NcclSchedule::of(op));
  op.slabs.first += 1;
  CHECK_FALSE(NcclSchedule::of(op).has_value());
  op.slabs.first = 0;
  CHECK_FALSE(NcclSchedule::of(op).has_value());
  auto odd = all_reduce(NcclLayout::kUpTo2_19, NcclProtocol::kSimple, 2, 1, 5000).op();
  odd.threads = 96;  // a chunk of 2 MiB is no multiple of what 96 threads move
  CHECK_FALSE(NcclSchedule::of(odd).has_value());
}

TEST_CASE("NcclRing: messages of all channels of an edge, numbered alike for every size") {
  NcclTuning tuning = tuning_of(NcclLayout::kUpTo2_19, 2, 4);
  tuning.ll_max_bytes = 1 << 20;
  const auto ring = NcclRing::make(tuning);
  REQUIRE(ring);
  CHECK(ring->has_edge(0, 1));
  CHECK_FALSE(ring->has_edge(0, 0));
  CHECK_FALSE(ring->has_edge(2, 0));
  const OpSize size{20000, 4};
  // Two channels of four are used: numbers 0, 1 (first messages) and 4, 5 (second ones).
  CHECK(ring->message_count(0, size) == 6);
  CHECK(ring->place(0, size, 0) == MessagePlace{Phase::kPartial, 4096 * 4, 904 * 4});
  CHECK(ring->place(0, size, 1) == MessagePlace{Phase::kPartial, 20000, 0});
  CHECK_FALSE(ring->place(0, size, 2).has_value());
  CHECK(ring->place(0, size, 4) == MessagePlace{Phase::kFinal, 0, 2048 * 4});
  CHECK(ring->place(0, size, 5) == MessagePlace{Phase::kFinal, 2048 * 4, 2048 * 4});
  CHECK_FALSE(ring->place(0, size, 8).has_value());
  CHECK_FALSE(ring->place(2, size, 0).has_value());
  CHECK_FALSE(ring->place(0, OpSize{20001, 4}, 0).has_value());

  SUBCASE("rings of other orders") {
    NcclTuning four = tuning_of(NcclLayout::kFrom2_22, 4, 2);
    four.ll_max_bytes = 1 << 20;
    const auto turned = NcclRing::make(four, {{0, 1, 2, 3}, {0, 2, 1, 3}});
    REQUIRE(turned);
    CHECK(turned->has_edge(0, 1));
    CHECK(turned->has_edge(0, 2));
    CHECK_FALSE(turned->has_edge(1, 0));
    CHECK(turned->has_edge(3, 0));
    const auto straight = NcclRing::make(four);
    REQUIRE(straight);
    // On the second channel rank 2 stands where rank 1 stands in the straight ring.
    const OpSize large{400000, 4};
    CHECK(turned->place(2, large, 1) == straight->place(1, large, 1));
    CHECK(turned->place(2, large, 0) == straight->place(2, large, 0));
    CHECK_FALSE(NcclRing::make(four, {{0, 1, 2, 3}}).has_value());
    CHECK_FALSE(NcclRing::make(four, {{0, 1, 2, 3}, {1, 0, 2, 3}}).has_value());
    CHECK_FALSE(NcclRing::make(four, {{0, 1, 2, 3}, {0, 1, 1, 3}}).has_value());
    CHECK_FALSE(NcclRing::make(four, {{0, 1, 2, 3}, {0, 1, 4, 3}}).has_value());
  }
}
