#include "dataplane/nccl_program.h"

#include <string>
#include <vector>

#include <doctest/doctest.h>

namespace gradtap::dataplane {
namespace {

NcclPattern all_reduce(std::uint32_t id, std::uint64_t elements, std::uint32_t position) {
  const NcclTuning tuning{.ranks = 2, .channels = 1};
  const auto op = nccl_plan_on(tuning, NcclProtocol::kLl, NcclCollective::kAllReduce, elements, 4, 1, 512);
  return NcclPattern::ring(id, *NcclSchedule::of(*op), position, 0);
}

// A connection at MTU 1024, fed with lengths and holes; what the program says as text.
class Connection final : public NcclProgramSink {
 public:
  explicit Connection(std::vector<NcclPattern> patterns) : program_(std::move(patterns)) {}

  Connection& message(std::uint64_t bytes, bool with_flag = true) {
    NcclItem item;
    item.message.number = number_++;
    item.message.bytes = bytes;
    item.message.packet_bytes = bytes == 0 ? 0 : static_cast<std::uint32_t>(std::min<std::uint64_t>(bytes, 1024));
    item.message.immediate_seen = true;
    const std::uint64_t packets = bytes == 0 ? 1 : (bytes + 1023) / 1024;
    item.psns = item.message.psns = {psn_, psn_ + packets};
    psn_ += packets;
    ++flag_;
    item.flag = with_flag ? flag_ : 0;
    item.seen_data = bytes > 0;
    program_.add(item, *this);
    return *this;
  }
  Connection& hole(std::uint64_t psns, std::uint32_t messages) {
    NcclItem item;
    item.hole = true;
    item.psns = {psn_, psn_ + psns};
    psn_ += psns;
    flag_ += messages;
    program_.add(item, *this);
    return *this;
  }
  std::string finish() {
    program_.finish(*this);
    return said_;
  }
  [[nodiscard]] const NcclProgram& program() const { return program_; }

  void found(const NcclStep& step, const NcclItem&) override {
    said_ +=
        std::to_string(step.pattern) + "#" + std::to_string(step.occurrence) + "." + std::to_string(step.index) + " ";
  }
  void lost(const NcclStep& step) override {
    said_ += "lost " + std::to_string(step.pattern) + "#" + std::to_string(step.occurrence) + "." +
             std::to_string(step.index) + "[" + std::to_string(step.psns.begin) + "," + std::to_string(step.psns.end) +
             ") ";
  }
  void foreign(const NcclItem& item) override { said_ += item.hole ? "hole " : "foreign "; }

