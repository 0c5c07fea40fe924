#include "replica/step_message.h"

#include <algorithm>
#include <limits>

#include <fmt/format.h>

#include "common/bytes.h"
#include "common/ids.h"
#include "common/number_text.h"
#include "replica/number_bits.h"
#include "replica/schema_json.h"

namespace gradtap::replica {
namespace {

constexpr std::uint64_t kMaxInteger = std::numeric_limits<std::int64_t>::max();
constexpr std::size_t kMaxTransforms = 64;
constexpr std::size_t kMaxWitnessBuckets = 1U << 16;

Result<float> bits_field(const Json& object, const char* name, const std::string& where) {
  GRADTAP_LET(text, json_text(object, name, where));
  GRADTAP_LET(number, parse_number(text, fmt::format("{}.{}", where, name)));
  if (number.kind != Number::Kind::kF32)
    return fail(ErrorCode::kTransformInvalid, "a transform's argument is not a float32",
                fmt::format("{}.{}", where, name), "f32:<8 hex>", print_number(number));
  return number.f32;
}

// A bound of clamp may be missing or "none".
Result<float> bound_field(const Json& object, const char* name, const std::string& where, float absent) {
  const auto found = object.find(name);
  if (found == object.end() || found->is_null() || *found == "none") return absent;
  return bits_field(object, name, where);
}

Status parse_scope(const Json& object, const std::string& where, std::size_t parameters, Transform& transform) {
  GRADTAP_LET(scope, json_field(object, "scope", where));
  transform.all = *scope == "all";
  if (transform.all) return {};
  if (!scope->is_array() || scope->size() > parameters)
    return json_wrong(where + ".scope", "\"all\" or parameter indices", *scope);
  for (const Json& index_json : *scope) {
    GRADTAP_LET(index, json_uint_value(index_json, where + ".scope", parameters - 1));
    transform.parameters.push_back(static_cast<std::uint32_t>(index));
  }
  std::sort(transform.parameters.begin(), transform.parameters.end());
  return {};
}

Result<std::vector<WitnessBucket>> parse_witness(const Json& message) {
  GRADTAP_LET(object, json_object(message, "witness", ""));
  if (object->size() > kMaxWitnessBuckets)
    return fail(ErrorCode::kSchemaInvalid, "a witness has too many buckets", "witness",
                fmt::format("at most {}", kMaxWitnessBuckets));
  std::vector<WitnessBucket> witness;
  for (const auto& [key, values] : object->items()) {
    WitnessBucket bucket;
    const auto index = parse_integer<decltype(bucket.bucket)>(key);
    if (!index)
      return fail(ErrorCode::kSchemaInvalid, "a witness key is not a bucket's index", "witness", "a decimal integer",
                  key.substr(0, 32));
    bucket.bucket = *index;
    const std::string where = fmt::format("witness.{}", key);
    if (!values.is_array() || values.size() != kWitnessPositions) return json_wrong(where, "8 values", values);
    for (std::size_t j = 0; j < kWitnessPositions; ++j) {
      std::uint8_t bytes[4];
      if (!values[j].is_string() || !from_hex(values[j].get_ref<const std::string&>(), bytes, sizeof bytes))
        return json_wrong(where, "8 hexadecimal digits", values[j]);
      bucket.bits[j] = load_be<std::uint32_t>(bytes);
    }
    witness.push_back(bucket);
  }
  std::sort(witness.begin(), witness.end(),
            [](const WitnessBucket& a, const WitnessBucket& b) { return a.bucket < b.bucket; });
  return witness;
}

Result<Verdict> parse_verdict(const Json& message) {
  GRADTAP_LET(text, json_text(message, "verdict", ""));
  if (text == "applied") return Verdict::kApplied;
  if (text == "skipped") return Verdict::kSkipped;
  if (text == "ambiguous") return Verdict::kAmbiguous;
  return fail(ErrorCode::kSchemaInvalid, "a verdict is unknown", "verdict", "applied, skipped or ambiguous",
              text.substr(0, 32));
}

Status parse_interval(const Json& message, StepMessage& step) {
  GRADTAP_LET(interval, json_array(message, "interval", "", 2));
  if (interval->size() != 2) return json_wrong("interval", "[begin, end]", *interval);
  GRADTAP_LET(begin, json_uint_value((*interval)[0], "interval", kMaxInteger));
  GRADTAP_LET(end, json_uint_value((*interval)[1], "interval", kMaxInteger));
  if (end < begin)
    return fail(ErrorCode::kSchemaInvalid, "an interval ends before it begins", "interval", {},
                fmt::format("[{}, {})", begin, end));
  step.interval_begin = begin;
  step.interval_end = end;
  return {};
}

// Informative, so every counter may be missing.
Status parse_counters(const Json& message, ClientCounters& counters) {
  if (!message.contains("counters")) return {};
  GRADTAP_LET(object, json_object(message, "counters", ""));
  const auto read = [&](const char* name, std::uint64_t& target) -> Status {
    if (!object->contains(name)) return {};
    GRADTAP_LET(value, json_uint(*object, name, "counters", kMaxInteger));
    target = value;
    return {};
  };
  GRADTAP_TRY(read("dropped", counters.dropped));
  GRADTAP_TRY(read("queue_bytes", counters.queue_bytes));
  return read("commit_us", counters.commit_us);
}

Status parse_full(const Json& message, const Schema& schema, StepMessage& step) {
  GRADTAP_LET(layout_id, parse_layout_id(message, "layout_id", ""));
  step.layout_id = layout_id;
  GRADTAP_LET(micro_steps, json_uint(message, "micro_steps", "", kMaxInteger));
  step.micro_steps = micro_steps;
  GRADTAP_LET(synced, json_uint(message, "synced_backwards", "", kMaxInteger));
  step.synced_backwards = synced;
  GRADTAP_LET(verdict, parse_verdict(message));
  step.scalars.step = step.step;
  step.scalars.verdict = verdict;
  GRADTAP_LET(groups_json, json_field(message, "groups", ""));
  GRADTAP_LET(groups, parse_groups(*groups_json, schema.optimizer.type, "groups"));
  GRADTAP_TRY(validate_groups(schema.optimizer, groups, "groups"));
  step.scalars.groups = std::move(groups);
  GRADTAP_LET(transforms_json, json_field(message, "transforms", ""));
  GRADTAP_LET(transforms, parse_transforms(*transforms_json, schema.parameters.size()));
  step.scalars.transforms = std::move(transforms);
  GRADTAP_LET(state_text, json_text(message, "param_state", ""));
  GRADTAP_LET(param_state, parse_param_state(state_text, schema.parameters.size()));
  step.scalars.param_state = std::move(param_state);
  GRADTAP_LET(witness, parse_witness(message));
  step.witness = std::move(witness);
  return {};
}

}  // namespace

Result<std::vector<ParamState>> parse_param_state(std::string_view hex, std::size_t parameters) {
  std::vector<std::uint8_t> bytes((parameters + 3) / 4);
  if (hex.size() != 2 * bytes.size() || !from_hex(hex, bytes.data(), bytes.size()))
    return fail(ErrorCode::kSchemaInvalid, "param_state has a wrong length or a wrong digit", "param_state",
                fmt::format("{} hexadecimal digits", 2 * bytes.size()), fmt::format("{} characters", hex.size()));
  std::vector<ParamState> states(parameters);
  for (std::size_t i = 0; i < 4 * bytes.size(); ++i) {
    const unsigned value = bytes[i / 4] >> (2 * (i % 4)) & 3U;
    if (value == 3 || (i >= parameters && value != 0))
      return fail(ErrorCode::kSchemaInvalid, "param_state has an impossible value", "param_state",
                  "0 wire, 1 none, 2 stale, and zeros after the last parameter",
                  fmt::format("{} for parameter {}", value, i));
    if (i < parameters) states[i] = static_cast<ParamState>(value);
  }
  return states;
}

Result<TransformChain> parse_transforms(const Json& transforms, std::size_t parameters) {
  if (!transforms.is_array() || transforms.size() > kMaxTransforms)
    return json_wrong("transforms", fmt::format("an array of at most {}", kMaxTransforms), transforms);
  std::vector<Transform> chain;
  for (const Json& object : transforms) {
    const std::string where = fmt::format("transforms[{}]", chain.size());
    Transform transform;
    GRADTAP_LET(op, json_text(object, "op", where));
    if (op == "mul") {
      GRADTAP_LET(factor, bits_field(object, "bits", where));
      transform.op.factor = factor;
    } else if (op == "clamp") {
      constexpr float kInfinity = std::numeric_limits<float>::infinity();
      transform.op.kind = TransformOp::Kind::kClamp;
      GRADTAP_LET(lower, bound_field(object, "min", where, -kInfinity));
      GRADTAP_LET(upper, bound_field(object, "max", where, kInfinity));
      transform.op.lower = lower;
      transform.op.upper = upper;
    } else {
      return fail(ErrorCode::kTransformInvalid, "a transform is unknown", where + ".op", "mul or clamp",
                  op.substr(0, 32));
    }
    GRADTAP_TRY(parse_scope(object, where, parameters, transform));
    chain.push_back(std::move(transform));
  }
  return TransformChain::create(std::move(chain));
}

Result<StepMessage> parse_step_message(const Json& message, const Schema& schema) {
  StepMessage step;
  GRADTAP_LET(kind, json_text(message, "kind", ""));
  if (kind != "step")
    return fail(ErrorCode::kSchemaInvalid, "a message is not a step message", "kind", "step", kind.substr(0, 32));
  GRADTAP_LET(seq, json_uint(message, "seq", "", kMaxInteger));
  step.seq = seq;
  GRADTAP_LET(rank, json_uint(message, "rank", "", UINT32_MAX));
  step.rank = static_cast<std::uint32_t>(rank);
  GRADTAP_LET(number, json_uint(message, "step", "", kMaxInteger));
  if (number == 0) return fail(ErrorCode::kSchemaInvalid, "step 0 is the baseline", "step", "at least 1", "0");
  step.step = number;
  GRADTAP_TRY(parse_interval(message, step));
  GRADTAP_TRY(parse_counters(message, step.counters));
  if (step.rank == 0) GRADTAP_TRY(parse_full(message, schema, step));
  return step;
}

}  // namespace gradtap::replica
