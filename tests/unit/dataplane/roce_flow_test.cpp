#include "dataplane/roce_flow.h"

#include <algorithm>
#include <map>
#include <set>

#include <doctest/doctest.h>

#include "common/random.h"
#include "tests/unit/dataplane/roce_traffic.h"

namespace gradtap::dataplane {
namespace {

using namespace testing;

struct Run {
  explicit Run(const RoceFlowConfig& with = {}) : config(with), flow(std::make_unique<RoceFlow>(config, budget)) {}
  bool feed(const RoceFrame& frame) {
    RoceFlowContext context{sink, counters, now_ns, ++packets};
    return flow->request(frame, context);
  }
  void finish() {
    RoceFlowContext context{sink, counters, now_ns, packets};
    flow->finish(context);
  }
  RoceFlowConfig config;
  StoreBudget budget{.limit = 64 << 20};
  RoceCollector sink;
  RoceFlowCounters counters;
  std::uint64_t now_ns = 0;
  std::uint64_t packets = 0;
  std::unique_ptr<RoceFlow> flow;
};

const SentMessage* message_at(const RoceSender& sender, std::uint64_t psn, std::uint64_t* number) {
  for (std::uint64_t i = 0; i < sender.messages.size(); ++i) {
    if (psn >= sender.messages[i].first_psn && psn < sender.messages[i].end_psn) {
      *number = i;
      return &sender.messages[i];
    }
  }
  return nullptr;
}

// Every statement of the flow is compared with what was sent; returns the PSNs whose bytes were passed on.
std::set<std::uint64_t> check_against(const RoceSender& sender, const Run& run, std::uint32_t mtu) {
  std::map<std::uint64_t, RoceMessage> told;
  std::uint64_t position = 0;
  std::size_t loss = 0;
  for (const RoceMessage& message : run.sink.messages) {
    while (loss < run.sink.losses.size() && run.sink.losses[loss].begin < message.psns.begin) {
      REQUIRE(run.sink.losses[loss].begin >= position);
      position = run.sink.losses[loss++].end;
    }
    REQUIRE(message.psns.begin >= position);
    position = message.psns.end;
    REQUIRE(told.emplace(message.number, message).second);
    std::uint64_t number = 0;
    const SentMessage* const sent = message_at(sender, message.psns.begin, &number);
    REQUIRE(sent != nullptr);
    REQUIRE(!message.immediate_mismatch);
    if (message.open_ended) {
      REQUIRE(message.bytes <= sent->bytes);
    } else if (message.psns.begin == sent->first_psn) {
      REQUIRE(message.bytes == sent->bytes);
      REQUIRE(message.psns.end <= sent->end_psn);
      if (message.immediate_seen) REQUIRE(message.psns.end == sent->end_psn);
      if (!message.immediate_seen && message.psns.end != sent->end_psn) REQUIRE(message.psns.end + 1 == sent->end_psn);
    }
  }
  std::set<std::uint64_t> placed;
  for (const auto& [piece, bytes] : run.sink.pieces) {
    const auto at = told.find(piece.message);
    REQUIRE(at != told.end());
    const RoceMessage& message = at->second;
    std::uint64_t number = 0;
    const SentMessage* const sent = message_at(sender, piece.psn, &number);
    REQUIRE(sent != nullptr);
    std::uint64_t offset = piece.offset_bytes + (piece.provisional ? message.head_missing_bytes : 0);
    // A run whose beginning and end were both lost: its place is not known, and it says so.
    const bool unplaced = message.open_ended && piece.provisional;
    const bool headless = message.psns.begin != sent->first_psn;
    if (headless) REQUIRE((unplaced || !message.immediate_seen));
    if (headless) offset = (piece.psn - sent->first_psn) * mtu;
    REQUIRE(offset == (piece.psn - sent->first_psn) * mtu);
    REQUIRE(offset + bytes.size() <= sent->bytes);
    bool same = true;
    for (std::size_t i = 0; i < bytes.size(); ++i) same = same && bytes[i] == payload_byte(number, offset + i);
    REQUIRE(same);
    placed.insert(piece.psn);
  }
  return placed;
}

RoceSender mixed_sender(std::uint32_t mtu, std::uint64_t first_psn, std::uint64_t seed, int count, bool singles) {
  SeededRandom random(seed);
  RoceSender sender(mtu, first_psn);
  for (int i = 0; i < count; ++i) {
    const std::uint64_t kind = random.next() % 8;
    const std::uint64_t bytes = kind == 0 ? 0 : kind == 1 ? 16 : random.next() % (mtu * 9) + 1;
    const auto style =
        bytes <= 2 * mtu
            ? WriteStyle::kImmediate
            : (singles ? WriteStyle::kSingles : (random.next() % 2 == 0 ? WriteStyle::kSplit : WriteStyle::kImmediate));
    sender.send(bytes, style, i % 3 == 0);
  }
  return sender;
}

TEST_CASE("all styles in order: every message whole, with its immediate") {
  for (const std::uint32_t mtu : {256U, 1024U, 4096U}) {
    for (const bool singles : {false, true}) {
      const RoceSender sender = mixed_sender(mtu, 0, mtu + singles, 100, singles);
      Run run;
      for (const RoceFrame& frame : sender.packets) REQUIRE(run.feed(frame));
      run.finish();
      REQUIRE(run.sink.messages.size() == sender.messages.size());
      for (const RoceMessage& message : run.sink.messages) REQUIRE(message.immediate_seen);
      std::uint64_t data_packets = 0;
      for (const RoceFrame& frame : sender.packets) data_packets += frame.payload.empty() ? 0 : 1;
      CHECK(check_against(sender, run, mtu).size() == data_packets);
      CHECK(run.sink.losses.empty());
      CHECK(run.counters.stored == 0);
      CHECK(run.flow->missing_psns().empty());
      CHECK(run.flow->born());
    }
  }
}

TEST_CASE("each single packet dropped, doubled or swapped with the next") {
  for (const bool singles : {false, true}) {
    const RoceSender sender = mixed_sender(1024, 0, 77, 24, singles);
    const std::size_t count = sender.packets.size();
    std::uint64_t data_packets = 0;
    for (const RoceFrame& frame : sender.packets) data_packets += frame.payload.empty() ? 0 : 1;
    for (int change = 0; change < 3; ++change) {
      for (std::size_t at = 0; at < count; ++at) {
        CAPTURE(change);
        CAPTURE(at);
        std::vector<RoceFrame> packets = sender.packets;
        const auto where = packets.begin() + static_cast<std::ptrdiff_t>(at);
        if (change == 0) packets.erase(where);
        if (change == 1) packets.insert(where, *where);
        if (change == 2 && at + 1 < count) std::swap(*where, *(where + 1));
        Run run;
        for (const RoceFrame& frame : packets) REQUIRE(run.feed(frame));
        run.finish();
        const auto placed = check_against(sender, run, 1024);
        if (change != 0) {
          REQUIRE(placed.size() == data_packets);
          REQUIRE(run.sink.losses.empty());
          REQUIRE(run.flow->missing_psns().empty());
          REQUIRE(run.sink.messages.size() == sender.messages.size());
          continue;
        }
        if (at + 1 < count) {
          REQUIRE(run.flow->missing_psns() == std::vector<Interval>{{at, at + 1}});
        }
        // Only the lost packet's own bytes are missing, unless nothing can say where its message began.
        const bool lost_data = !sender.packets[at].payload.empty();
        REQUIRE(placed.size() == data_packets - (lost_data ? 1 : 0));
      }
    }
  }
}

TEST_CASE("loss, duplicates, reordering, go-back-N and wrap at random: never a wrong byte, never a wrong extent") {
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    CAPTURE(seed);
    SeededRandom random(seed + 1);
    const std::uint32_t mtu = seed % 2 == 0 ? 1024 : 4096;
    const std::uint64_t first = seed % 5 == 4 ? (1U << 24) - 200 : 0;  // wraps on the way
    const RoceSender sender = mixed_sender(mtu, first, seed, 60, seed % 3 == 1);
    std::vector<RoceFrame> packets;
    for (std::size_t i = 0; i < sender.packets.size(); ++i) {
      const std::uint64_t dice = random.next() % 100;
      if (dice < 4 && !(first != 0 && i == 0)) continue;
      packets.push_back(sender.packets[i]);
      if (dice < 8) packets.push_back(sender.packets[i]);
      if (dice >= 98) {  // everything since some packets ago once more
        const std::size_t back = std::min<std::size_t>(i, random.next() % 30);
        for (std::size_t again = i - back; again <= i; ++again) packets.push_back(sender.packets[again]);
      }
    }
    for (std::size_t i = 1; i + 1 < packets.size(); ++i)
      if (random.next() % 10 == 0) std::swap(packets[i], packets[std::min(packets.size() - 1, i + random.next() % 5)]);
    Run run;
    run.config.reorder_grace_packets = 64;
    run.flow = std::make_unique<RoceFlow>(run.config, run.budget);
    for (const RoceFrame& frame : packets) REQUIRE(run.feed(frame));
    run.finish();
    const auto placed = check_against(sender, run, mtu);
    REQUIRE(placed.size() > sender.packets.size() / 2);
    // What was not seen is what is reported missing.
    std::set<std::uint64_t> seen;
    for (const RoceFrame& frame : packets) seen.insert(frame.psn + (frame.psn < first ? std::uint64_t{1} << 24 : 0));
    for (const Interval& range : run.flow->missing_psns())
      for (std::uint64_t psn = range.begin; psn < range.end; ++psn) REQUIRE(!seen.contains(psn));
    CHECK(run.budget.used == 0);
  }
}

TEST_CASE("a lost first packet costs one packet: also when nothing else tells the path MTU") {
  RoceSender sender(4096);
  sender.send(7712);
  Run run;
  REQUIRE(run.feed(sender.packets[1]));
  CHECK(run.sink.pieces.empty());
  run.finish();
  REQUIRE(run.sink.messages.size() == 1);
  CHECK(run.sink.messages[0].bytes == 7712);
  REQUIRE(run.sink.pieces.size() == 1);
  CHECK(run.sink.pieces[0].piece.offset_bytes == 4096);
  CHECK(run.counters.recovered_firsts == 1);
  CHECK(run.flow->missing_psns() == std::vector<Interval>{{0, 1}});
}

TEST_CASE("a run of writes whose first packet was lost is shifted by what its immediate says") {
  RoceSender sender(1024);
  sender.send(16);
  sender.send(5 * 1024, WriteStyle::kSingles);
  Run run;
  for (std::size_t i = 0; i < sender.packets.size(); ++i)
    if (i != 1) REQUIRE(run.feed(sender.packets[i]));
  run.finish();
  REQUIRE(run.sink.messages.size() == 2);
  CHECK(run.sink.messages[1].bytes == 5 * 1024);
  CHECK(run.sink.messages[1].head_missing_bytes == 1024);
  CHECK(run.sink.messages[1].psns == PsnRange{1, 7});
  CHECK(run.sink.losses.empty());
}

TEST_CASE("both ends of a message lost, its immediate apart was seen: what is left has its place") {
  RoceSender sender(1024);
  sender.send(16 * 1024, WriteStyle::kSplit);
  sender.send(512);
  Run run;
  for (const RoceFrame& frame : sender.packets)
    if (frame.psn > 1 && (frame.psn < 11 || frame.psn > 15)) REQUIRE(run.feed(frame));
  run.finish();
  REQUIRE(run.sink.messages.size() == 2);
  CHECK(run.sink.messages[0].psns == PsnRange{0, 17});
  CHECK(run.sink.messages[0].bytes == 16 * 1024);
  CHECK(run.sink.losses.empty());
  CHECK(check_against(sender, run, 1024).size() == 9 + 1);
}

TEST_CASE("the immediate of another message, all of whose data was lost, is not taken for the end of this one") {
  RoceSender sender(1024);
  sender.send(16 * 1024, WriteStyle::kSplit);  // PSNs 0 to 16
  sender.send(12 * 1024, WriteStyle::kSplit);  // 17 to 29
  Run run;
  for (const RoceFrame& frame : sender.packets)
    if ((frame.psn > 1 && frame.psn < 11) || frame.psn == 29) REQUIRE(run.feed(frame));
  run.finish();
  for (const RoceMessage& message : run.sink.messages) CHECK(message.psns.begin >= 17);
  (void)check_against(sender, run, 1024);
}

TEST_CASE("a whole message lost leaves its PSNs, in its place") {
  RoceSender sender(1024);
  for (const std::uint64_t bytes : {4096U, 16U, 3000U}) sender.send(bytes);
  Run run;
  for (const RoceFrame& frame : sender.packets)
    if (frame.psn != 4) REQUIRE(run.feed(frame));
  CHECK(run.sink.messages.size() == 1);  // the third waits: the hole may still be filled
  run.finish();
  REQUIRE(run.sink.messages.size() == 2);
  CHECK(run.sink.losses == std::vector<PsnRange>{{4, 5}});
  CHECK(run.counters.hole_psns == 1);
}

TEST_CASE("an acknowledgement beyond what was seen is a loss for good") {
  RoceSender sender(1024);
  sender.send(8 * 1024);
  Run run;
  for (int i = 0; i < 5; ++i) REQUIRE(run.feed(sender.packets[static_cast<std::size_t>(i)]));
  CHECK(run.flow->acknowledged_end() == 0);
  run.flow->acknowledged(6);
  CHECK(run.flow->acknowledged_end() == 7);
  CHECK(run.flow->missing_psns() == std::vector<Interval>{{5, 8}});
}

TEST_CASE(
    "a hole is given up after its grace, by packets or by time; what then comes late is still placed or counted") {
  for (const bool by_time : {false, true}) {
    RoceSender sender(1024);
    sender.send(16);
    sender.send(16);
    sender.send(2048);
    Run run;
    run.config.reorder_grace_packets = 10;
    run.flow = std::make_unique<RoceFlow>(run.config, run.budget);
    REQUIRE(run.feed(sender.packets[0]));
    REQUIRE(run.feed(sender.packets[2]));
    CHECK(run.sink.messages.size() == 1);
    CHECK(run.flow->waiting());
    if (by_time)
      run.now_ns = 51'000'000;
    else
      run.packets += 20;
    RoceFlowContext context{run.sink, run.counters, run.now_ns, run.packets};
    run.flow->tick(context);
    CHECK(!run.flow->waiting());
    CHECK(run.sink.pieces.size() == 2);
    REQUIRE(run.feed(sender.packets[1]));
    CHECK(run.counters.late == 1);
    REQUIRE(run.feed(sender.packets[3]));
    CHECK(run.sink.messages.size() == 2);
    CHECK(run.sink.losses == std::vector<PsnRange>{{1, 2}});
  }
}

TEST_CASE("the store is bounded: what is waited for is given up when it is full") {
  RoceSender sender(1024);
  sender.send(16);
  for (int i = 0; i < 200; ++i) sender.send(4096);
  Run run;
  run.config.reorder_window_bytes = 20'000;
  run.flow = std::make_unique<RoceFlow>(run.config, run.budget);
  for (std::size_t i = 1; i < sender.packets.size(); ++i) {
    REQUIRE(run.feed(sender.packets[i]));
    REQUIRE(run.budget.used <= 20'000);
  }
  run.finish();
  CHECK(run.counters.window_hits == 1);
  CHECK(check_against(sender, run, 1024).size() == sender.packets.size() - 1);
}

TEST_CASE("a flow joined in the middle of a message begins at the next one") {
  RoceSender sender(1024, 100'000);
  sender.send(5000);
  sender.send(3000);
  Run run;
  for (std::size_t i = 2; i < sender.packets.size(); ++i) REQUIRE(run.feed(sender.packets[i]));
  run.finish();
  CHECK(!run.flow->born());
  REQUIRE(run.sink.messages.size() == 1);
  CHECK(run.sink.messages[0].bytes == 3000);
  CHECK(run.counters.unplaceable == 3);
}

TEST_CASE("the number of a queue pair given to a new one is found; a retransmission is not taken for it") {
  RoceSender sender(1024);
  for (int i = 0; i < 40; ++i) sender.send(3000);
  Run run;
  for (const RoceFrame& frame : sender.packets) REQUIRE(run.feed(frame));
  for (const RoceFrame& frame : sender.packets) REQUIRE(run.feed(frame));
  RoceSender next(1024);
  next.key = 0x9999;
  next.send(2000);
  CHECK(!run.feed(next.packets[0]));
  RoceSender far(1024, 20'000'000);
  far.send(5000);
  Run other;
  for (const RoceFrame& frame : far.packets) REQUIRE(other.feed(frame));
  CHECK(!other.feed(next.packets[0]));
}

TEST_CASE("packets that contradict their message are dropped and counted") {
  RoceSender sender(1024);
  sender.send(4096);
  const auto inconsistent = [&](std::size_t at, auto change) {
    Run run;
    for (std::size_t i = 0; i < sender.packets.size(); ++i) {
      RoceFrame frame = sender.packets[i];
      if (i == at) change(frame);
      REQUIRE(run.feed(frame));
    }
    run.finish();
    return run.counters.inconsistent;
  };
  CHECK(inconsistent(1, [](RoceFrame& f) { f.payload = f.payload.first(1000); }) == 1);
  CHECK(inconsistent(1, [](RoceFrame& f) { f.meaning = roce_opcode(0x09); }) == 1);
  CHECK(inconsistent(3, [](RoceFrame& f) { f.meaning = roce_opcode(0x07); }) == 1);
  CHECK(inconsistent(0, [](RoceFrame& f) { f.dma_bytes = 100; }) == 1);
  CHECK(inconsistent(0, [](RoceFrame& f) { f.dma_bytes = 0xffffffff; }) == 1);
  CHECK(inconsistent(0, [](RoceFrame& f) { f.payload = f.payload.first(700); }) == 1);
  Run run;
  for (RoceFrame frame : sender.packets) {
    frame.immediate = 4095;
    REQUIRE(run.feed(frame));
  }
  CHECK(run.counters.immediate_mismatches == 1);
  CHECK(run.sink.messages[0].immediate_mismatch);
}

}  // namespace
}  // namespace gradtap::dataplane
