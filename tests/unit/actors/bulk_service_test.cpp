#include "actors/bulk_service.h"

#include <cstring>

#include <doctest/doctest.h>

#include "actors/side_batch.h"
#include "tests/unit/actors/contribution_fixture.h"
#include "tests/unit/actors/fake_actor.h"
#include "tests/unit/actors/side_fixture.h"

namespace gradtap::actors {
namespace {

using link::BulkKind;
using link::BulkRequest;
using test::json;

struct Answer {
  std::string meta;
  std::vector<std::uint8_t> bytes;
};

struct BulkRig {
  test::StoredJob job{test::three_shards(test::sgd())};
  test::SideWriter side{job};
  caf::actor_system_config config;
  caf::actor_system system{config};
  std::shared_ptr<TapRetention> retention = std::make_shared<TapRetention>(std::uint64_t{1} << 30, 2);
  std::shared_ptr<BaselineHold> baseline = std::make_shared<BaselineHold>();
  std::shared_ptr<test::Log<SideEntriesPtr>> fed = std::make_shared<test::Log<SideEntriesPtr>>();
  std::shared_ptr<test::Script<Outcome>> outcomes = std::make_shared<test::Script<Outcome>>();
  std::vector<HttpRequest> forwarded_here;
  std::shared_ptr<MemoryLedger> memory = std::make_shared<MemoryLedger>(std::uint64_t{1} << 30);
  HttpAnswer http{202, R"({"ok": 1})"};
  FeedActor feed =
      test::spawn_fake<FeedActor>(system, [fed = fed, outcomes = outcomes](side_atom, const SideEntriesPtr& entries) {
        fed->add(entries);
        return outcomes->next(Outcome{});
      });
  link::BulkHandler handler;

  BulkRig() {
    retention->begin(job.plan);
    BulkServiceOptions options;
    options.system = &system;
    options.job_name = "job";
    options.store = job.store;
    options.retention = retention;
    options.baseline = baseline;
    options.feed = feed;
    options.memory = memory;
    options.side_channel = [this](HttpRequest&& request) {
      forwarded_here.push_back(std::move(request));
      return http;
    };
    handler = bulk_service(std::move(options));
  }
  ~BulkRig() { caf::anon_send_exit(feed, caf::exit_reason::user_shutdown); }

