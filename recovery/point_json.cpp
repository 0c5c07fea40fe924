#include "recovery/point_json.h"

#include <algorithm>
#include <string>

#include "common/json_text.h"

namespace gradtap::recovery {

namespace {

using nlohmann::json;

json object_json(const schema::ObjectRef& ref) {
  return {{"key", ref.key}, {"bytes", ref.bytes}, {"sha256", to_hex(ref.sha256)}};
}

std::string_view verdict_name(schema::Verdict verdict) {
  switch (verdict) {
    case schema::Verdict::kApplied:
      return "applied";
    case schema::Verdict::kSkipped:
      return "skipped";
    case schema::Verdict::kAmbiguous:
      return "ambiguous";
  }
  return "applied";
}

json parent_json(LineageId lineage, StepNumber step, const Sha256& record) {
  if (lineage == 0) return nullptr;
  return {{"lineage", lineage}, {"step", step}, {"record_digest", to_hex(record)}};
}

}  // namespace

json error_json(const Error& error) {
  return {{"code", static_cast<unsigned>(error.code)},
          {"name", error_name(error.code)},
          {"what", error.what},
          {"where", error.where},
          {"expected", error.expected},
          {"actual", error.actual},
          {"remedy", error.remedy}};
}

json passed_over_json(const std::vector<storage::PassedOver>& passed_over) {
  json list = json::array();
  for (const storage::PassedOver& passed : passed_over) {
    json entry = {{"lineage", passed.lineage}, {"reason", passed.reason}};
    if (!passed.whole_lineage) entry["step"] = passed.step;
    list.push_back(std::move(entry));
  }
  return list;
}

json points_json(const storage::PointListing& listing, const std::optional<LineageId>& lineage) {
  json points = json::array();
  for (const storage::PointEntry& entry : listing.points) {
    json point = {{"lineage", entry.lineage},
                  {"step", entry.step},
                  {"key", entry.key},
                  {"valid", entry.valid},
                  {"reason", entry.problem ? entry.problem->text() : std::string()},
                  {"superseded", entry.superseded}};
    if (entry.record) {
      point["root"] = to_hex(entry.record->canonical.state_root);
      point["world"] = entry.record->canonical.world;
      point["wall_ms"] = entry.record->created_wall_ms;
      point["record_digest"] = to_hex(entry.record_digest);
      point["training"] = entry.record->training;
      point["publisher"] = entry.record->publisher;
    }
    points.push_back(std::move(point));
  }
  json out = {{"job", listing.job}, {"points", std::move(points)}, {"passed_over", json::array()}};
  storage::PointWish wish;
  wish.lineage = lineage;
  json restorable = json::array();
  if (const auto choice = storage::choose_point(listing, wish); choice) {
    out["passed_over"] = passed_over_json(choice->passed_over);
    std::vector<storage::LineageReach> chain;
    // What cannot be followed further is found out when those before it are used up.
    (void)storage::lineage_chain(listing, choice->point.lineage, chain);
    for (const storage::LineageReach& reach : chain)
      for (const storage::PointEntry& entry : listing.points) {
        const bool before = entry.lineage != choice->point.lineage || entry.step <= choice->point.step;
        if (entry.lineage == reach.lineage && entry.step <= reach.up_to && entry.valid && before)
          restorable.push_back({{"lineage", entry.lineage}, {"step", entry.step}});
      }
  } else {
    out["problem"] = error_json(choice.error());
  }
  out["restorable"] = std::move(restorable);
  return out;
}

json point_json(const schema::PointRecord& record, const Sha256& record_digest) {
  const schema::PointCanonical& canonical = record.canonical;
  json shards = json::array();
  for (std::size_t i = 0; i < canonical.shards.size(); ++i) {
    json shard = {{"shard", canonical.shards[i].shard}, {"digest", to_hex(canonical.shards[i].digest)}};
    if (i < record.shards.size()) {
      json logs = json::array();
      for (const schema::StepObject& log : record.shards[i].logs) logs.push_back(object_json(log.object));
      shard["base_step"] = record.shards[i].base_step;
      shard["base"] = object_json(record.shards[i].base);
      shard["logs"] = std::move(logs);
    }
    shards.push_back(std::move(shard));
  }
  json ranks = json::array();
  for (const schema::RankDigest& rank : canonical.ranks)
    ranks.push_back({{"rank", rank.rank}, {"digest", to_hex(rank.digest)}});
  json steps = json::array();
  for (const schema::StepObject& step : record.steps) steps.push_back(object_json(step.object));
  json layout = nullptr;
  if (!canonical.layout_json.empty()) {
    layout =
        parse_json_text({reinterpret_cast<const char*>(canonical.layout_json.data()), canonical.layout_json.size()});
    if (layout.is_discarded()) layout = nullptr;
  }
  json out = {{"format", canonical.format},
              {"job", canonical.job_name},
              {"lineage", canonical.lineage},
              {"parent", parent_json(canonical.parent_lineage, canonical.parent_step, canonical.parent_record)},
              {"step", canonical.step},
              {"root", to_hex(canonical.state_root)},
              {"world", canonical.world},
              {"verdict", verdict_name(canonical.verdict)},
              {"recipe", canonical.recipe_id},
              {"optimizer", canonical.optimizer_class},
              {"qualified_by", canonical.qualified_by},
              {"schema_id", to_hex(canonical.schema_id)},
              {"layout_id", nullptr},
              {"layout", std::move(layout)},
              {"step_message", to_hex(canonical.step_message)},
              {"shards", std::move(shards)},
              {"ranks", std::move(ranks)},
              {"steps", std::move(steps)},
              {"side", object_json(record.side)},
              {"meta", object_json(record.meta)},
              {"previous", nullptr},
              {"record_digest", to_hex(record_digest)},
              {"publisher", record.publisher},
              {"wall_ms", record.created_wall_ms},
              {"training", record.training},
              {"verified", record.verified},
              {"durable", record.durable},
              {"published", record.published},
              {"software", record.software}};
  if (canonical.layout_id != LayoutId{}) out["layout_id"] = to_hex(canonical.layout_id);
  if (record.previous_record != Sha256{})
    out["previous"] = {{"step", record.previous_step}, {"record_digest", to_hex(record.previous_record)}};
  return out;
}

json lineages_json(const storage::PointListing& listing) {
  json list = json::array();
  for (const storage::LineageEntry& entry : listing.lineages) {
    json lineage = {{"lineage", entry.lineage}, {"superseded", entry.superseded}, {"parent", nullptr}};
    std::size_t points = 0;
    std::size_t valid = 0;
    json newest = nullptr;
    for (const storage::PointEntry& point : listing.points) {
      if (point.lineage != entry.lineage) continue;
      ++points;
      if (!point.valid) continue;
      ++valid;
      if (newest.is_null()) newest = point.step;
    }
    lineage["points"] = points;
    lineage["valid_points"] = valid;
    lineage["newest_point"] = std::move(newest);
    if (entry.claim) {
      lineage["run_nonce"] = entry.claim->run_nonce;
      lineage["parent"] =
          parent_json(entry.claim->parent_lineage, entry.claim->parent_step, entry.claim->parent_record);
      lineage["base_step"] = entry.claim->base_step;
      lineage["node"] = entry.claim->node;
      lineage["wall_ms"] = entry.claim->created_wall_ms;
    } else {
      lineage["problem"] = error_json(entry.problem);
    }
    list.push_back(std::move(lineage));
  }
  return {{"job", listing.job}, {"lineages", std::move(list)}};
}

json verify_json(const storage::VerifyReport& report) {
  json findings = json::array();
  for (const storage::Finding& finding : report.findings) {
    json entry = {{"code", static_cast<unsigned>(finding.code)},
                  {"name", error_name(finding.code)},
                  {"key", finding.key},
                  {"offset", nullptr},
                  {"what", finding.what},
                  {"expected", finding.expected},
                  {"actual", finding.actual}};
    if (finding.offset) entry["offset"] = *finding.offset;
    findings.push_back(std::move(entry));
  }
  return {{"lineage", report.lineage},      {"step", report.step},
          {"whole", report.whole()},        {"record_digest", to_hex(report.record_digest)},
          {"objects", report.objects},      {"bytes", report.bytes},
          {"findings", std::move(findings)}};
}

}  // namespace gradtap::recovery
