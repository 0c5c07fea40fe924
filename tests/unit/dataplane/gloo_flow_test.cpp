// One direction of one connection, fed by hand: what arrives when, and what may be concluded from it.
#include "dataplane/gloo_flow.h"

#include <algorithm>

#include <doctest/doctest.h>

#include "tests/unit/dataplane/decode_harness.h"

namespace gradtap::dataplane {
namespace {

using namespace testing;

constexpr std::uint32_t kIsn = 0xffff0000U;  // sequence numbers wrap soon

struct Piece {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
};

class FixedComm final : public CommSource {
 public:
  std::uint32_t comm(std::uint32_t) override {
    ++asked;
    return 9;
  }
  int asked = 0;
};

// A flow with everything around it.
struct Rig {
  explicit Rig(const GlooFlowConfig& config = {}, std::uint64_t budget_bytes = 64 << 20)
      : budget{budget_bytes, 0}, flow(config, FlowIdentity{3, 1, 0}, budget) {}

  FlowContext context() { return {sink, comms, counters, now_ms * 1'000'000, packets}; }
  void born() { CHECK(!flow.start(kIsn)); }
  void send(Piece piece) {
    FlowContext c = context();
    ++packets;
    flow.data(kIsn + static_cast<std::uint32_t>(piece.begin),
              ByteSpan(stream).subspan(piece.begin, piece.end - piece.begin), c);
  }
  void send_all(const std::vector<Piece>& pieces) {
    for (const Piece& piece : pieces) send(piece);
  }
  void tick() {
    FlowContext c = context();
    flow.tick(c);
  }
  void flush() {
    FlowContext c = context();
    flow.flush_holes(c);
  }
  void ack(std::uint64_t position) { flow.ack(kIsn + static_cast<std::uint32_t>(position)); }

  // Appends a message to the stream and to the truth.
  Piece add(std::uint32_t tag, std::uint64_t length, int type = 4) {
    put_header(stream, 2, type, tag, length);
    const std::uint64_t begin = stream.size();
    put_message(stream, type, tag, static_cast<std::uint32_t>(stream.size()), length);
    truth[{1, 0, 9, tag, type, count[{tag, type}]++}] =
        std::vector<std::uint8_t>(stream.begin() + static_cast<std::ptrdiff_t>(begin + 48), stream.end());
    return {begin, stream.size()};
  }
  std::vector<Piece> cut(std::uint64_t size) const {
    std::vector<Piece> pieces;
    for (std::uint64_t at = 0; at < stream.size(); at += size)
      pieces.push_back({at, std::min<std::uint64_t>(at + size, stream.size())});
    return pieces;
  }
  // Complete messages that were emitted for `tag`.
  int complete(std::uint32_t tag) const {
    int n = 0;
    for (const auto& [name, message] : sink.messages) {
      if (std::get<3>(name) == tag && std::ranges::all_of(message.seen, [](bool b) { return b; }) && message.length > 0)
        ++n;
    }
    return n;
  }
  int emitted(std::uint32_t tag, bool provisional) const {
    int n = 0;
    for (const auto& [name, message] : sink.messages)
      n += std::get<3>(name) == tag && message.provisional == provisional ? 1 : 0;
    return n;
  }
  // Every emitted byte equals the truth; provisional indices are shifted by `shift`.
  void check_truth(std::uint32_t shift = 0) const {
    CHECK(sink.conflicts == 0);
    for (const auto& [name, message] : sink.messages) {
      auto real = name;
      if (message.provisional) std::get<5>(real) += shift;
      const auto found = truth.find(real);
      REQUIRE(found != truth.end());
      REQUIRE(message.length == found->second.size());
      for (std::size_t i = 0; i < message.bytes.size(); ++i)
        REQUIRE((!message.seen[i] || message.bytes[i] == found->second[i]));
    }
  }
  void check_all_complete() const {
    CHECK(sink.messages.size() == truth.size());
    for (const auto& [name, message] : sink.messages) {
      CHECK(!message.provisional);
      CHECK(std::ranges::all_of(message.seen, [](bool b) { return b; }));
    }
    check_truth();
  }

