#include "actors/baseline_loader.h"

#include <cstring>

#include <doctest/doctest.h>

#include "tests/unit/actors/job_fixture.h"

namespace gradtap::actors {
namespace {

using test::json;

// A safetensors file written by hand: the loader's reader is not the judge of its own input.
struct Chunk {
  json header = json::object();
  std::string data;
  Chunk(const std::string& chunks, const std::string& counters = {}) {
    header["__metadata__"] = {{"step", "0"}};
    if (!chunks.empty()) header["__metadata__"]["chunks"] = chunks;
    if (!counters.empty()) header["__metadata__"]["counters"] = counters;
  }
  Chunk& tensor(const std::string& name, const std::vector<float>& values, const std::string& dtype = "F32") {
    const std::size_t begin = data.size();
    data.append(reinterpret_cast<const char*>(values.data()), values.size() * 4);
    header[name] = {{"dtype", dtype}, {"shape", {values.size()}}, {"data_offsets", {begin, data.size()}}};
    return *this;
  }
  [[nodiscard]] std::vector<std::uint8_t> bytes() const {
    const std::string text = header.dump();
    std::string out(8, '\0');
    for (unsigned i = 0; i < 8; ++i) out[i] = static_cast<char>(text.size() >> (8 * i));
    out += text;
    out += data;
    return {out.begin(), out.end()};
  }
};

std::vector<float> range_of(std::uint32_t parameter, std::uint64_t begin, std::uint64_t count, unsigned kind = 0) {
  std::vector<float> values(count);
  for (std::uint64_t i = 0; i < count; ++i)
    values[i] = test::gradient_at(99'999 - kind, parameter, begin + i);  // kind 0: start_at()
  return values;
}

std::unique_ptr<BaselineLoader> loader_of(const JobPlanPtr& plan) {
  auto loader = BaselineLoader::create(plan);
  if (!loader) FAIL(loader.error().text());
  return std::move(*loader);
}

void add(BaselineLoader& loader, std::uint32_t number, const Chunk& chunk) {
  test::require_ok(loader.add_chunk(number, chunk.bytes()));
}

std::string refusal(BaselineLoader& loader, std::uint32_t number, const Chunk& chunk) {
  const std::size_t before = loader.chunks();
  const Status done = loader.add_chunk(number, chunk.bytes());
  REQUIRE(!done);
  CHECK(loader.chunks() == before);
  return std::string(error_name(done.error().code));
}

}  // namespace

TEST_CASE("ranges that cross shard cuts and chunks become shards, value by value") {
  const JobPlanPtr plan = test::plan_of(test::three_shards(test::adamw()));
  REQUIRE(plan->shards.shards().size() == 3);
  auto loader = loader_of(plan);
  const char* kinds[] = {"param", "exp_avg", "exp_avg_sq"};
  Chunk first("2", R"({"0": 7, "2": 9})");
  Chunk second("2");
  for (unsigned k = 0; k < 3; ++k) {
    // a: cut at 65536 by the shards, at 66000 by the chunks.
    first.tensor(std::string("0:0:") + kinds[k], range_of(0, 0, 66'000, k));
    second.tensor(std::string("0:66000:") + kinds[k], range_of(0, 66'000, 4000, k));
    second.tensor(std::string("2:0:") + kinds[k], range_of(2, 0, 66'000, k));
  }
  second.tensor("1:0:param", range_of(1, 0, 5));  // no optimizer state yet
  CHECK_FALSE(loader->complete());
  add(*loader, 1, second);
  CHECK(loader->total() == 2);
  CHECK_FALSE(loader->complete());
  add(*loader, 1, second);  // the same again
  CHECK(loader->chunks() == 1);
  add(*loader, 0, first);
  CHECK(loader->complete());
  auto shards = loader->finish();
  REQUIRE_MESSAGE(shards, shards.error().text());
  REQUIRE(shards->size() == 3);
  const std::uint64_t counters[] = {7, 0, 9};
  for (const auto& shard : *shards) {
    CHECK(shard->version() == 0);
    for (std::size_t i = 0; i < shard->range().pieces.size(); ++i) {
      const replica::Piece& piece = shard->range().pieces[i];
      CHECK(shard->piece_states()[i].counter == counters[piece.parameter]);
      CHECK(shard->piece_states()[i].present == (piece.parameter == 1 ? 0 : 3));
      for (unsigned k = 0; k < 3; ++k) {
        auto expected = range_of(piece.parameter, piece.begin, piece.count, k);
        if (piece.parameter == 1 && k > 0) std::fill(expected.begin(), expected.end(), 0.0F);
        const auto actual = shard->kind(k).subspan(piece.shard_offset, piece.count);
        CHECK(std::memcmp(actual.data(), expected.data(), piece.count * 4) == 0);
      }
    }
  }
}

TEST_CASE("a chunk number with other bytes, and counts that contradict, are refused") {
  auto loader = loader_of(test::plan_of(test::three_shards(test::sgd())));
  add(*loader, 0, Chunk("3").tensor("1:0:param", range_of(1, 0, 5)));
  CHECK(refusal(*loader, 0, Chunk("3").tensor("1:0:param", range_of(1, 1, 5))) == "SEQUENCE_CONFLICT");
  CHECK(refusal(*loader, 1, Chunk("4")) == "SAFETENSORS_MALFORMED");
  CHECK(refusal(*loader, 1, Chunk("")) == "SAFETENSORS_MALFORMED");
  CHECK(refusal(*loader, 1, Chunk("0")) == "SAFETENSORS_MALFORMED");
  CHECK(refusal(*loader, 1, Chunk("-3")) == "SAFETENSORS_MALFORMED");
  CHECK(refusal(*loader, 1, Chunk("3x")) == "SAFETENSORS_MALFORMED");
  CHECK(refusal(*loader, 3, Chunk("3")) == "SAFETENSORS_MALFORMED");  // numbers begin at 0
  // Other bytes for an element that is there.
  CHECK(refusal(*loader, 1, Chunk("3").tensor("1:0:param", range_of(0, 1, 5))) == "STATE_INCOMPLETE");
  CHECK(loader->total() == 3);
  auto unbounded = loader_of(test::plan_of(test::three_shards(test::sgd())));
  CHECK(refusal(*unbounded, 0, Chunk("1000001")) == "SAFETENSORS_MALFORMED");
}

TEST_CASE("a baseline with a hole is not one") {
  const JobPlanPtr plan = test::plan_of(test::three_shards(test::sgd()));
  auto loader = loader_of(plan);
  Chunk chunk("1");
  chunk.tensor("0:0:param", range_of(0, 0, 70'000)).tensor("2:0:param", range_of(2, 0, 66'000));
  SUBCASE("one element of a parameter") {
    chunk.tensor("1:0:param", range_of(1, 0, 4));
  }
  SUBCASE("a state in part") {
    chunk.tensor("1:0:param", range_of(1, 0, 5)).tensor("1:1:momentum_buffer", range_of(1, 1, 4));
  }
  add(*loader, 0, chunk);
  CHECK(loader->complete());
  const auto shards = loader->finish();
  REQUIRE(!shards);
  CHECK(shards.error().code == ErrorCode::kStateIncomplete);
}

TEST_CASE("names, kinds, types and ranges from outside are checked") {
  auto loader = loader_of(test::plan_of(test::three_shards(test::sgd())));
  for (const char* name : {"", ":", "::", "a", "0", "0:0", "0:0:", "0:0:Param", "0:0:exp_avg", "3:0:param",
                           "-1:0:param", "0:x:param", "0:0:param:x", " 0:0:param", "0:70000:param", "0:69999:param",
                           "99999999999999999999:0:param", "0:18446744073709551615:param"}) {
    CAPTURE(name);
    CHECK(refusal(*loader, 0, Chunk("1").tensor(name, {1, 2})) == "SAFETENSORS_MALFORMED");
  }
  CHECK(refusal(*loader, 0, Chunk("1").tensor("1:0:param", {1}, "I32")) == "SAFETENSORS_MALFORMED");
  for (const char* counters :
       {"7", "[1]", "{\"3\": 1}", "{\"a\": 1}", "{\"0\": -1}", "{\"0\": 1.5}", "{\"0\": 16777217}", "{"}) {
    CAPTURE(counters);
    CHECK_FALSE(loader->add_chunk(0, Chunk("1", counters).bytes()));
  }
  CHECK(loader->chunks() == 0);
}

TEST_CASE("bytes that are no chunk at all are refused") {
  auto loader = loader_of(test::plan_of(test::three_shards(test::sgd())));
  const auto whole = Chunk("1").tensor("1:0:param", range_of(1, 0, 5)).bytes();
  for (std::size_t cut = 0; cut < whole.size(); ++cut) CHECK_FALSE(loader->add_chunk(0, ByteSpan(whole).first(cut)));
  SeededRandom random(3);
  for (int i = 0; i < 2000; ++i) {
    auto bytes = whole;
    for (int k = 0; k < 3; ++k) bytes[random.below(bytes.size())] = static_cast<std::uint8_t>(random.next());
    (void)loader->add_chunk(static_cast<std::uint32_t>(1 + random.below(5)), bytes);  // any answer, no crash
  }
  CHECK(loader->chunks() <= 5);
}

TEST_CASE("a baseline that the node's memory cannot hold is refused before anything is allocated") {
  const JobPlanPtr plan = test::plan_of(test::three_shards(test::sgd()));
  std::uint64_t whole = 0;  // parameters and momentum
  for (const replica::ShardRange& range : plan->shards.shards()) whole += range.elements * 4 * 2;
  const auto tight = std::make_shared<MemoryLedger>(whole - 1);
  const auto refused = BaselineLoader::create(plan, tight);
  REQUIRE_FALSE(refused);
  CHECK(refused.error().code == ErrorCode::kMemoryExhausted);
  CHECK(tight->total().in_use_bytes == 0);
  const auto enough = std::make_shared<MemoryLedger>(whole);
  {
    const auto loader = BaselineLoader::create(plan, enough);
    REQUIRE(loader);
    CHECK(enough->usage(MemoryAccount::kShards).in_use_bytes == whole);
  }
  CHECK(enough->total().in_use_bytes == 0);
}

}  // namespace gradtap::actors
