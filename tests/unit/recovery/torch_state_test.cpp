#include "recovery/torch_state.h"

#include <fstream>

#include <doctest/doctest.h>

#include "recovery/side_value.h"
#include "recovery/state_reader.h"
#include "recovery/store_source.h"
#include "tests/unit/recovery/stored_job.h"
#include "tests/unit/recovery/torch_tool.h"

namespace gradtap::recovery {
namespace {

using test::json;
using test::StoredJob;

std::string bits(double value) {
  return test::f64(value);
}

// What the installed torch computes without FMA: since 2.1 the first moment is a lerp.
replica::Recipe recipe_here() {
  const std::string& version = test::torch_version();
  const int major = std::stoi(version);
  const int minor = std::stoi(version.substr(version.find('.') + 1));
  replica::Recipe recipe;
  recipe.lerp = major > 2 || (major == 2 && minor >= 1);
  return recipe;
}

struct Case {
  std::string optimizer;
  std::vector<std::string> kinds;
  std::vector<std::vector<json>> hypers;   // by step, by group: as torch spells them
  std::function<json(const json&)> spell;  // as the side channel spells them
  bool with_optimizer = true;
};

// conv is channels-last and crosses a shard cut; weight is transposed and has a second name. The optimizer's order is
// not the order of attach, and it holds a parameter that is not trained.
json attach_of(const Case& c) {
  json conv = test::parameter("conv", {70, 40, 5, 5}, {0, 2, 3, 1});
  json bias = test::parameter("bias", {70});
  json weight = test::parameter("weight", {30, 20}, {1, 0});
  json scalar = test::parameter("scalar", {});
  conv["group_index"] = 2;
  weight["group_index"] = 0;
  weight["aliases"] = {"tied"};
  scalar["group"] = bias["group"] = 1;
  scalar["group_index"] = 0;
  bias["group_index"] = 1;
  json groups = json::array();
  for (const json& hyper : c.hypers[0]) groups.push_back(c.spell(hyper));
  json body = test::attach({conv, bias, weight, scalar},
                           {{"class", c.optimizer}, {"kinds", c.kinds}, {"groups", groups}, {"group_sizes", {3, 2}}});
  body["torch"] = test::torch_version();
  return body;
}

json case_of(const Case& c, const json& attach, const std::string& root) {
  json hypers = json::array();
  for (const auto& step : c.hypers) hypers.push_back(step);
  return {{"parameters", attach["parameters"]},
          {"class", c.optimizer},
          {"groups", {{"weight", nullptr, "conv"}, {"scalar", "bias"}}},
          {"frozen", 1},
          {"hypers", hypers},
          {"optimizer", c.with_optimizer},
          {"gradtap",
           {{"format", 1},
            {"job", "job"},
            {"lineage", 1},
            {"step", c.hypers.size()},
            {"root", root},
            {"torch", test::torch_version()},
            {"optimizer_class", c.optimizer},
            {"contents", c.with_optimizer ? "full" : "weights-only"},
            {"groups_of", "step"},
            {"left_out", json::array()}}}};
}

void check(const Case& c) {
  StoredJob job(attach_of(c), 65'536, recipe_here());
  const auto shards = static_cast<ShardId>(job.shards.size());
  REQUIRE(shards == 2);
  for (ShardId id = 0; id < shards; ++id) job.base(id);
  const StepNumber last = c.hypers.size();
  for (StepNumber step = 1; step <= last; ++step) {
    job.groups = json::array();
    for (const json& hyper : c.hypers[step - 1]) job.groups.push_back(c.spell(hyper));
    job.store_message(step);
    for (ShardId id = 0; id < shards; ++id) job.step(id, true, step == 2);
  }
  auto source = std::make_shared<const StoreSource>(job.store, job.plan->job, job.plan->lineage);
  auto stream = prepare_state(std::move(source), job.plan, last, {c.with_optimizer, StateFormat::kTorch});
  REQUIRE_MESSAGE(stream, stream.error().text());
  std::string out;
  REQUIRE((*stream)([&](const char* data, std::size_t count) {
    out.append(data, count);
    return true;
  }));
  const std::string root = to_hex(test::sha_of_all({job.digests[0][last], job.digests[1][last]}));
  stream = fail(ErrorCode::kNodeBusy, "");
  job.store.reset();  // no store is open while another program is started
  test::write_file(job.dir.path + "/state.pt", out);
  test::write_file(job.dir.path + "/case.json", case_of(c, job.body, root).dump());
  const test::TorchAnswer answer =
      test::ask_torch("state " + job.dir.path + "/state.pt " + job.dir.path + "/case.json");
  CHECK_MESSAGE(answer.status == 0, answer.text);
  CHECK(answer.text == "equal\n");
}

json spell_sgd(const json& hyper) {
  json group = test::sgd_group(hyper.value("lr", 0.5), hyper.value("momentum", 0.0));
  group["weight_decay"] = bits(hyper.value("weight_decay", 0.0));
  group["nesterov"] = hyper.value("nesterov", false) ? "b:1" : "b:0";
  return group;
}

json spell_adam(const json& hyper) {
  json group = test::adam_group(0.5);
  if (hyper["lr"].is_string())
    group["lr"] = fmt::format("f32t:{:08x}", std::bit_cast<std::uint32_t>(std::stof(hyper["lr"].get<std::string>())));
  else
    group["lr"] = bits(hyper["lr"].get<double>());
  if (hyper.contains("betas")) {
    group["beta1"] = bits(hyper["betas"][0].get<double>());
    group["beta2"] = bits(hyper["betas"][1].get<double>());
  }
  group["weight_decay"] = bits(hyper.value("weight_decay", 0.0));
  group["amsgrad"] = hyper.value("amsgrad", false) ? "b:1" : "b:0";
  group["maximize"] = hyper.value("maximize", false) ? "b:1" : "b:0";
  return group;
}

const std::vector<std::string> kAdamKinds = {"exp_avg", "exp_avg_sq"};

}  // namespace

TEST_CASE("torch goes on from the file as if nothing had happened: AdamW, two groups, a schedule (C12)") {
  if (test::torch_version().empty()) return;
  Case c{"AdamW", kAdamKinds, {}, spell_adam, true};
  for (const double lr : {0.01, 0.007, 0.003})
    c.hypers.push_back(
        {{{"lr", lr}, {"weight_decay", 0.1}}, {{"lr", lr / 3}, {"weight_decay", 0.0}, {"betas", {0.8, 0.99}}}});
  check(c);
}

TEST_CASE("the same with Adam: amsgrad in one group, a tensor as learning rate in the other (C14)") {
  if (test::torch_version().empty()) return;
  Case c{"Adam", {"exp_avg", "exp_avg_sq", "max_exp_avg_sq"}, {}, spell_adam, true};
  for (int step = 0; step < 3; ++step)
    c.hypers.push_back({{{"lr", 0.01}, {"amsgrad", true}, {"weight_decay", 0.02}},
                        {{"lr", "0.125"}, {"weight_decay", 0.0}, {"maximize", true}}});
  check(c);
}

TEST_CASE("the same with SGD: momentum in one group only") {
  if (test::torch_version().empty()) return;
  Case c{"SGD", {"momentum_buffer"}, {}, spell_sgd, true};
  for (int step = 0; step < 3; ++step)
    c.hypers.push_back({{{"lr", 0.1}, {"momentum", 0.9}, {"nesterov", true}}, {{"lr", 0.2}, {"weight_decay", 0.01}}});
  check(c);
}

TEST_CASE("without the optimizer there is the model only (E5)") {
  if (test::torch_version().empty()) return;
  Case c{"AdamW",
         kAdamKinds,
         {{{{"lr", 0.01}, {"weight_decay", 0.0}}, {{"lr", 0.01}, {"weight_decay", 0.0}}}},
         spell_adam,
         false};
  check(c);
}

TEST_CASE("with the side state: groups as the next step uses them, buffers and frozen parameters") {
  if (test::torch_version().empty()) return;
  Case c{"AdamW", kAdamKinds, {{{{"lr", 0.01}}, {{"lr", 0.01}}}}, spell_adam, true};
  json body = attach_of(c);
  body["buffers"] = {{{"name", "temp"}, {"shape", {2}}, {"dtype", "float32"}, {"numel", 2}, {"persistent", false}},
                     {{"name", "mask"}, {"shape", {2}}, {"dtype", "bool"}, {"numel", 2}}};
  StoredJob job(body, 65'536, recipe_here());
  for (ShardId id = 0; id < 2; ++id) job.base(id);
  const test::TorchAnswer encoded = test::ask_torch("encode " + job.dir.path);
  REQUIRE_MESSAGE(encoded.status == 0, encoded.text);
  StateChoice choice{true, StateFormat::kTorch, {}};
  for (const char* const name : {"optimizer", "buffers", "frozen"}) {
    std::ifstream in(job.dir.path + "/" + name, std::ios::binary);
    choice.side[name] = {std::istreambuf_iterator<char>(in), {}};
    REQUIRE(choice.side[name].size() > 4);
  }
  const auto write = [&](const std::string& path) {
    auto source = std::make_shared<const StoreSource>(job.store, job.plan->job, job.plan->lineage);
    const auto stream = prepare_state(std::move(source), job.plan, 0, choice);
    REQUIRE(stream);
    std::string out;
    REQUIRE((*stream)([&](const char* data, std::size_t count) {
      out.append(data, count);
      return true;
    }));
    test::write_file(path, out);
    return out;
  };
  write(job.dir.path + "/state.pt");
  const test::TorchAnswer answer = test::ask_torch("side " + job.dir.path + "/state.pt");
  CHECK_MESSAGE(answer.status == 0, answer.text);
  // Bytes that are no such encoding cost only what they would have said.
  choice.side["optimizer"][0] ^= 1;
  CHECK(write(job.dir.path + "/state.pt").find("optimizer: not a value in GTS1") != std::string::npos);
}

TEST_CASE("a value of the side state is parsed whole or refused") {
  const auto bytes = [](std::string_view text) {
    return ByteSpan(reinterpret_cast<const std::uint8_t*>(text.data()), text.size());
  };
  using namespace std::string_view_literals;
  const auto parsed =
      parse_side_value(bytes("GTS1m\2\0\0\0\0\0\0\0s\1\0\0\0\0\0\0\0aT"
                             "s\1\0\0\0\0\0\0\0bi\xff\xff\xff\xff\xff\xff\xff\xff"sv));
  REQUIRE(parsed);
  CHECK(parsed->find("a")->integer == 1);
  CHECK(parsed->find("b")->integer == -1);
  CHECK(parsed->find("c") == nullptr);
  for (const std::string_view wrong :
       {""sv, "GTS1"sv, "GTS2N"sv, "GTS1NN"sv, "GTS1?"sv, "GTS1i\0\0"sv, "GTS1s\xff\xff\xff\xff\xff\xff\xff\xff"sv,
        "GTS1l\2\0\0\0\0\0\0\0N"sv, "GTS1m\1\0\0\0\0\0\0\0N"sv,
        "GTS1x\7\0\0\0\0\0\0\0float32\1\2\0\0\0\0\0\0\0\0\0\0\0"sv, "GTS1x\1\0\0\0\0\0\0\0f\0"sv})
    CHECK_FALSE(parse_side_value(bytes(wrong)));
  std::string deep = "GTS1";
  for (int i = 0; i < 1000; ++i) deep += "l\1\0\0\0\0\0\0\0"sv;
  CHECK_FALSE(parse_side_value(bytes(deep + "N")));
}

}  // namespace gradtap::recovery
