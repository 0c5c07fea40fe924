// What a reading of lengths must say is written here by hand, from NCCL's rings of two and three ranks from 2.22 on:
// one channel, LL, chunks of a vector of n elements are ceil(n/k) rounded up to 16 bytes, wire bytes twice the data.
#include "dataplane/nccl_parse.h"

#include <vector>

#include <doctest/doctest.h>

using namespace gradtap;
using namespace gradtap::dataplane;

namespace {

NcclPattern pattern(std::uint32_t id, std::uint64_t elements, std::uint32_t position, std::uint32_t ranks = 2) {
  NcclTuning tuning;
  tuning.layout = NcclLayout::kFrom2_22;
  tuning.ranks = ranks;
  tuning.ll_max_bytes = 1 << 20;
  const auto op = nccl_plan(tuning, NcclCollective::kAllReduce, elements, 4);
  REQUIRE(op);
  return NcclPattern::ring(id, *NcclSchedule::of(*op), position, 0);
}

struct Wire {
  NcclParse parse;
  std::uint64_t number = 0;

  void send(std::uint64_t bytes) {
    RoceMessage message;
    message.number = number++;
    message.bytes = bytes;
    message.address = 0x1000;
    message.packet_bytes = 1024;
    message.immediate_seen = true;
    parse.message(message);
  }
  void lose(std::uint64_t packets) { parse.hole({0, packets}); }
  // "ar 3.1" (message 1 of the all-reduce after three), "other 2" (the second operation of another kind), in order.
  std::vector<std::string> labels() {
    std::vector<std::string> list;
    while (const auto label = parse.take())
      list.push_back(label->all_reduce ? "ar " + std::to_string(label->all_reduces) + "." + std::to_string(label->index)
                                       : "other " + std::to_string(label->foreign));
    return list;
  }
};

using Labels = std::vector<std::string>;

}  // namespace

TEST_CASE("operations are labelled while they pass, foreign ones counted between them") {
  Wire wire;
  wire.parse.set_patterns({pattern(0, 5000, 0), pattern(1, 1000, 0)});
  wire.send(20000);  // 2500 elements
  CHECK(wire.labels() == Labels{"ar 0.0"});
  wire.send(20000);
  CHECK(wire.labels() == Labels{"ar 0.1"});
  wire.send(16);
  wire.send(64);
  CHECK(wire.labels() == Labels{"other 1", "other 2"});
  wire.send(4000);  // 500 elements
  wire.send(4000);
  wire.send(20000);
  CHECK(wire.labels() == Labels{"ar 1.0", "ar 1.1", "ar 2.0"});
  CHECK(wire.parse.candidates(1) == std::vector<std::uint32_t>{1});
}

TEST_CASE("without sizes everything is foreign; a full slot and what follows it are one operation") {
  Wire wire;
  wire.send(65536);
  wire.send(14464);
  wire.send(16);
  CHECK(wire.labels() == Labels{"other 1", "other 1", "other 2"});
}

TEST_CASE("two readings: nothing is said until they agree, or others have narrowed it down") {
  Wire wire;
  // 32768 elements are two loops of full slots: four messages; 16384 elements are one: two messages.
  wire.parse.set_patterns({pattern(0, 32768, 0), pattern(1, 16384, 0), pattern(2, 1000, 0)});
  REQUIRE(pattern(0, 32768, 0).count() == 4);
  REQUIRE(pattern(1, 16384, 0).count() == 2);
  for (int i = 0; i < 4; ++i) wire.send(65536);
  CHECK(wire.labels() == Labels{"ar 0.0", "ar 0.1"});  // both readings say so
  SUBCASE("what follows does not help") {
    wire.send(4000);
    wire.send(4000);
    CHECK(wire.labels().empty());
    CHECK(wire.parse.undecided() == std::pair<std::uint64_t, std::uint64_t>{0, 3});
    CHECK(wire.parse.restrict(0, {1}));  // another channel knows: two small ones
    CHECK(wire.labels() == Labels{"ar 1.0", "ar 1.1", "ar 2.0", "ar 2.1"});
  }
  SUBCASE("one large one") {
    CHECK(wire.parse.restrict(0, {0, 2}));
    CHECK(wire.labels() == Labels{"ar 0.2", "ar 0.3"});
  }
  SUBCASE("what excludes every reading is not about this all-reduce") {
    CHECK_FALSE(wire.parse.restrict(0, {2}));
  }
}

TEST_CASE("lost packets: a hole is filled by whole messages, exactly or not at all") {
  Wire wire;
  wire.parse.set_patterns({pattern(0, 5000, 0)});
  wire.send(20000);  // 20 packets
  (void)wire.labels();
  SUBCASE("the second half of the operation") {
    wire.lose(20);
    wire.send(20000);
    CHECK(wire.labels() == Labels{"ar 1.0"});
  }
  SUBCASE("and the first half of the next") {
    wire.lose(40);
    wire.send(20000);
    CHECK(wire.labels() == Labels{"ar 1.1"});
  }
  SUBCASE("more or less than that is no message") {
    wire.lose(21);
    CHECK(!wire.parse.lost());  // what follows may say more
    wire.send(20000);
    CHECK(wire.parse.lost());
    CHECK(wire.labels() == Labels{"other 0"});
  }
}

