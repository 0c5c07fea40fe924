#include "replica/step_message.h"

#include <doctest/doctest.h>

#include "replica/contract.h"
#include "replica/schema_json.h"

namespace gradtap::replica {
namespace {

constexpr const char* kAttach = R"({
  "parameters": [
    {"name": "w", "shape": [2, 3], "order": [1, 0], "dtype": "float32", "numel": 6, "requires_grad": true, "group": 0, "alias_of": null},
    {"name": "scalar", "shape": [], "order": [], "dtype": "float32", "numel": 1, "requires_grad": true, "group": 1, "alias_of": null},
    {"name": "empty", "shape": [0, 4], "order": [0, 1], "dtype": "float32", "numel": 0, "requires_grad": true, "group": 0, "alias_of": null},
    {"name": "tied", "shape": [3, 2], "order": [0, 1], "dtype": "float32", "numel": 6, "requires_grad": true, "group": 0, "alias_of": "w"},
    {"name": "free", "shape": [4], "order": [0], "dtype": "float32", "numel": 4, "requires_grad": true, "group": -1, "alias_of": null}],
  "buffers": [{"name": "mean", "shape": [3], "dtype": "float32", "numel": 3}],
  "optimizer": {"class": "AdamW", "kinds": ["exp_avg", "exp_avg_sq"], "groups": [
    {"lr": "f64:3f50624dd2f1a9fc", "beta1": "f64:3feccccccccccccd", "beta2": "f64:3fefae147ae147ae", "eps": "f64:3e45798ee2308c3a",
     "weight_decay": "i:0", "amsgrad": "b:0", "maximize": "b:0", "fused": "none", "foreach": "b:0"},
    {"lr": "f32t:3a83126f", "beta1": "f64:3feccccccccccccd", "beta2": "f64:3fefae147ae147ae", "eps": "f64:3e45798ee2308c3a",
     "weight_decay": "f64:3fb999999999999a", "amsgrad": "b:0", "maximize": "b:1", "fused": "b:0", "foreach": "none"}]},
  "inventory": [{"name": "model.w", "class": "replayed", "type": "Parameter"},
                {"name": "rng", "class": "side-channel", "type": "bytes"},
                {"name": "dataloader", "class": "unknown", "type": "X"}, {"name": "odd", "class": "teleported"}]})";

Json attach() {
  return *parse_json_object(kAttach, "attach");
}

Json step() {
  Json message = *parse_json_object(R"({"kind": "step", "seq": 7, "rank": 0, "step": 5, "interval": [10, 12],
    "micro_steps": 1, "synced_backwards": 1, "verdict": "applied",
    "transforms": [{"op": "mul", "bits": "f32:3f000000", "scope": "all"},
                   {"op": "clamp", "min": "f32:bf800000", "max": "none", "scope": [4, 1]}],
    "param_state": "0401", "witness": {"1": ["00000001", "3f800000", "0", "0", "0", "0", "0", "0"]},
    "buffers": {}, "blobs": {}, "counters": {"dropped": 2, "queue_bytes": 0, "commit_us": 120}})",
                                    "step");
  for (std::size_t j = 2; j < 8; ++j) message["witness"]["1"][j] = "ffffffff";
  message["layout_id"] = std::string(64, 'a');
  message["groups"] = attach()["optimizer"]["groups"];
  return message;
}

}  // namespace

TEST_CASE("an attach body becomes a schema (B7)") {
  const auto schema = parse_schema(attach());
  REQUIRE_MESSAGE(schema, schema.error().text());
  CHECK(schema->parameters.size() == 5);
  CHECK(schema->elements() == 6 + 1 + 4);
  CHECK(schema->parameters[3].alias_of == 0U);
  CHECK_FALSE(schema->parameters[3].has_gradient());
  CHECK_FALSE(schema->parameters[2].owns_elements());
  CHECK(schema->parameters[4].group == -1);
  CHECK(schema->buffers.at(0).numel == 3);
  CHECK(schema->optimizer.type == OptimizerClass::kAdamW);
  CHECK(schema->optimizer.groups[0].lr.value == 0.001);
  CHECK_FALSE(schema->optimizer.groups[0].lr.f32_tensor);
  CHECK(schema->optimizer.groups[1].lr.f32_tensor);
  CHECK(schema->optimizer.groups[1].lr.value == static_cast<double>(0.001F));
  CHECK(schema->optimizer.groups[1].maximize);
  CHECK(schema->optimizer.groups[0].fused == std::nullopt);
  CHECK(schema->optimizer.groups[0].foreach == false);

  const auto inventory = parse_inventory(attach());
  REQUIRE(inventory);
  CHECK(unknown_leaves(*inventory) == std::vector<std::string>{"dataloader", "odd"});
  CHECK((*inventory)[1].state_class == StateClass::kSideChannel);
}