  std::vector<std::uint8_t> stream;
  std::map<MessageName, std::vector<std::uint8_t>> truth;
  std::map<std::pair<std::uint32_t, int>, std::uint32_t> count;
  CollectingSink sink;
  FixedComm comms;
  FlowCounters counters;
  StoreBudget budget;
  GlooFlow flow;
  std::uint64_t now_ms = 1;
  std::uint64_t packets = 0;
};

// Two ops interleaved, as two worker threads do it.
void add_interleaved(Rig& rig, std::uint32_t tag, int messages, std::uint64_t length) {
  for (int i = 0; i < messages; ++i) {
    rig.add(tag, length);
    rig.add(tag + 1, length + 40);
  }
}

TEST_CASE("headers split at every place, for every segment size") {
  for (std::uint64_t size = 1; size < 130; ++size) {
    Rig rig;
    add_interleaved(rig, 5, 4, 200);
    rig.born();
    rig.send_all(rig.cut(size));
    rig.check_all_complete();
    CHECK(rig.flow.state() == FlowState::kAnchored);
    CHECK(!rig.flow.provisional());
    CHECK(rig.comms.asked == 1);
    CHECK(rig.counters.resyncs == 0);
    CHECK(rig.counters.notifications == 8);
    CHECK(rig.budget.used == 0);
  }
}

TEST_CASE("any order of arrival, twice each, gives the same messages") {
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    Rig rig;
    add_interleaved(rig, 5, 6, 300);
    rig.born();
    SeededRandom random(seed);
    auto pieces = rig.cut(20 + random.below(200));
    pieces.insert(pieces.end(), pieces.begin(), pieces.end());
    for (std::size_t i = pieces.size(); i > 1; --i) std::swap(pieces[i - 1], pieces[random.below(i)]);
    rig.send_all(pieces);
    rig.check_all_complete();
    CHECK(rig.budget.used == 0);
  }
}

TEST_CASE("a hole in a payload costs its bytes only, and a late frame fills it") {
  Rig rig;
  const Piece first = rig.add(5, 1000);
  rig.add(5, 1000);
  rig.born();
  const Piece hole{first.begin + 48 + 100, first.begin + 48 + 200};
  rig.send({0, hole.begin});
  rig.send({hole.end, rig.stream.size()});
  CHECK(rig.complete(5) == 1);
  CHECK(rig.counters.stored_frames == 0);
  CHECK(rig.counters.gap_frames == 1);
  rig.send(hole);
  rig.check_all_complete();
  CHECK(rig.counters.behind_frames == 1);
}

TEST_CASE("hello of torch 2, in one piece with the header or apart") {
  for (const std::uint64_t first : {8, 3, 56, 30, 20}) {
    for (const std::uint64_t id : {0ULL, 1ULL, 3ULL, 48ULL, 4000ULL}) {
      Rig rig;
      put_le(rig.stream, id);
      rig.add(0, 64, 2);
      rig.add(1, 128);
      rig.born();
      rig.send({0, first});
      rig.send({first, rig.stream.size()});
      CHECK(rig.counters.hellos == 1);
      CHECK(rig.complete(1) == 1);
      rig.check_truth();
      // Types other than all-reduce are announced only.
      const auto& gathered = rig.sink.messages.at({1, 0, 9, 0, 2, 0});
      CHECK(gathered.length == 64);
      CHECK(std::ranges::none_of(gathered.seen, [](bool b) { return b; }));
    }
  }
}

struct HoleRig : Rig {
  // tag 5: two messages before the hole, the third's header inside it; tag 6 wholly behind it, 7 .. 12 later.
  explicit HoleRig(const GlooFlowConfig& config = {}) : Rig(config) {
    add(5, 400);
    add(5, 400);
    const Piece third = add(5, 400);
    hole = {third.begin - 20, third.begin + 80};
    add(5, 400);
    for (std::uint32_t tag = 6; tag <= 12; ++tag) {
      ends[tag - 1] = stream.size();
      add(tag, 200);
      add(tag, 200);
    }
    ends[12] = stream.size();
    born();
    send({0, hole.begin});
  }
  Piece hole;
  std::map<std::uint32_t, std::uint64_t> ends;
};

TEST_CASE("a header hole is given up only after ack, time and packets") {
  HoleRig rig;
  rig.send({rig.hole.end, rig.ends[7]});
  CHECK(rig.emitted(6, true) == 0);
  const auto still_waiting = [&] {
    rig.tick();
    return rig.counters.header_holes == 0 && rig.flow.state() == FlowState::kAnchored;
  };
  rig.now_ms += 1000;
  rig.packets += 10000;
  CHECK(still_waiting());  // not acked
  rig.ack(rig.hole.begin);
  CHECK(still_waiting());  // acked up to it only
  rig.ack(rig.ends[7]);
  rig.tick();
  CHECK(rig.counters.header_holes == 1);
  CHECK(rig.counters.resyncs == 1);
  CHECK(rig.complete(6) == 2);
  CHECK(rig.emitted(6, true) == 2);
  rig.check_truth();

  SUBCASE("packets are needed too") {
    HoleRig other;
    other.send({other.hole.end, other.ends[7]});
    other.ack(other.ends[7]);
    other.now_ms += 1000;
    other.packets += 4000;
    other.tick();
    CHECK(other.counters.header_holes == 0);
    other.packets += 200;
    other.tick();
    CHECK(other.counters.header_holes == 1);
  }
  SUBCASE("and time") {
    HoleRig other;
    other.send({other.hole.end, other.ends[7]});
    other.ack(other.ends[7]);
    other.packets += 10000;
    other.now_ms += 49;
    other.tick();
    CHECK(other.counters.header_holes == 0);
    other.now_ms += 1;
    other.tick();
    CHECK(other.counters.header_holes == 1);
  }
}

// What a burst leaves behind on a flow of notifications: one frame each, every third one lost.
struct BurstRig : Rig {
  static constexpr int kFrames = 900;
  BurstRig() {
    for (int i = 0; i < kFrames + 30; ++i) put_header(stream, 2, 4, 5, 400);
    born();
    for (int i = 0; i < kFrames; ++i) {
      if (i % 3 != 1) send(notification(i));
      if (i % 30 == 0) ++now_ms;
    }
  }
  static Piece notification(int i) {
    return {48U * static_cast<std::uint64_t>(i), 48U * static_cast<std::uint64_t>(i + 1)};
  }
  void pass_grace() {
    now_ms += 50;
    packets += 4096;
  }
};

TEST_CASE("holes that a burst left are given up within one grace, and then no more are") {
  BurstRig rig;
  CHECK(rig.counters.header_holes == 0);
  rig.ack(48 * BurstRig::kFrames);
  rig.pass_grace();
  rig.tick();
  CHECK(rig.counters.header_holes == BurstRig::kFrames / 3);
  CHECK(rig.counters.harmless_holes + rig.counters.weak_resyncs == BurstRig::kFrames / 3);
  CHECK(rig.flow.state() == FlowState::kAnchored);
  CHECK(!rig.flow.waiting());
  CHECK(rig.budget.used == 0);
  CHECK(rig.counters.notifications == BurstRig::kFrames * 2 / 3);
  for (int i = BurstRig::kFrames; i < BurstRig::kFrames + 30; ++i) rig.send(BurstRig::notification(i));
  rig.pass_grace();
  rig.tick();
  CHECK(rig.counters.header_holes == BurstRig::kFrames / 3);
  CHECK(rig.counters.notifications == BurstRig::kFrames * 2 / 3 + 30);
}

TEST_CASE("a hole's age is that of the bytes behind it: a young one waits while old ones go") {
  BurstRig rig;
  rig.ack(48 * (BurstRig::kFrames + 30));
  rig.pass_grace();
  rig.send(BurstRig::notification(BurstRig::kFrames + 1));  // the one before it may be on its way
  CHECK(rig.counters.header_holes == BurstRig::kFrames / 3);
  rig.send(BurstRig::notification(BurstRig::kFrames));
  CHECK(!rig.flow.waiting());
  rig.pass_grace();
  rig.tick();
  CHECK(rig.counters.header_holes == BurstRig::kFrames / 3);
}

TEST_CASE("after a reset nobody acknowledges: the grace alone decides") {
  for (const bool reset : {false, true}) {
    BurstRig rig;
    if (reset) {
      rig.flow.reset();
    } else {
      rig.flow.close();
    }
    CHECK(rig.flow.closed());
    rig.tick();
    CHECK(rig.counters.header_holes == 0);
    rig.pass_grace();
    rig.tick();
    CHECK(rig.counters.header_holes == (reset ? BurstRig::kFrames / 3 : 0));
    CHECK(rig.flow.waiting() == !reset);
  }
}

TEST_CASE("a late header within the grace loses nothing") {
  HoleRig rig;
  rig.send({rig.hole.end, rig.stream.size()});
  rig.ack(rig.stream.size());
  rig.now_ms += 40;
  rig.tick();
  rig.send(rig.hole);
  rig.check_all_complete();
  CHECK(rig.counters.header_holes == 0);
}

TEST_CASE("after a hole: open tags are unplaceable, new ones provisional until a quiescent point") {
  GlooFlowConfig config;
  config.quiescent_tags = 3;
  HoleRig rig(config);
  rig.send({rig.hole.end, rig.ends[9]});
  rig.flush();
  CHECK(rig.flow.provisional());
  CHECK(rig.emitted(5, false) == 2);
  CHECK(rig.emitted(5, true) == 0);
  CHECK(rig.counters.unplaceable_messages >= 1);
  for (std::uint32_t tag = 6; tag <= 9; ++tag) CHECK(rig.emitted(tag, true) == 2);
  rig.flow.op_closed(5, true, rig.counters);  // begun before the hole: says nothing
  rig.flow.op_closed(6, true, rig.counters);
  rig.flow.op_closed(6, true, rig.counters);  // twice does not count twice
  rig.flow.op_closed(7, false, rig.counters);
  rig.flow.op_closed(8, true, rig.counters);
  CHECK(rig.flow.provisional());
  rig.send({rig.ends[9], rig.ends[10]});
  CHECK(rig.emitted(10, true) == 2);
  rig.flow.op_closed(9, true, rig.counters);
  CHECK(!rig.flow.provisional());
  CHECK(rig.counters.quiescent_points == 1);
  rig.send({rig.ends[10], rig.stream.size()});
  CHECK(rig.emitted(11, false) == 2);
  CHECK(rig.emitted(12, false) == 2);
  rig.check_truth();
}

TEST_CASE("a tag whose first messages lie in the hole is provisional, its indices shifted") {
  Rig rig;
  rig.add(5, 400);
  const Piece lost_a = rig.add(6, 400);
  const Piece lost_b = rig.add(6, 400);
  rig.add(6, 400);
  rig.add(6, 400);
  rig.add(6, 400);
  rig.born();
  rig.send({0, lost_a.begin - 10});
  rig.send({lost_b.end, rig.stream.size()});
  rig.flush();
  CHECK(rig.emitted(6, true) == 3);
  CHECK(rig.emitted(6, false) == 0);
  rig.check_truth(2);
}

TEST_CASE("a lost notification costs nothing; a hole in which a message could hide does") {
  for (const bool longer : {false, true}) {
    Rig rig;
    rig.add(5, 400);
    const Piece second = rig.add(5, 48);
    rig.add(5, 400);
    rig.add(6, 400);
    rig.add(6, 400);
    rig.born();
    // add() puts a notification of 48 bytes in front of each message; the second message is as long as two of them.
    const Piece hole = longer ? Piece{second.begin, second.end} : Piece{second.begin - 48, second.begin};
    rig.send({0, hole.begin});
    rig.send({hole.end, rig.stream.size()});
    rig.flush();
    CHECK(rig.counters.header_holes == 1);
    CHECK(rig.counters.harmless_holes == (longer ? 0 : 1));
    CHECK(rig.flow.provisional() == longer);
    CHECK(rig.emitted(5, false) == (longer ? 1 : 3));
    CHECK(rig.emitted(6, longer) == 2);
    rig.check_truth();
  }
}

TEST_CASE("a full window gives up the oldest hole and goes on") {
  GlooFlowConfig config;
  config.reorder_window_bytes = 6000;
  Rig rig(config);
  const Piece first = rig.add(5, 400);
  for (std::uint32_t tag = 6; tag < 60; ++tag) rig.add(tag, 400);
  rig.born();
  rig.send({0, first.begin + 20});
  for (const Piece& piece : rig.cut(300)) {
    if (piece.begin >= first.begin + 300) rig.send(piece);
    CHECK(rig.budget.used <= 6000);
  }
  CHECK(rig.counters.window_hits == 1);
  CHECK(rig.counters.resyncs == 1);
  CHECK(rig.complete(59) == 1);
  rig.check_truth();
}

TEST_CASE("start in mid-stream: at a header at once, elsewhere by search; all provisional") {
  for (const std::uint64_t skip : {0, 4, 48, 52, 100, 496}) {
    Rig rig;
    add_interleaved(rig, 5, 8, 400);
    rig.send({skip, skip + 120});
    for (std::uint64_t at = skip + 120; at < rig.stream.size(); at += 100)
      rig.send({at, std::min<std::uint64_t>(at + 100, rig.stream.size())});
    CAPTURE(skip);
    CHECK(rig.counters.resyncs == 1);
    CHECK(rig.flow.provisional());
    CHECK(rig.sink.messages.size() >= 14);
    CHECK(rig.emitted(5, false) + rig.emitted(6, false) == 0);
  }
}

TEST_CASE("resync alignment: the step must reach the header") {
  for (const std::uint32_t step : {1U, 2U, 4U}) {
    GlooFlowConfig config;
    config.resync_step_bytes = step;
    Rig rig(config);
    const Piece odd = rig.add(5, 402);  // what follows is at 2 mod 4
    for (std::uint32_t tag = 6; tag < 10; ++tag) rig.add(tag, 400);
    rig.born();
    rig.send({0, odd.begin - 10});
    rig.send({odd.end - 20, rig.stream.size()});
    rig.flush();
    CHECK(rig.counters.resyncs == (step == 4 ? 0 : 1));
    CHECK(rig.complete(9) == (step == 4 ? 0 : 1));
    rig.check_truth();
  }
}

TEST_CASE("a header copied into a payload is not believed") {
  // The lure chains to nothing: what it announces ends inside payload.
  Rig rig;
  const Piece lost = rig.add(5, 400);
  const Piece lure = rig.add(6, 2000);
  std::vector<std::uint8_t> fake;
  put_header(fake, 1, 4, 6, 100);
  std::copy(fake.begin(), fake.end(), rig.stream.begin() + static_cast<std::ptrdiff_t>(lure.begin + 48 + 200));
  auto& truth = rig.truth[{1, 0, 9, 6, 4, 0}];
  std::copy(fake.begin(), fake.end(), truth.begin() + 200);
  rig.add(7, 400);
  rig.add(8, 400);
  rig.add(9, 400);
  rig.born();
  rig.send({0, lost.begin - 10});
  rig.send({lure.begin + 60, rig.stream.size()});
  rig.flush();
  CHECK(rig.emitted(6, true) == 0);
  CHECK(rig.complete(7) == 1);
  rig.check_truth();
}

TEST_CASE("keep-alives and zero-window probes carry no data") {
  Rig rig;
  const Piece message = rig.add(5, 400);
  rig.born();
  rig.send({0, message.begin + 148});
  FlowContext context = rig.context();
  const std::uint8_t garbage = 0;
  rig.flow.data(kIsn + static_cast<std::uint32_t>(message.begin + 147), {&garbage, 1}, context);
  CHECK(rig.counters.keepalives == 1);
  rig.ack(message.begin + 200);  // the frames up to here were missed
  rig.flow.data(kIsn + static_cast<std::uint32_t>(message.begin + 199), {&garbage, 1}, context);
  CHECK(rig.counters.keepalives == 2);
  rig.send({message.begin + 148, message.end});
  rig.check_all_complete();
}

TEST_CASE("broken framing without a hole: suspect, then found again") {
  Rig rig;
  rig.add(5, 400);
  rig.stream.insert(rig.stream.end(), 64, 0xcc);
  for (std::uint32_t tag = 6; tag < 10; ++tag) rig.add(tag, 400);
  const std::uint64_t whole = rig.stream.size();
  rig.born();
  rig.send({0, 700});
  CHECK(rig.counters.framing_errors == 1);
  CHECK(rig.flow.state() == FlowState::kSuspect);
  rig.send({700, whole});
  CHECK(rig.flow.state() == FlowState::kAnchored);
  CHECK(rig.emitted(9, true) == 1);
  rig.check_truth();
}

TEST_CASE("other protocols become FOREIGN and hold no memory") {
  SUBCASE("from the SYN") {
    Rig rig;
    rig.stream.assign(200, 'G');
    rig.born();
    rig.send({0, 40});
    CHECK(rig.flow.state() == FlowState::kRole);
    rig.send({40, 200});
    CHECK(rig.flow.state() == FlowState::kForeign);
  }
  SUBCASE("in mid-stream") {
    GlooFlowConfig config;
    config.foreign_after_bytes = 100'000;
    Rig rig(config);
    rig.stream.assign(200'000, 'x');
    for (const Piece& piece : rig.cut(1448)) {
      rig.send(piece);
      CHECK(rig.budget.used < 4096);
    }
    CHECK(rig.flow.state() == FlowState::kForeign);
  }
  SUBCASE("comm is never asked for") {
    Rig rig;
    rig.stream.assign(200, 'G');
    rig.born();
    rig.send({0, 200});
    CHECK(rig.comms.asked == 0);
    CHECK(rig.budget.used == 0);
    CHECK(rig.counters.foreign_flows == 1);
    rig.send({0, 200});
    CHECK(rig.counters.foreign_frames == 1);
  }
}

TEST_CASE("send/recv messages are stepped over") {
  Rig rig;
  rig.add(5, 400);
  put_le(rig.stream, 48 + 100), put_le(rig.stream, 1), put_le(rig.stream, 0x123456), put_le(rig.stream, 0),
      put_le(rig.stream, 100), put_le(rig.stream, 0);
  rig.stream.insert(rig.stream.end(), 100, 0xcc);
  rig.add(6, 400);
  rig.born();
  rig.send_all(rig.cut(333));
  CHECK(rig.counters.foreign_messages == 1);
  CHECK(rig.counters.framing_errors == 0);
  rig.check_all_complete();
}

TEST_CASE("far frames: one is ignored, two in a row mean that the position is lost") {
  Rig rig;
  rig.add(5, 400);
  rig.born();
  rig.send({0, rig.stream.size()});
  Rig later;  // the same connection, 1.5 GiB on
  for (std::uint32_t tag = 900; tag < 906; ++tag) later.add(tag, 400);
  const std::uint32_t far = kIsn + 0x60000000U;
  FlowContext context = rig.context();
  const ByteSpan bytes(later.stream);
  rig.flow.data(far + 5000, bytes.subspan(5, 50), context);
  CHECK(rig.counters.implausible_frames == 1);
  CHECK(rig.counters.position_losses == 0);
  rig.flow.data(far, bytes.first(500), context);
  CHECK(rig.counters.position_losses == 0);
  rig.flow.data(far + 500, bytes.subspan(500), context);
  CHECK(rig.counters.position_losses == 1);
  CHECK(rig.counters.resyncs == 1);
  CHECK(rig.emitted(905, true) == 1);
}

TEST_CASE("only recent messages take late bytes") {
  GlooFlowConfig config;
  config.recent_messages = 4;
  Rig rig(config);
  const Piece old = rig.add(5, 400);
  for (int i = 0; i < 6; ++i) rig.add(5, 400);
  rig.born();
  rig.send({0, old.begin + 148});
  rig.send({old.begin + 248, rig.stream.size()});
  rig.send({old.begin + 148, old.begin + 248});
  CHECK(rig.counters.late_bytes == 100);
  CHECK(rig.complete(5) == 6);
  rig.check_truth();
}

TEST_CASE("tags: bounded, and what was forgotten is not renumbered") {
  GlooFlowConfig config;
  config.max_tags = 16;
  Rig rig(config);
  for (std::uint32_t tag = 0xfffffff0U; tag != 30; ++tag) rig.add(tag, 16);
  rig.add(0xfffffff8U, 16);  // long ago
  rig.add(28, 16);
  rig.born();
  rig.send_all(rig.cut(1000));
  CHECK(rig.counters.tag_limit_hits > 0);
  CHECK(rig.counters.unplaceable_messages == 1);
  CHECK(rig.emitted(28, false) == 2);
  rig.check_truth();
  rig.flow.forget_tags_below(29);
  const std::uint64_t end = rig.stream.size();
  rig.add(28, 16);
  rig.send({end, rig.stream.size()});
  CHECK(rig.counters.unplaceable_messages == 2);
}

TEST_CASE("SYN: repeated is nothing, another one is another connection; one that was overtaken still anchors") {
  Rig rig;
  rig.add(5, 400);
  rig.add(6, 400);
  CHECK(!rig.flow.start(kIsn));
  CHECK(!rig.flow.start(kIsn));
  rig.send({0, 200});
  CHECK(!rig.flow.start(kIsn));
  CHECK(rig.flow.start(kIsn + 777));

  Rig overtaken;
  overtaken.add(5, 400);
  overtaken.add(6, 400);
  overtaken.send({0, 30});
  CHECK(!overtaken.flow.start(kIsn));
  overtaken.send({30, overtaken.stream.size()});
  overtaken.check_all_complete();
}

TEST_CASE("messages are announced when their payload is not at hand") {
  Rig rig;
  const Piece message = rig.add(5, 400);
  rig.born();
  rig.send({0, message.begin + 48});
  REQUIRE(rig.sink.messages.size() == 1);
  CHECK(rig.sink.messages.begin()->second.length == 400);
  CHECK(rig.counters.segments == 0);
}

}  // namespace
}  // namespace gradtap::dataplane
