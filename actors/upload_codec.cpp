#include "actors/upload_codec.h"

#include <algorithm>
#include <string>

#include <nlohmann/json.hpp>

#include "replica/json_fields.h"

namespace gradtap::actors {

namespace {

using nlohmann::json;
using replica::json_array;
using replica::json_text;
using replica::json_uint;
using replica::json_uint_value;

constexpr std::uint64_t kStepMax = std::uint64_t{1} << 62;
constexpr std::uint64_t kU32Max = ~std::uint32_t{0};
constexpr std::size_t kShardsMax = 65'536;
constexpr std::size_t kLogsMax = 65'536;

json encode_ref(const schema::ObjectRef& ref) {
  return {{"key", ref.key}, {"bytes", ref.bytes}, {"sha256", to_hex(ref.sha256)}};
}

Result<schema::ObjectRef> decode_ref(const json& body) {
  const std::string where = "object";
  schema::ObjectRef ref;
  if (!body.is_object()) return fail(ErrorCode::kRequestMalformed, "an object reference is not one", where);
  GRADTAP_LET(key, json_text(body, "key", where));
  GRADTAP_LET(bytes, json_uint(body, "bytes", where, kStepMax));
  GRADTAP_LET(digest, json_text(body, "sha256", where));
  if (!from_hex(digest, ref.sha256.data(), ref.sha256.size()))
    return fail(ErrorCode::kRequestMalformed, "an object reference has no digest", where);
  ref.key = key;
  ref.bytes = bytes;
  return ref;
}

bool same(const schema::ShardObjects& a, const schema::ShardObjects& b) {
  return a.base_step == b.base_step && a.base == b.base && a.logs.size() <= b.logs.size() &&
         std::equal(a.logs.begin(), a.logs.end(), b.logs.begin());
}

}  // namespace

std::string encode_upload(const UploadRequest& request) {
  return json{{"lineage", request.lineage},
              {"step", request.step},
              {"previous_step", request.previous_step},
              {"shards", request.shards}}
      .dump();
}

Result<UploadRequest> decode_upload(std::string_view text) {
  const std::string where = "upload";
  GRADTAP_LET(body, replica::parse_json_object(text, where));
  UploadRequest request;
  GRADTAP_LET(lineage, json_uint(body, "lineage", where, kU32Max));
  GRADTAP_LET(step, json_uint(body, "step", where, kStepMax));
  GRADTAP_LET(previous, json_uint(body, "previous_step", where, kStepMax));
  GRADTAP_LET(shards, json_array(body, "shards", where, kShardsMax));
  request.lineage = static_cast<LineageId>(lineage);
  request.step = step;
  request.previous_step = previous;
  for (const json& entry : *shards) {
    GRADTAP_LET(shard, json_uint_value(entry, "upload.shards", kU32Max));
    request.shards.push_back(static_cast<ShardId>(shard));
  }
  return request;
}

std::string encode_uploaded(const std::vector<UploadedShard>& shards) {
  json list = json::array();
  for (const UploadedShard& shard : shards) {
    json logs = json::array();
    for (const schema::StepObject& log : shard.logs)
      logs.push_back({{"step", log.step}, {"object", encode_ref(log.object)}});
    json entry = {{"shard", shard.shard}, {"logs", logs}};
    if (shard.whole) entry["base"] = {{"step", shard.base_step}, {"object", encode_ref(shard.base)}};
    list.push_back(std::move(entry));
  }
  return json{{"shards", list}}.dump();
}

Result<std::vector<UploadedShard>> decode_uploaded(std::string_view text) {
  const std::string where = "uploaded";
  GRADTAP_LET(body, replica::parse_json_object(text, where));
  if (const auto error = body.find("error"); error != body.end() && error->is_object()) {
    const auto field = [&](const char* name) {
      const auto text = error->find(name);
      return text != error->end() && text->is_string() ? text->get<std::string>() : std::string();
    };
    ErrorCode code = ErrorCode::kObjectStore;
    if (error->contains("code") && (*error)["code"].is_number_unsigned())
      code = static_cast<ErrorCode>((*error)["code"].get<unsigned>());
    return fail(code, field("what"), field("where"), field("expected"), field("actual"), field("remedy"));
  }
  GRADTAP_LET(list, json_array(body, "shards", where, kShardsMax));
  std::vector<UploadedShard> shards;
  for (const json& entry : *list) {
    if (!entry.is_object()) return fail(ErrorCode::kRequestMalformed, "an uploaded shard is not one", where);
    UploadedShard shard;
    GRADTAP_LET(id, json_uint(entry, "shard", where, kU32Max));
    shard.shard = static_cast<ShardId>(id);
    if (const auto base = entry.find("base"); base != entry.end()) {
      if (!base->is_object() || !base->contains("object"))
        return fail(ErrorCode::kRequestMalformed, "an uploaded base is not one", where);
      GRADTAP_LET(step, json_uint(*base, "step", where, kStepMax));
      GRADTAP_LET(ref, decode_ref((*base)["object"]));
      shard.whole = true;
      shard.base_step = step;
      shard.base = std::move(ref);
    }
    GRADTAP_LET(logs, json_array(entry, "logs", where, kLogsMax));
    for (const json& log : *logs) {
      if (!log.is_object() || !log.contains("object"))
        return fail(ErrorCode::kRequestMalformed, "an uploaded log is not one", where);
      GRADTAP_LET(step, json_uint(log, "step", where, kStepMax));
      GRADTAP_LET(ref, decode_ref(log["object"]));
      shard.logs.push_back({step, std::move(ref)});
    }
    shards.push_back(std::move(shard));
  }
  return shards;
}

UploadedShard difference(const schema::ShardObjects* before, const schema::ShardObjects& now) {
  UploadedShard change;
  change.shard = now.shard;
  change.base_step = now.base_step;
  if (before != nullptr && same(*before, now)) {
    change.logs.assign(now.logs.begin() + static_cast<std::ptrdiff_t>(before->logs.size()), now.logs.end());
    return change;
  }
  change.whole = true;
  change.base = now.base;
  change.logs = now.logs;
  return change;
}

Result<schema::ShardObjects> apply_difference(const schema::ShardObjects* before, const UploadedShard& change) {
  schema::ShardObjects now;
  now.shard = change.shard;
  if (change.whole) {
    now.base_step = change.base_step;
    now.base = change.base;
    now.logs = change.logs;
    return now;
  }
  if (before == nullptr)
    return fail(ErrorCode::kRequestMalformed, "a node refers to a previous point that there is not",
                "shard " + std::to_string(change.shard));
  now = *before;
  now.logs.insert(now.logs.end(), change.logs.begin(), change.logs.end());
  return now;
}

}  // namespace gradtap::actors