TEST_CASE("an operation that was no all-reduce after all is taken back, once it shows") {
  Wire wire;
  wire.parse.set_patterns({pattern(0, 5000, 0), pattern(1, 1000, 0)});
  wire.send(20000);  // a broadcast of 10000 bytes
  CHECK(wire.labels() == Labels{"ar 0.0"});
  wire.send(4000);
  CHECK(wire.parse.reread() == 1);
  wire.send(4000);
  CHECK(wire.labels() == Labels{"ar 0.0", "ar 0.1"});
  CHECK(wire.parse.at_boundary());
}

TEST_CASE("after a loss nothing is taken back: the filling may have been wrong") {
  Wire wire;
  wire.parse.set_patterns({pattern(0, 5000, 0), pattern(1, 1000, 0)});
  wire.send(20000);
  wire.lose(20);
  wire.send(20000);
  CHECK(wire.labels() == Labels{"ar 0.0", "ar 1.0"});
  wire.send(4000);  // of another operation
  CHECK(wire.parse.lost());
  CHECK(wire.parse.reread() == 1);
}

TEST_CASE("an immediate that is lost apart from its data is no message of its own") {
  Wire wire;
  wire.parse.set_patterns({pattern(0, 5000, 0)});
  RoceMessage message;
  message.bytes = 20000;
  message.address = 0x1000;
  message.packet_bytes = 1024;
  message.awaits_immediate = true;
  wire.parse.message(message);
  wire.lose(1);
  wire.send(20000);
  CHECK(wire.labels() == Labels{"ar 0.0", "ar 0.1"});
  CHECK_FALSE(wire.parse.lost());
}

TEST_CASE("the end of a long message is lost before it is known whether immediates come apart: both may be") {
  Wire wire;
  wire.parse.set_patterns({pattern(0, 5000, 0)});
  RoceMessage message;
  message.bytes = 20000;
  message.address = 0x1000;
  message.packet_bytes = 1024;
  wire.parse.message(message);  // how it ended was not seen
  SUBCASE("its immediate was apart, in the hole") {
    wire.lose(1);
    message.number = 1;
    message.immediate_seen = message.split = true;
    wire.parse.message(message);
    CHECK(wire.labels() == Labels{"ar 0.0", "ar 0.1"});
  }
  SUBCASE("it was not: the next message follows") {
    wire.send(20000);
    CHECK(wire.labels() == Labels{"ar 0.0", "ar 0.1"});
  }
  CHECK_FALSE(wire.parse.lost());
}

TEST_CASE("what follows a hole says how long packets are, and so what the hole hid") {
  Wire wire;
  wire.parse.set_patterns({pattern(0, 5000, 0)});
  // Four messages of 20000 bytes in packets of 4096, or one of 1024: only the next one's packets tell.
  wire.lose(20);
  wire.send(20000);
  CHECK(wire.labels() == Labels{"ar 0.1"});
  CHECK(wire.parse.at_boundary());
}

TEST_CASE("a run of writes that began in a hole and was not closed has its place if the packets account for it") {
  Wire wire;
  wire.parse.set_patterns({pattern(0, 5000, 0)});
  wire.send(20000);
  (void)wire.labels();
  RoceMessage run;  // 20 packets of 1024 bytes, the last of 544, and the immediate apart
  run.number = 1;
  run.run = run.head_uncertain = run.open_ended = run.awaits_immediate = true;
  run.packet_bytes = 1024;
  std::uint64_t head = 0, behind = 0;
  SUBCASE("two packets before, three and the immediate behind") {
    head = 2;
    run.psns = {22, 37};
    run.bytes = 15 * 1024;
    behind = 4;
  }
  SUBCASE("its last packet was seen, the immediate not") {
    head = 3;
    run.psns = {23, 40};
    run.bytes = 16 * 1024 + 544;
    behind = 1;
  }
  SUBCASE("packets that do not account for it") {
    head = 2;
    run.psns = {22, 37};
    run.bytes = 15 * 1024;
    behind = 3;
  }
  wire.lose(head);
  wire.parse.message(run);
  wire.lose(behind);
  wire.send(20000);
  if (head + run.psns.count() + behind != 21) {
    CHECK(wire.parse.lost());
    return;
  }
  CHECK_FALSE(wire.parse.lost());
  const auto label = wire.parse.take();
  REQUIRE(label);
  CHECK(label->index == 1);
  CHECK(label->head_bytes == head * 1024);
  CHECK(wire.labels() == Labels{"ar 1.0"});
}

TEST_CASE("hostile lengths: readings and what waits stay inside their bounds") {
  NcclParseConfig config;
  config.max_readings = 8;
  config.max_waiting = 32;
  Wire wire;
  wire.parse = NcclParse(config);
  std::vector<NcclPattern> patterns;
  for (std::uint32_t id = 0; id < 16; ++id) patterns.push_back(pattern(id, 16384 * (id + 1), 0));
  wire.parse.set_patterns(patterns);
  std::size_t labels = 0;
  for (int i = 0; i < 2000; ++i) {
    wire.send(65536);
    CHECK(wire.parse.waiting() <= 32);
    labels += wire.labels().size();
  }
  CHECK(wire.parse.lost());
  CHECK(labels == 2000);  // each message has had its answer
}