 private:
  NcclProgram program_;
  std::uint64_t number_ = 0;
  std::uint64_t psn_ = 0;
  std::uint32_t flag_ = 0;
  std::string said_;
};

// 5000 floats over two ranks and one channel: 15424 and 24576 bytes from rank 0 (16 and 24 packets).
constexpr std::uint64_t kFirst = 15424, kSecond = 24576;

TEST_CASE("operations between foreign messages are found and numbered") {
  Connection connection({all_reduce(5, 5000, 0)});
  connection.message(16).message(40000).message(kFirst).message(kSecond).message(16).message(kFirst).message(kSecond);
  CHECK(connection.finish() == "foreign foreign 5#1.0 5#1.1 foreign 5#2.0 5#2.1 ");
  CHECK(connection.program().aligned());
}

TEST_CASE("the last operation may be cut by the end; one message alone is none") {
  Connection connection({all_reduce(5, 5000, 0)});
  connection.message(kFirst).message(kSecond).message(kFirst);
  CHECK(connection.finish() == "5#1.0 5#1.1 foreign ");
}

TEST_CASE("a hole that is exactly a message of the operation is that message") {
  Connection middle({all_reduce(5, 5000, 0)});
  middle.message(kFirst)
      .message(kSecond)
      .hole(16, 1)
      .message(kSecond)
      .message(kFirst)
      .hole(24, 1)
      .message(kFirst)
      .message(kSecond);
  CHECK(middle.finish() == "5#1.0 5#1.1 lost 5#2.0[40,56) 5#2.1 5#3.0 lost 5#3.1[96,120) 5#4.0 5#4.1 ");
  CHECK(middle.program().aligned());
  // With the flags of the wrong number of messages it is not.
  Connection flags({all_reduce(5, 5000, 0)});
  flags.message(kFirst).message(kSecond).hole(16, 1).message(kSecond).message(kFirst).message(kSecond);
  CHECK(flags.finish() == "5#1.0 5#1.1 lost 5#2.0[40,56) 5#2.1 5#3.0 5#3.1 ");
}

TEST_CASE("a hole at a boundary that no operation fits into costs nothing") {
  Connection connection({all_reduce(5, 5000, 0)});
  connection.message(kFirst).message(kSecond).hole(1, 1).message(kFirst).message(kSecond);
  CHECK(connection.finish() == "5#1.0 5#1.1 hole 5#2.0 5#2.1 ");
  CHECK(connection.program().aligned());
}

TEST_CASE("a hole that may have held a whole operation ends the numbering") {
  Connection connection({all_reduce(5, 5000, 0)});
  connection.message(kFirst).message(kSecond).hole(40, 2).message(kFirst).message(kSecond);
  CHECK(connection.finish() == "5#1.0 5#1.1 hole 5#0.0 5#0.1 ");
  CHECK(!connection.program().aligned());
  // And so does one inside an operation that its messages do not explain.
  Connection inside({all_reduce(5, 5000, 0)});
  inside.message(kFirst).hole(7, 1).message(kSecond).message(kFirst).message(kSecond);
  CHECK(inside.finish() == "foreign hole foreign 5#0.0 5#0.1 ");
  CHECK(!inside.program().aligned());
}

TEST_CASE("sizes whose messages have equal lengths are ambiguous") {
  Connection connection({all_reduce(5, 5000, 0), all_reduce(4, 4999, 0)});
  connection.message(kFirst).message(kSecond);
  CHECK(connection.finish() == "foreign foreign ");
  CHECK(connection.program().ambiguous() == 1);
  CHECK(!connection.program().aligned());
}

TEST_CASE("an operation of equal messages beside a foreign one of that length is doubtful") {
  Connection connection({all_reduce(8, 4096, 0)});  // 2048 and 2048
  connection.message(16384).message(16384).message(16384);
  CHECK(connection.finish() == "8#1.0 8#1.1 foreign ");
  CHECK(connection.program().doubtful());
  Connection clean({all_reduce(8, 4096, 0)});
  clean.message(16).message(16384).message(16384).message(16384).message(16384);
  CHECK(clean.finish() == "foreign 8#1.0 8#1.1 8#2.0 8#2.1 ");
  CHECK(!clean.program().doubtful());
}

TEST_CASE("LL messages must have flags; a send has none") {
  Connection simple({all_reduce(5, 5000, 0)});
  simple.message(kFirst, false).message(kSecond, false);
  CHECK(simple.finish() == "foreign foreign ");
  Connection send({NcclPattern::send(7, 7712)});
  send.message(7712, false).message(16, false).message(7712, false);
  CHECK(send.finish() == "7#1.0 foreign 7#2.0 ");
}

TEST_CASE("what waits is bounded") {
  NcclProgramConfig config;
  config.max_waiting = 4;
  NcclProgram program({all_reduce(5, 200'000, 0)}, config);  // many messages
  struct : NcclProgramSink {
    void found(const NcclStep&, const NcclItem&) override { ++found_count; }
    void lost(const NcclStep&) override {}
    void foreign(const NcclItem&) override { ++foreign_count; }
    int found_count = 0, foreign_count = 0;
  } sink;
  const NcclPattern pattern = all_reduce(5, 200'000, 0);
  REQUIRE(pattern.count() > 8);
  for (std::uint64_t i = 0; i < pattern.count(); ++i) {
    NcclItem item;
    item.message.number = i;
    item.message.bytes = pattern.wire_bytes(i);
    item.message.immediate_seen = true;
    program.add(item, sink);
  }
  program.finish(sink);
  CHECK(sink.found_count + sink.foreign_count == static_cast<int>(pattern.count()));
  CHECK(!program.aligned());
}

}  // namespace
}  // namespace gradtap::dataplane
