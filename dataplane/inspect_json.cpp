#include "dataplane/inspect_json.h"

namespace gradtap::dataplane {

nlohmann::json inspect_json(const InspectReport& report) {
  using nlohmann::json;
  json flows = json::array(), ops = json::array(), others = json::array();
  for (const InspectedFlow& flow : report.flows)
    flows.push_back({{"flow", flow.flow},
                     {"source_rank", flow.source_rank},
                     {"target_rank", flow.target_rank},
                     {"segments", flow.segments},
                     {"provisional_segments", flow.provisional_segments},
                     {"bytes", flow.bytes}});
  for (const InspectedOp& op : report.ops) {
    json missing = json::array();
    for (const Interval& range : op.missing) missing.push_back({range.begin, range.end});
    json line = {{"index", op.index},
                 {"kind", "all-reduce"},
                 {"comm", op.op.comm},
                 {"tag", op.op.tag},
                 {"bytes", op.bytes ? json(*op.bytes) : json(nullptr)},
                 {"element_bytes", op.element_bytes},
                 {"complete", op.complete},
                 {"conflict", op.conflict},
                 {"shed", op.shed},
                 {"copies_min", op.copies.min},
                 {"copies_max", op.copies.max},
                 {"missing", std::move(missing)},
                 {"sha256", op.sha256 ? json(to_hex(*op.sha256)) : json(nullptr)}};
    if (!op.dump_file.empty()) line["file"] = op.dump_file;
    ops.push_back(std::move(line));
  }
  for (const InspectedOther& other : report.other_ops)
    others.push_back({{"comm", other.op.comm},
                      {"tag", other.op.tag},
                      {"kind", collective_name(other.type)},
                      {"messages", other.messages},
                      {"bytes", other.bytes}});
  json out = {{"flows", std::move(flows)}, {"ops", std::move(ops)}, {"other_ops", std::move(others)}};
  out["counters"] = {{"segments", report.counters.segments},
                     {"duplicate_bytes", report.counters.duplicate_bytes},
                     {"conflicts", report.counters.conflicts},
                     {"shed_limbo", report.counters.shed_limbo},
                     {"not_reported", report.not_reported}};
  if (!report.dump_errors.empty()) out["dump_errors"] = report.dump_errors;
  return out;
}

}  // namespace gradtap::dataplane