TEST_CASE("an attach body that does not fit is refused with the field's name") {
  struct Wrong {
    const char* patch;  // JSON patch
    const char* where;
    ErrorCode code;
  };
  const Wrong wrong[] = {
      {R"([{"op": "remove", "path": "/parameters/1/numel"}])", "parameters[1].numel", ErrorCode::kSchemaInvalid},
      {R"([{"op": "replace", "path": "/parameters/0/numel", "value": 7}])", "parameters[0].numel",
       ErrorCode::kSchemaInvalid},
      {R"([{"op": "replace", "path": "/parameters/0/numel", "value": -6}])", "parameters[0].numel",
       ErrorCode::kSchemaInvalid},
      {R"([{"op": "replace", "path": "/parameters/0/order", "value": [0, 0]}])", "parameters[0].order",
       ErrorCode::kSchemaInvalid},
      {R"([{"op": "replace", "path": "/parameters/0/group", "value": 2}])", "parameters[0].group",
       ErrorCode::kSchemaInvalid},
      {R"([{"op": "replace", "path": "/parameters/0/group", "value": -2}])", "parameters[0].group",
       ErrorCode::kSchemaInvalid},
      {R"([{"op": "replace", "path": "/parameters/1/name", "value": "w"}])", "parameters[1].name",
       ErrorCode::kSchemaInvalid},
      {R"([{"op": "replace", "path": "/parameters/1/name", "value": ""}])", "parameters[1].name",
       ErrorCode::kSchemaInvalid},
      {R"([{"op": "replace", "path": "/parameters/0/shape", "value": [4294967296, 4294967296]}])",
       "parameters[0].shape", ErrorCode::kSchemaInvalid},
      {R"([{"op": "replace", "path": "/parameters/0/dtype", "value": "bfloat16"}])", "parameters[0].dtype",
       ErrorCode::kRecipeUnsupported},
      {R"([{"op": "replace", "path": "/parameters/3/alias_of", "value": "later"}])", "parameters[3].alias_of",
       ErrorCode::kSchemaInvalid},
      {R"([{"op": "replace", "path": "/parameters/3/alias_of", "value": 4}])", "parameters[3].alias_of",
       ErrorCode::kSchemaInvalid},
      {R"([{"op": "replace", "path": "/parameters", "value": []}])", "parameters", ErrorCode::kSchemaInvalid},
      {R"([{"op": "replace", "path": "/parameters/0", "value": 3}])", "parameters[0]", ErrorCode::kSchemaInvalid},
      {R"([{"op": "replace", "path": "/optimizer/class", "value": "Lion"}])", "optimizer.class",
       ErrorCode::kRecipeUnsupported},
      {R"([{"op": "replace", "path": "/optimizer/kinds", "value": ["exp_avg"]}])", "optimizer.kinds",
       ErrorCode::kRecipeUnsupported},
      {R"([{"op": "replace", "path": "/optimizer/kinds", "value": ["row_factor"]}])", "optimizer.kinds",
       ErrorCode::kRecipeUnsupported},
      {R"([{"op": "replace", "path": "/optimizer/groups", "value": []}])", "optimizer.groups",
       ErrorCode::kSchemaInvalid},
      {R"([{"op": "replace", "path": "/optimizer/groups/1/fused", "value": "b:1"}])", "optimizer.groups[1].fused",
       ErrorCode::kRecipeUnsupported},
      {R"([{"op": "replace", "path": "/optimizer/groups/1/amsgrad", "value": "b:1"}])", "optimizer.groups[1].amsgrad",
       ErrorCode::kRecipeUnsupported},
      {R"([{"op": "replace", "path": "/optimizer/groups/1/lr", "value": 0.001}])", "optimizer.groups[1].lr",
       ErrorCode::kSchemaInvalid},
      {R"([{"op": "replace", "path": "/optimizer/groups/1/lr", "value": "f64:7ff0000000000000"}])",
       "optimizer.groups[1].lr", ErrorCode::kRecipeUnsupported},
      {R"([{"op": "replace", "path": "/optimizer/groups/0/beta1", "value": "f32t:3f800000"}])",
       "optimizer.groups[0].beta1", ErrorCode::kRecipeUnsupported},
      {R"([{"op": "replace", "path": "/optimizer/groups/0/maximize", "value": "none"}])",
       "optimizer.groups[0].maximize", ErrorCode::kRecipeUnsupported},
      {R"([{"op": "remove", "path": "/optimizer/groups/0/eps"}])", "optimizer.groups[0].eps",
       ErrorCode::kSchemaInvalid},
  };
  for (const Wrong& w : wrong) {
    CAPTURE(w.patch);
    const auto schema = parse_schema(attach().patch(Json::parse(w.patch)));
    REQUIRE(!schema);
    CHECK(schema.error().where == w.where);
    CHECK(schema.error().code == w.code);
  }
  CHECK_FALSE(parse_json_object("[1]", "x"));
  CHECK_FALSE(parse_json_object("{\"a\": ", "x"));
  CHECK_FALSE(parse_json_object("\"\xff\"", "x"));
}

