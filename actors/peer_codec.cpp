#include "actors/peer_codec.h"

#include <nlohmann/json.hpp>

#include "replica/json_fields.h"

namespace gradtap::actors {

namespace {

using nlohmann::json;
using replica::json_array;
using replica::json_text;
using replica::json_uint;
using replica::json_uint_value;

constexpr std::size_t kTextBytesMax = std::size_t{1} << 20;
constexpr std::size_t kListMax = 65'536;
constexpr std::size_t kGapsMax = 64;
constexpr std::size_t kGapTextMax = 2000;
constexpr std::uint64_t kStepMax = std::uint64_t{1} << 62;
constexpr std::int64_t kDeltaMax = std::int64_t{1} << 40;
constexpr std::uint64_t kU32Max = ~std::uint32_t{0};

Result<json> parse(std::string_view text, const char* where) {
  if (text.size() > kTextBytesMax)
    return fail(ErrorCode::kRequestTooLarge, "a peer's message is too large", where, std::to_string(kTextBytesMax),
                std::to_string(text.size()));
  return replica::parse_json_object(text, where);
}

std::unexpected<Error> malformed(const char* where, const char* expected) {
  return fail(ErrorCode::kRequestMalformed, "a peer's message is not one", where, expected, {},
              "see that all nodes run the same version");
}

}  // namespace

std::string encode_hello(const PeerHello& hello) {
  return json{{"node", hello.node},         {"cluster", hello.cluster},
              {"ready", hello.ready},       {"lineage", hello.lineage},
              {"store_id", hello.store_id}, {"presence_key", hello.presence_key},
              {"epoch", hello.epoch},       {"tap", hello.tap}}
      .dump();
}

Result<PeerHello> decode_hello(std::string_view text) {
  const char* where = "hello";
  GRADTAP_LET(body, parse(text, where));
  PeerHello hello;
  GRADTAP_LET(node, json_text(body, "node", where));
  GRADTAP_LET(cluster, json_text(body, "cluster", where));
  GRADTAP_LET(lineage, json_uint(body, "lineage", where, kU32Max));
  GRADTAP_LET(store_id, json_text(body, "store_id", where));
  GRADTAP_LET(presence_key, json_text(body, "presence_key", where));
  if (node.size() > 256 || cluster.size() > 64 || store_id.size() > 64 || presence_key.size() > 1024)
    return malformed(where, "short names");
  if (!body.contains("ready") || !body["ready"].is_boolean()) return malformed(where, "ready: true or false");
  hello.node = node;
  hello.cluster = cluster;
  hello.ready = body["ready"].get<bool>();
  hello.lineage = static_cast<LineageId>(lineage);
  hello.store_id = store_id;
  hello.presence_key = presence_key;
  if (body.contains("epoch")) {
    GRADTAP_LET(epoch, json_uint(body, "epoch", where, kStepMax));
    hello.epoch = epoch;
  }
  if (const auto tap = body.find("tap"); tap != body.end()) {
    if (!tap->is_boolean()) return malformed(where, "tap: true or false");
    hello.tap = tap->get<bool>();
  }
  return hello;
}

std::string encode_report(const PeerReport& report, LineageId lineage) {
  json shards = json::array();
  for (const PeerReport::Shard& shard : report.shards)
    shards.push_back({shard.shard, shard.version, shard.durable ? json(*shard.durable) : json(nullptr), shard.from});
  json digests = json::array();
  for (const PeerReport::Digest& digest : report.digests)
    digests.push_back({digest.shard, digest.step, to_hex(digest.digest)});
  json gaps = json::array();
  for (const Gap& gap : report.gaps) {
    if (gaps.size() == kGapsMax) break;
    gaps.push_back({static_cast<unsigned>(gap.reason), gap.since_step, gap.evidence.substr(0, kGapTextMax),
                    gap.action.substr(0, kGapTextMax)});
  }
  return json{{"lineage", lineage},
              {"member", report.member},
              {"epoch", report.epoch},
              {"training", report.training},
              {"bound", report.bound},
              {"published", report.published},
              {"shards", shards},
              {"delta", report.delta ? json(*report.delta) : json(nullptr)},
              {"digests_wanted", report.digests_wanted ? json(*report.digests_wanted) : json(nullptr)},
              {"digests", digests},
              {"gaps", gaps}}
      .dump(-1, ' ', false, json::error_handler_t::replace);
}

Result<PeerReportText> decode_report(std::string_view text) {
  const char* where = "report";
  GRADTAP_LET(body, parse(text, where));
  PeerReportText parsed;
  GRADTAP_LET(lineage, json_uint(body, "lineage", where, kU32Max));
  GRADTAP_LET(member, json_uint(body, "member", where, 65'535));
  GRADTAP_LET(training, json_uint(body, "training", where, kStepMax));
  GRADTAP_LET(bound, json_uint(body, "bound", where, kStepMax));
  GRADTAP_LET(published, json_uint(body, "published", where, kStepMax));
  parsed.lineage = static_cast<LineageId>(lineage);
  parsed.report.member = member;
  parsed.report.training = training;
  parsed.report.bound = bound;
  parsed.report.published = published;
  if (body.contains("epoch")) {
    GRADTAP_LET(epoch, json_uint(body, "epoch", where, kStepMax));
    parsed.report.epoch = epoch;
  }
  if (const auto delta = body.find("delta"); delta != body.end() && !delta->is_null()) {
    if (!delta->is_number_integer()) return malformed(where, "delta: an integer or null");
    const auto value = delta->get<std::int64_t>();
    const bool wraps = delta->is_number_unsigned() && value < 0;
    if (wraps || value < -kDeltaMax || value > kDeltaMax) return malformed(where, "delta: a difference of tags");
    parsed.report.delta = value;
  }
  if (const auto wanted = body.find("digests_wanted"); wanted != body.end() && !wanted->is_null()) {
    GRADTAP_LET(step, json_uint_value(*wanted, "report.digests_wanted", kStepMax));
    parsed.report.digests_wanted = step;
  }
  GRADTAP_LET(shards, json_array(body, "shards", where, kListMax));
  for (const json& entry : *shards) {
    if (!entry.is_array() || entry.size() < 3 || entry.size() > 4)
      return malformed(where, "shards: [shard, version, durable, from]");
    GRADTAP_LET(shard, json_uint_value(entry[0], "report.shards", kU32Max));
    GRADTAP_LET(version, json_uint_value(entry[1], "report.shards", kStepMax));
    PeerReport::Shard one{static_cast<ShardId>(shard), version, std::nullopt, 0};
    if (!entry[2].is_null()) {
      GRADTAP_LET(durable, json_uint_value(entry[2], "report.shards", kStepMax));
      one.durable = durable;
    }
    if (entry.size() == 4) {
      GRADTAP_LET(from, json_uint_value(entry[3], "report.shards", kStepMax));
      one.from = from;
    }
    parsed.report.shards.push_back(one);
  }
  GRADTAP_LET(digests, json_array(body, "digests", where, kListMax));
  for (const json& entry : *digests) {
    if (!entry.is_array() || entry.size() != 3 || !entry[2].is_string())
      return malformed(where, "digests: [shard, step, digest]");
    GRADTAP_LET(shard, json_uint_value(entry[0], "report.digests", kU32Max));
    GRADTAP_LET(step, json_uint_value(entry[1], "report.digests", kStepMax));
    PeerReport::Digest one{static_cast<ShardId>(shard), step, {}};
    if (!from_hex(entry[2].get_ref<const std::string&>(), one.digest.data(), one.digest.size()))
      return malformed(where, "a digest of 64 hex digits");
    parsed.report.digests.push_back(one);
  }
  GRADTAP_LET(gaps, json_array(body, "gaps", where, kGapsMax));
  for (const json& entry : *gaps) {
    if (!entry.is_array() || entry.size() != 4 || !entry[2].is_string() || !entry[3].is_string())
      return malformed(where, "gaps: [reason, since, evidence, action]");
    GRADTAP_LET(reason, json_uint_value(entry[0], "report.gaps", 255));
    GRADTAP_LET(since, json_uint_value(entry[1], "report.gaps", kStepMax));
    const auto& evidence = entry[2].get_ref<const std::string&>();
    const auto& action = entry[3].get_ref<const std::string&>();
    if (evidence.size() > 4 * kGapTextMax || action.size() > 4 * kGapTextMax) return malformed(where, "short texts");
    parsed.report.gaps.push_back({static_cast<GapReason>(reason), since, evidence, action});
  }
  return parsed;
}

}  // namespace gradtap::actors
