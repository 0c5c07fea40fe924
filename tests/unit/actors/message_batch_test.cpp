#include "actors/message_batch.h"

#include <doctest/doctest.h>

#include "common/sha256.h"
#include "tests/unit/actors/job_fixture.h"

using namespace gradtap;
using namespace gradtap::actors;
using namespace gradtap::actors::test;

namespace {

struct Fixture {
  JobPlanPtr plan = plan_of(three_shards(sgd()));
  Session session;
  MessageLimits limits;

  Fixture() {
    session.rank = 0;
    session.lineage = 7;
  }
  [[nodiscard]] Result<std::vector<BatchedMessage>> read(const std::string& body) const {
    return read_message_batch(body, session, job_id("job"), plan->schema, limits);
  }
};

std::string layout_line(std::uint64_t seq) {
  return json{{"kind", "layout"},
              {"seq", seq},
              {"rank", 0},
              {"layout", {{"buckets", {{{0, 70'000}, {1, 5}}, {{2, 66'000}}}}, {"dtype", "float32"}}}}
      .dump();
}

}  // namespace

TEST_CASE("a batch is read line by line; empty lines say nothing") {
  const Fixture f;
  const std::string dropped = R"({"kind":"dropped","seq":4,"rank":0,"steps":[2,3],"seqs":[2,3]})";
  const std::string reply = R"({"kind":"reply","seq":5,"rank":0,"id":"x","refused":"no"})";
  const auto lines = f.read(layout_line(1) + "\n\n" + dropped + "\n" + reply);
  REQUIRE(lines);
  REQUIRE(lines->size() == 3);
  CHECK((*lines)[0].seq == 1);
  REQUIRE((*lines)[0].layout);
  REQUIRE((*lines)[0].entry);
  // What is stored is the layout's canonical form, under its own SHA-256.
  const std::string canonical = R"({"buckets":[[[0,70000],[1,5]],[[2,66000]]],"dtype":"float32"})";
  const auto& bytes = (*lines)[0].entry->bytes;
  CHECK(std::string(bytes.begin(), bytes.end()) == canonical);
  CHECK((*lines)[0].layout->id() == sha256(canonical));
  REQUIRE((*lines)[1].notice);
  CHECK((*lines)[1].notice->dropped_steps == std::vector<StepNumber>{2, 3});
  CHECK((*lines)[1].dropped_seqs == std::vector<std::uint64_t>{2, 3});
  CHECK((*lines)[1].digest == sha256(dropped));
  CHECK_FALSE((*lines)[2].entry);
}

TEST_CASE("one bad line refuses the whole batch, by name") {
  const Fixture f;
  const auto refused = [&](const std::string& line) {
    const auto lines = f.read(layout_line(1) + "\n" + line);
    REQUIRE_FALSE(lines);
    return lines.error();
  };
  CHECK(refused("nonsense").code == ErrorCode::kRequestMalformed);
  CHECK(refused("[1,2]").code == ErrorCode::kRequestMalformed);
  CHECK(refused(R"({"kind":"step"})").where.find("seq") != std::string::npos);
  CHECK(refused(R"({"kind":"tea","seq":2,"rank":0})").where == "message.kind");
  CHECK(refused(R"({"kind":"reply","seq":-1,"rank":0})").where.find("seq") != std::string::npos);
  CHECK(refused(R"({"kind":"reply","seq":1e300,"rank":0})").where.find("seq") != std::string::npos);
  CHECK(refused(R"({"kind":"reply","seq":2,"rank":1})").where == "message.rank");
  CHECK(refused(R"({"kind":"dropped","seq":2,"rank":0,"steps":"all"})").where.find("steps") != std::string::npos);
  CHECK(refused(R"({"kind":"layout","seq":2,"rank":0,"layout":{"buckets":[],"dtype":"float32"}})").code ==
        ErrorCode::kLayoutInvalid);
  CHECK(refused(std::string(100'000, '[')).code == ErrorCode::kRequestMalformed);
  CHECK(refused(std::string("{\"kind\":\"\xff\xfe\",\"seq\":2,\"rank\":0}")).code == ErrorCode::kRequestMalformed);
}

TEST_CASE("the number of lines and of bytes is bounded") {
  Fixture f;
  f.limits.batch_lines_max = 2;
  const std::string reply = R"({"kind":"reply","seq":5,"rank":0,"id":"x","refused":"no"})";
  CHECK(f.read(reply + "\n" + reply));
  const auto many = f.read(reply + "\n" + reply + "\n" + reply);
  REQUIRE_FALSE(many);
  CHECK(many.error().code == ErrorCode::kRequestTooLarge);
  f.limits.batch_bytes_max = reply.size();
  CHECK(f.read(reply));
  const auto large = f.read(reply + "\n");
  REQUIRE_FALSE(large);
  CHECK(large.error().code == ErrorCode::kRequestTooLarge);
}

TEST_CASE("numbers have their bounds, and so have lists of them") {
  Fixture f;
  const std::uint64_t most = std::uint64_t{1} << 62;
  const auto dropped = [&](std::uint64_t seq, const json& steps) {
    return f.read(json{{"kind", "dropped"}, {"seq", seq}, {"rank", 0}, {"steps", steps}, {"seqs", {2}}}.dump());
  };
  CHECK(dropped(most, {most}));
  CHECK_FALSE(dropped(most + 1, {1}));
  CHECK_FALSE(dropped(1, {most + 1}));
  CHECK(dropped(1, std::vector<int>(65'536, 1)));
  CHECK_FALSE(dropped(1, std::vector<int>(65'537, 1)));
  // What another rank dropped is declared, and is no news of the job.
  f.session.rank = 1;
  const auto lines = f.read(R"({"kind":"dropped","seq":4,"rank":1,"steps":[2],"seqs":[3]})");
  REQUIRE(lines);
  CHECK_FALSE((*lines)[0].notice);
  CHECK((*lines)[0].dropped_seqs == std::vector<std::uint64_t>{3});
}

TEST_CASE("messages of other ranks are stored and not passed on") {
  Fixture f;
  f.session.rank = 1;
  const auto lines = f.read(R"({"kind":"step","seq":1,"rank":1,"step":1,"interval":[3,4],"counters":{}})");
  REQUIRE(lines);
  REQUIRE(lines->size() == 1);
  CHECK((*lines)[0].entry);
  CHECK_FALSE((*lines)[0].step);
}