TEST_CASE("a step message is read whole") {
  const auto schema = parse_schema(attach());
  REQUIRE(schema);
  const auto message = parse_step_message(step(), *schema);
  REQUIRE_MESSAGE(message, message.error().text());
  CHECK(message->seq == 7);
  CHECK(message->step == 5);
  CHECK(message->scalars.step == 5);
  CHECK(message->interval_begin == 10);
  CHECK(message->interval_end == 12);
  CHECK(message->counters.dropped == 2);
  CHECK(message->layout_id[0] == 0xaa);
  CHECK(message->scalars.groups.size() == 2);
  // 0x04: parameter 1 is none; 0x01: parameter 4 is none.
  using enum ParamState;
  CHECK(message->scalars.param_state == std::vector<ParamState>{kWire, kNone, kWire, kWire, kNone});
  CHECK(message->scalars.transforms.apply(-4, 0) == -2);
  CHECK(message->scalars.transforms.apply(-4, 1) == -1);
  CHECK(message->scalars.transforms.apply(1000, 4) == 500);
  REQUIRE(message->witness.size() == 1);
  CHECK(message->witness[0].bucket == 1);
  CHECK(message->witness[0].bits[0] == 1);
  CHECK(message->witness[0].bits[1] == 0x3f800000);

  const Json other = *parse_json_object(
      R"({"kind": "step", "seq": 3, "rank": 2, "step": 5, "interval": [10, 12], "blobs": {}, "counters": {}})", "step");
  const auto small = parse_step_message(other, *schema);
  REQUIRE_MESSAGE(small, small.error().text());
  CHECK(small->rank == 2);
}

TEST_CASE("a step message that does not fit is refused with the field's name") {
  const auto schema = parse_schema(attach());
  REQUIRE(schema);
  const std::pair<const char*, const char*> wrong[] = {
      {R"([{"op": "remove", "path": "/seq"}])", "seq"},
      {R"([{"op": "replace", "path": "/kind", "value": "layout"}])", "kind"},
      {R"([{"op": "replace", "path": "/step", "value": 0}])", "step"},
      {R"([{"op": "replace", "path": "/step", "value": 1.5}])", "step"},
      {R"([{"op": "replace", "path": "/step", "value": 18446744073709551615}])", "step"},
      {R"([{"op": "replace", "path": "/interval", "value": [12, 10]}])", "interval"},
      {R"([{"op": "replace", "path": "/interval", "value": [12]}])", "interval"},
      {R"([{"op": "replace", "path": "/layout_id", "value": "abc"}])", "layout_id"},
      {R"([{"op": "replace", "path": "/verdict", "value": "maybe"}])", "verdict"},
      {R"([{"op": "remove", "path": "/groups/1"}])", "groups"},
      {R"([{"op": "replace", "path": "/groups/0/lr", "value": "f64:00"}])", "groups[0].lr"},
      {R"([{"op": "replace", "path": "/groups/0/fused", "value": "b:1"}])", "groups[0].fused"},
      {R"([{"op": "replace", "path": "/transforms/0/op", "value": "round"}])", "transforms[0].op"},
      {R"([{"op": "replace", "path": "/transforms/0/bits", "value": "f64:3f50624dd2f1a9fc"}])", "transforms[0].bits"},
      {R"([{"op": "replace", "path": "/transforms/1/scope", "value": [5]}])", "transforms[1].scope"},
      {R"([{"op": "replace", "path": "/transforms/1/scope", "value": [1, 1]}])", "transforms[1].scope"},
      {R"([{"op": "replace", "path": "/transforms/1/scope", "value": "some"}])", "transforms[1].scope"},
      {R"([{"op": "replace", "path": "/transforms/1/min", "value": "f32:7fc00000"}])", "transforms[1]"},
      {R"([{"op": "replace", "path": "/param_state", "value": "04"}])", "param_state"},
      {R"([{"op": "replace", "path": "/param_state", "value": "0c01"}])", "param_state"},
      {R"([{"op": "replace", "path": "/param_state", "value": "0005"}])", "param_state"},
      {R"([{"op": "replace", "path": "/witness", "value": {"01": []}}])", "witness"},
      {R"([{"op": "replace", "path": "/witness", "value": {"1": ["00000000"]}}])", "witness.1"},
      {R"([{"op": "replace", "path": "/counters/dropped", "value": -1}])", "counters.dropped"},
  };
  for (const auto& [patch, where] : wrong) {
    CAPTURE(patch);
    const auto message = parse_step_message(step().patch(Json::parse(patch)), *schema);
    REQUIRE(!message);
    CHECK(message.error().where == where);
  }
}

}  // namespace gradtap::replica
