#include "recovery/state_reader.h"

#include <cstring>

#include <doctest/doctest.h>

#include "tests/unit/recovery/stored_job.h"

namespace gradtap::recovery {
namespace {

using test::json;
using test::StoredJob;

struct Parsed {
  json header;
  std::string data;
  [[nodiscard]] std::vector<float> tensor(const std::string& name) const {
    const auto begin = header.at(name)["data_offsets"][0].get<std::size_t>();
    const auto end = header.at(name)["data_offsets"][1].get<std::size_t>();
    REQUIRE(end <= data.size());
    std::vector<float> values((end - begin) / 4);
    std::memcpy(values.data(), data.data() + begin, end - begin);
    return values;
  }
};

// Read by hand: 8 bytes of length, the header, the data.
Parsed parse(const std::string& bytes) {
  REQUIRE(bytes.size() > 8);
  std::uint64_t length = 0;
  std::memcpy(&length, bytes.data(), 8);
  REQUIRE(length <= bytes.size() - 8);
  Parsed parsed{json::parse(bytes.substr(8, length)), bytes.substr(8 + length)};
  std::size_t most = 0;
  for (const auto& [name, tensor] : parsed.header.items())
    if (name != "__metadata__") {
      CHECK(tensor["dtype"] == "F32");
      most = std::max(most, tensor["data_offsets"][1].get<std::size_t>());
    }
  CHECK(most == parsed.data.size());
  return parsed;
}

std::string stream(const StoredJob& job, StepNumber step, bool optimizer) {
  auto run = prepare_state(job.store, "job", step, optimizer);
  if (!run) FAIL(run.error().text());
  std::string out;
  REQUIRE((*run)([&](const char* data, std::size_t count) {
    CHECK(count <= std::size_t{1} << 20);
    out.append(data, count);
    return true;
  }));
  return out;
}

// A parameter of the live shards at a step, put together piece by piece, in memory order.
std::vector<float> memory_of(const StoredJob& job, StepNumber step, std::uint32_t parameter, std::size_t kind) {
  std::vector<float> values(job.plan->schema.parameters[parameter].numel);
  for (const auto& range : job.plan->shards.shards())
    for (const auto& piece : range.pieces)
      if (piece.parameter == parameter)
        std::copy_n(job.arrays[range.id].at(step)[kind].begin() + static_cast<std::ptrdiff_t>(piece.shard_offset),
                    piece.count, values.begin() + static_cast<std::ptrdiff_t>(piece.begin));
  return values;
}

// conv is channels-last and crosses a shard cut; weight is transposed.
StoredJob conv_job() {
  return StoredJob(test::attach({test::parameter("conv", {70, 40, 5, 5}, {0, 2, 3, 1}), test::parameter("bias", {70}),
                                 test::parameter("weight", {300, 200}, {1, 0}), test::parameter("scalar", {})},
                                test::adamw()));
}

}  // namespace

TEST_CASE("the stream is the shards' state, by name, in row-major order") {
  StoredJob job = conv_job();
  const std::size_t shards = job.shards.size();
  REQUIRE(shards == 2);
  for (ShardId id = 0; id < shards; ++id) job.base(id);
  for (StepNumber step = 1; step <= 3; ++step) {
    job.store_message(step);
    for (ShardId id = 0; id < shards; ++id) job.step(id, true, step == 2);
  }
  for (StepNumber step = 0; step <= 3; ++step) {
    const Parsed parsed = parse(stream(job, step, true));
    for (std::size_t kind = 0; kind < 3; ++kind) {
      const std::string suffix = kind == 0 ? "" : kind == 1 ? "#exp_avg" : "#exp_avg_sq";
      if (step == 0 && kind > 0) {  // absent, not zero
        CHECK_FALSE(parsed.header.contains("conv" + suffix));
        continue;
      }
      const auto memory = memory_of(job, step, 0, kind);
      std::vector<float> expected(70'000);
      for (std::size_t n = 0; n < 70; ++n)
        for (std::size_t c = 0; c < 40; ++c)
          for (std::size_t h = 0; h < 5; ++h)
            for (std::size_t w = 0; w < 5; ++w)
              expected[((n * 40 + c) * 5 + h) * 5 + w] = memory[((n * 5 + h) * 5 + w) * 40 + c];
      CHECK(parsed.tensor("conv" + suffix) == expected);
      CHECK(parsed.header["conv" + suffix]["shape"] == json({70, 40, 5, 5}));
      const auto weight = memory_of(job, step, 2, kind);
      std::vector<float> transposed(60'000);
      for (std::size_t r = 0; r < 300; ++r)
        for (std::size_t c = 0; c < 200; ++c) transposed[r * 200 + c] = weight[c * 300 + r];
      CHECK(parsed.tensor("weight" + suffix) == transposed);
      CHECK(parsed.tensor("bias" + suffix) == memory_of(job, step, 1, kind));
      CHECK(parsed.tensor("scalar" + suffix) == memory_of(job, step, 3, kind));
    }
    const json& metadata = parsed.header["__metadata__"];
    CHECK(metadata["step"] == std::to_string(step));
    CHECK(metadata["lineage"] == "1");
    CHECK(metadata["contents"] == "full");
    CHECK(metadata["root"] == to_hex(test::sha_of_all({job.digests[0][step], job.digests[1][step]})));
    const json counters = json::parse(metadata["counters"].get<std::string>());
    if (step == 0)
      CHECK(counters.empty());
    else
      CHECK(counters == json{{"conv", step}, {"bias", step}, {"weight", step}, {"scalar", step}});
  }
  const Parsed bare = parse(stream(job, 3, false));
  CHECK(bare.header["__metadata__"]["contents"] == "weights-only");
  CHECK(bare.header.size() == 5);
  CHECK_FALSE(bare.header.contains("bias#exp_avg"));
}

TEST_CASE("what is not durable everywhere is not given") {
  StoredJob job = conv_job();
  const auto code = [&](StepNumber step) {
    const auto run = prepare_state(job.store, "job", step, true);
    return run ? std::string("given") : std::string(error_name(run.error().code));
  };
  CHECK(code(0) == "STEP_UNAVAILABLE");
  job.base(0);
  CHECK(code(0) == "STEP_UNAVAILABLE");
  job.base(1);
  CHECK(code(0) == "given");
  job.store_message(1);
  job.step(0);
  CHECK(code(1) == "STEP_UNAVAILABLE");
  job.step(1);
  CHECK(code(1) == "given");
  CHECK(code(2) == "STEP_UNAVAILABLE");
  const auto unknown = prepare_state(job.store, "nobody", 0, true);
  REQUIRE(!unknown);
  CHECK(unknown.error().code == ErrorCode::kStepUnavailable);
}

TEST_CASE("a reader that goes away ends the stream") {
  StoredJob job = conv_job();
  for (ShardId id = 0; id < 2; ++id) job.base(id);
  auto run = prepare_state(job.store, "job", 0, true);
  REQUIRE(run);
  std::size_t calls = 0;
  CHECK_FALSE((*run)([&](const char*, std::size_t) { return ++calls < 2; }));
  CHECK(calls == 2);
}

TEST_CASE("an alias is named, not written twice (C21)") {
  json tied = test::parameter("head", {4, 3});
  tied["alias_of"] = "embed";
  StoredJob job(test::attach({test::parameter("embed", {4, 3}), tied}, test::sgd()));
  job.base(0);
  const Parsed parsed = parse(stream(job, 0, true));
  CHECK(parsed.header.contains("embed"));
  CHECK_FALSE(parsed.header.contains("head"));
  CHECK(json::parse(parsed.header["__metadata__"]["aliases"].get<std::string>()) == json{{"head", "embed"}});
}

}  // namespace gradtap::recovery