  [[nodiscard]] static BulkRequest request(BulkKind kind, ShardId shard = 0, StepNumber step = 0) {
    BulkRequest request;
    request.kind = kind;
    request.job = job_id("job");
    request.lineage = 1;
    request.shard = shard;
    request.step = step;
    return request;
  }
  [[nodiscard]] Result<Answer> ask(BulkRequest request) {
    auto source = handler("tap1", std::move(request));
    if (!source) return std::unexpected(source.error());
    Answer answer{(*source)->meta(), {}};
    for (std::uint64_t i = 0; i < (*source)->chunks(); ++i) {
      auto chunk = (*source)->chunk(i);
      if (!chunk) return std::unexpected(chunk.error());
      answer.bytes.insert(answer.bytes.end(), chunk->begin(), chunk->end());
    }
    return answer;
  }
  [[nodiscard]] ErrorCode refused(BulkRequest wanted) {
    const auto answer = ask(std::move(wanted));
    REQUIRE_FALSE(answer);
    CHECK_FALSE(answer.error().what.empty());
    return answer.error().code;
  }
};

std::vector<std::uint8_t> bytes_of(const std::vector<float>& values) {
  const auto* const bytes = reinterpret_cast<const std::uint8_t*>(values.data());
  return {bytes, bytes + values.size() * sizeof(float)};
}

}  // namespace

TEST_CASE("a gradient comes from the log, with the digest after the step, or from what the tap kept, without") {
  BulkRig rig;
  rig.job.base(1);
  rig.job.step(1);
  auto answer = rig.ask(BulkRig::request(BulkKind::kGradient, 1, 1));
  REQUIRE(answer);
  CHECK(answer->bytes == test::gradient_bytes(*rig.job.plan, 1, 1));
  CHECK(answer->meta == to_hex(rig.job.digests[1].at(1)));
  // Not applied here yet, or of a shard that another node owns.
  CHECK(rig.refused(BulkRig::request(BulkKind::kGradient, 1, 2)) == ErrorCode::kStepUnavailable);
  CHECK(rig.refused(BulkRig::request(BulkKind::kGradient, 2, 1)) == ErrorCode::kStepUnavailable);
  const test::Contributor contributor{rig.job.plan, test::layout_of(*rig.job.plan, {{2}, {1, 0}})};
  rig.retention->add(contributor.make(1, 0, 2));
  answer = rig.ask(BulkRig::request(BulkKind::kGradient, 2, 1));
  REQUIRE(answer);
  CHECK(answer->bytes == test::gradient_bytes(*rig.job.plan, 2, 1));
  CHECK(answer->meta.empty());
  BulkRequest other = BulkRig::request(BulkKind::kGradient, 2, 1);
  other.lineage = 2;
  CHECK(rig.refused(other) == ErrorCode::kStepUnavailable);
  CHECK(rig.refused(BulkRig::request(BulkKind::kGradient, 999, 1)) == ErrorCode::kStepUnavailable);
}

TEST_CASE("a skipped step's gradient is the empty log") {
  BulkRig rig;
  rig.job.base(0);
  rig.job.step(0, true, false, replica::Verdict::kSkipped);
  const auto answer = rig.ask(BulkRig::request(BulkKind::kGradient, 0, 1));
  REQUIRE(answer);
  CHECK(answer->bytes.empty());
  CHECK(answer->meta == to_hex(rig.job.digests[0].at(1)));
}

TEST_CASE("a full version is the newest of the store, each kind with its length") {
  BulkRig rig;
  rig.job.base(1);
  for (StepNumber step = 1; step <= 4; ++step) rig.job.step(1, true, step == 3);
  BulkRequest wanted = BulkRig::request(BulkKind::kFullVersion, 1);
  for (const StepNumber at_least : {0U, 3U}) {
    wanted.argument = at_least;
    const auto answer = rig.ask(wanted);
    REQUIRE_MESSAGE(answer, answer.error().text());
    const json meta = json::parse(answer->meta);
    CHECK(meta["step"] == 3);
    CHECK(meta["digest"] == to_hex(rig.job.digests[1].at(3)));
    // Parameters, momentum, presence: kinds 16, 17 and 128 of docs/formats.md; per piece 9 bytes of presence.
    const auto& arrays = rig.job.arrays[1].at(3);
    const std::uint64_t pieces = rig.job.plan->shards.shards()[1].pieces.size();
    REQUIRE(arrays.size() == 2);
    CHECK(meta["kinds"] == json{{16, arrays[0].size() * 4}, {17, arrays[1].size() * 4}, {128, pieces * 9}});
    std::vector<std::uint8_t> expected = bytes_of(arrays[0]);
    const auto momentum = bytes_of(arrays[1]);
    expected.insert(expected.end(), momentum.begin(), momentum.end());
    REQUIRE(answer->bytes.size() == expected.size() + pieces * 9);
    CHECK(std::memcmp(answer->bytes.data(), expected.data(), expected.size()) == 0);
  }
  wanted.argument = 4;  // durable, but as a log alone
  CHECK(rig.refused(wanted) == ErrorCode::kStepUnavailable);
  wanted.shard = 2;
  wanted.argument = 0;
  CHECK(rig.refused(wanted) == ErrorCode::kStepUnavailable);
}

TEST_CASE("a baseline in hand is given to owners elsewhere while it is held") {
  BulkRig rig;
  BulkRequest wanted = BulkRig::request(BulkKind::kFullVersion, 2);
  CHECK(rig.refused(wanted) == ErrorCode::kStepUnavailable);
  rig.baseline->begin(1);
  rig.baseline->put(2,
                    {7, rig.job.digests[2].at(0), std::make_shared<const recovery::FullVersion>(*rig.job.shards[2])});
  wanted.argument = 7;
  const auto answer = rig.ask(wanted);
  REQUIRE(answer);
  const json meta = json::parse(answer->meta);
  CHECK(meta["step"] == 7);
  CHECK(meta["digest"] == to_hex(rig.job.digests[2].at(0)));
  const auto values = bytes_of(rig.job.arrays[2].at(0)[0]);
  REQUIRE(answer->bytes.size() > values.size());
  CHECK(std::memcmp(answer->bytes.data(), values.data(), values.size()) == 0);
  wanted.argument = 8;
  CHECK(rig.refused(wanted) == ErrorCode::kStepUnavailable);
  wanted.argument = 0;
  wanted.lineage = 2;
  CHECK(rig.refused(wanted) == ErrorCode::kStepUnavailable);
}

TEST_CASE("a scan gives the newest launched lineage: its record first, and steps after the one asked for") {
  BulkRig rig;
  const LayoutPtr layout = test::layout_of(*rig.job.plan, {{2}, {1, 0}});
  rig.side.layout(*layout);
  rig.side.blob(1, "blob");
  for (StepNumber step = 1; step <= 5; ++step)
    for (std::uint32_t rank = 0; rank < 2; ++rank) rig.side.message(step, rank, {});
  test::require_ok(
      rig.job.store->put_side(storage::side_key(storage::SideKind::kOther, rig.job.plan->job, 1, 0, 1) + "session",
                              test::text_bytes("{}"), true));
  // A newer lineage whose probe has not ended is none yet.
  schema::LineageRecord next = test::record_of(rig.job.body, 65'536, std::string(32, 'c'));
  next.recipe_id.clear();
  REQUIRE(rig.job.store->open_lineage(next));
  const auto answer = rig.ask(BulkRig::request(BulkKind::kSideScan, 0, 3));
  REQUIRE(answer);
  const auto entries = decode_side_batch(answer->bytes);
  REQUIRE(entries);
  std::vector<storage::SideKind> kinds;
  for (const auto& entry : *entries) {
    const auto key = storage::parse_side_key(entry.key);
    REQUIRE(key);
    CHECK(key->job == rig.job.plan->job);
    CHECK(key->lineage == 1);
    if (key->kind == storage::SideKind::kStepMessage) CHECK(key->step > 3);
    const auto stored = rig.job.store->get_side(entry.key);
    REQUIRE(stored);
    CHECK(*stored == entry.bytes);
    kinds.push_back(key->kind);
  }
  using enum storage::SideKind;
  CHECK(kinds == std::vector{kLineage, kLayout, kBlob, kStepMessage, kStepMessage, kStepMessage, kStepMessage, kOther});
}

TEST_CASE("entries that a peer puts go to the feed, and its outcome comes back") {
  BulkRig rig;
  BulkRequest put = BulkRig::request(BulkKind::kSidePut);
  put.body = encode_side_batch({{"k1", {1, 2}}, {"k2", {}}});
  const auto answer = rig.ask(put);
  REQUIRE(answer);
  CHECK(answer->bytes.empty());
  REQUIRE(rig.fed->all().size() == 1);
  REQUIRE(rig.fed->all()[0]->entries.size() == 2);
  CHECK(rig.fed->all()[0]->entries[0].key == "k1");
  CHECK(rig.fed->all()[0]->entries[0].bytes == std::vector<std::uint8_t>{1, 2});
  rig.outcomes->then({false, {ErrorCode::kStoreFull, "no space", {}, {}, {}, {}}});
  CHECK(rig.refused(put) == ErrorCode::kStoreFull);
  put.body.pop_back();
  CHECK(rig.refused(put) == ErrorCode::kRequestMalformed);
  CHECK(rig.fed->all().size() == 2);
}

TEST_CASE("a request of the side channel arrives as it was sent, and so does its answer") {
  BulkRig rig;
  HttpRequest request;
  request.method = "PUT";
  request.path = "/v1/jobs/job/blobs/00 ff";
  request.session = "abcdef";
  request.body = std::string("\0binary\n", 8);
  BulkRequest carried = forwarded(HttpRequest(request));
  CHECK(carried.kind == BulkKind::kHttp);
  carried.job = job_id("job");
  const auto answer = rig.ask(carried);
  REQUIRE(answer);
  REQUIRE(rig.forwarded_here.size() == 1);
  CHECK(rig.forwarded_here[0].method == "PUT");
  CHECK(rig.forwarded_here[0].path == request.path);
  CHECK(rig.forwarded_here[0].session == "abcdef");
  CHECK(rig.forwarded_here[0].body == request.body);
  const HttpAnswer back = forwarded_answer(answer->meta, answer->bytes);
  CHECK(back.status == 202);
  CHECK(back.body == R"({"ok": 1})");
  for (const char* text : {"", "PUT", "PUT /x", "/x\nPUT session", "\n \n"}) {
    CAPTURE(text);
    carried.text = text;
    CHECK(rig.refused(carried) == ErrorCode::kRequestMalformed);
  }
  CHECK(rig.forwarded_here.size() == 1);
  for (const char* meta : {"", "0", "99", "600", "-200", "2x0", "20000000000000000000"}) {
    CAPTURE(meta);
    CHECK(forwarded_answer(meta, {}).status == 503);
  }
}

TEST_CASE("another job, and kinds that nobody answers, are refused") {
  BulkRig rig;
  BulkRequest request = BulkRig::request(BulkKind::kSideScan);
  request.job = job_id("another");
  CHECK(rig.refused(request) == ErrorCode::kJobUnknown);
  for (const std::uint16_t kind : {0, 6, 7, 8, 65'535})
    CHECK(rig.refused(BulkRig::request(static_cast<BulkKind>(kind))) == ErrorCode::kRequestMalformed);
}

TEST_CASE("an answer is taken from the node's memory while it is sent, and refused when none is left") {
  BulkRig rig;
  rig.job.base(1);
  rig.job.step(1, true, true);
  const BulkRequest gradient = BulkRig::request(BulkKind::kGradient, 1, 1);
  const BulkRequest version = BulkRig::request(BulkKind::kFullVersion, 1);
  const std::uint64_t bytes = rig.job.plan->shards.shards()[1].elements * 4;
  for (const BulkRequest& wanted : {gradient, version}) {
    auto source = rig.handler("tap1", BulkRequest(wanted));
    REQUIRE_MESSAGE(source, source.error().text());
    CHECK(rig.memory->usage(MemoryAccount::kPeers).in_use_bytes >= bytes);
    source->reset();
    CHECK(rig.memory->usage(MemoryAccount::kPeers).in_use_bytes == 0);
  }
  const std::uint64_t free = rig.memory->limit_bytes();
  REQUIRE(rig.memory->take(MemoryAccount::kShards, free - bytes + 1));
  CHECK(rig.refused(gradient) == ErrorCode::kMemoryExhausted);
  CHECK(rig.refused(version) == ErrorCode::kMemoryExhausted);
  rig.memory->give_back(MemoryAccount::kShards, 1);
  CHECK(rig.ask(gradient));
  CHECK(rig.refused(version) == ErrorCode::kMemoryExhausted);
  rig.side.message(1, 0, {});
  rig.memory->give_back(MemoryAccount::kShards, free - bytes);
  CHECK(rig.ask(BulkRig::request(BulkKind::kSideScan)));
  REQUIRE(rig.memory->take(MemoryAccount::kShards, free));
  CHECK(rig.refused(BulkRig::request(BulkKind::kSideScan)) == ErrorCode::kMemoryExhausted);
  rig.memory->give_back(MemoryAccount::kShards, free);
  // A baseline in hand that no owner here changes is copied while it is sent.
  rig.baseline->begin(1);
  rig.baseline->put(2, {7, rig.job.digests[2].at(0), nullptr, rig.job.shards[2]});
  BulkRequest held = BulkRig::request(BulkKind::kFullVersion, 2);
  held.argument = 7;
  const auto answer = rig.ask(held);
  REQUIRE(answer);
  const auto values = bytes_of(rig.job.arrays[2].at(0)[0]);
  REQUIRE(answer->bytes.size() > values.size());
  CHECK(std::memcmp(answer->bytes.data(), values.data(), values.size()) == 0);
  CHECK(rig.memory->total().in_use_bytes == 0);
}

}  // namespace gradtap::actors
