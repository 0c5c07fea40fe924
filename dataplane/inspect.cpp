#include "dataplane/inspect.h"

#include <algorithm>
#include <fstream>
#include <limits>

#include <fmt/format.h>

#include "common/sha256.h"
#include "dataplane/infer_length.h"

namespace gradtap::dataplane {
namespace {
constexpr std::size_t kMaxDumpErrors = 16;
}

std::string_view collective_name(CollectiveType type) {
  switch (type) {
    case CollectiveType::kUnknown:
      break;
    case CollectiveType::kGather:
      return "gather";
    case CollectiveType::kAllGather:
      return "all-gather";
    case CollectiveType::kReduce:
      return "reduce";
    case CollectiveType::kAllReduce:
      return "all-reduce";
    case CollectiveType::kScatter:
      return "scatter";
    case CollectiveType::kBroadcast:
      return "broadcast";
    case CollectiveType::kBarrier:
      return "barrier";
    case CollectiveType::kAllToAll:
      return "all-to-all";
  }
  return "unknown";
}

CaptureInspector::CaptureInspector(const InspectConfig& config, std::shared_ptr<const Schedule> schedule)
    : config_(config), schedule_(schedule), window_(config.window, std::move(schedule)) {}

void CaptureInspector::add(const Segment& segment) {
  auto flow = flows_.find(segment.flow);
  if (flow == flows_.end()) {
    if (flows_.size() >= config_.max_reported) {
      ++not_reported_;
      return;
    }
    flow = flows_
               .emplace(segment.flow, InspectedFlow{.flow = segment.flow,
                                                    .source_rank = segment.source_rank,
                                                    .target_rank = segment.target_rank})
               .first;
  }
  ++flow->second.segments;
  flow->second.bytes += segment.bytes;
  flow->second.provisional_segments += segment.provisional ? 1 : 0;

  if (segment.type != CollectiveType::kAllReduce) {
    auto other = others_.find(segment.op);
    if (other == others_.end()) {
      if (others_.size() >= config_.max_reported) {
        ++not_reported_;
        return;
      }
      other = others_.emplace(segment.op, InspectedOther{.op = segment.op, .type = segment.type}).first;
    }
    // Messages of these types are announced by a segment without bytes; their payload may follow, and is not needed.
    if (segment.bytes == 0) {
      ++other->second.messages;
      other->second.bytes += segment.message_bytes;
    }
    return;
  }
  if (done_.contains(segment.op)) return;
  if (done_.size() + open_.size() >= config_.max_reported && !open_.contains(segment.op)) {
    ++not_reported_;
    return;
  }
  window_.add(segment);
  if (!schedule_->has_edge(segment.source_rank, segment.target_rank)) return;
  open_.emplace(segment.op, false);
  std::uint32_t& reached = reached_[segment.op.comm][segment.source_rank];
  if (segment.op.tag > reached) {
    reached = segment.op.tag;
    finish_passed(segment.op.comm);
  }
}

void CaptureInspector::finish_passed(std::uint32_t comm) {
  std::uint32_t lowest = std::numeric_limits<std::uint32_t>::max();
  for (const auto& [source, tag] : reached_[comm]) lowest = std::min(lowest, tag);
  if (lowest < config_.margin_tags) return;
  for (auto at = open_.lower_bound(OpKey{comm, 0}); at != open_.end() && at->first.comm == comm;) {
    const OpKey key = at->first;
    if (key.tag > lowest - config_.margin_tags) break;
    const bool tried = at->second;
    ++at;
    if (!tried) finish(key, false);
  }
}

// Infers the length, hashes and frees the op. Without a length it waits for the end, when more lengths are known.
void CaptureInspector::finish(OpKey key, bool last_chance) {
  InspectedOp result;
  result.op = key;
  OpBuffer* buffer = window_.buffer(key);
  if (buffer == nullptr) {
    result.shed = true;
    done_.emplace(key, std::move(result));
    open_.erase(key);
    return;
  }
  std::vector<OpSize> sizes = infer_op_size(*schedule_, buffer->edges());
  for (const OpSize& size : sizes) {
    if (const auto added = inferred_.add(size); !added) break;  // full: later ops just cannot borrow this length
  }
  if (sizes.empty() && !last_chance) {
    open_[key] = true;
    return;
  }
  if (sizes.empty()) sizes = inferred_.sizes();
  window_.offer_sizes(key, sizes);
  buffer = window_.buffer(key);
  open_.erase(key);
  if (buffer == nullptr) {
    result.shed = true;
    done_.emplace(key, std::move(result));
    return;
  }
  result.bytes = buffer->op_bytes();
  result.conflict = buffer->conflicted();
  if (result.bytes) {
    for (const OpSize& size : buffer->candidates()) result.element_bytes.push_back(size.element_bytes);
    std::sort(result.element_bytes.begin(), result.element_bytes.end());
    result.complete = buffer->complete();
    result.copies = buffer->copies();
    result.missing = buffer->missing(*result.bytes);
    if (result.complete) {
      if (const auto bytes = window_.bind(key, *result.bytes)) {
        result.sha256 = sha256((*bytes)->bytes());
        dump(key, (*bytes)->bytes(), result);
      }
    } else if (!config_.dump_dir.empty() && *result.bytes <= config_.window.window_bytes) {
      std::vector<std::uint8_t> holey(*result.bytes, 0);
      buffer->copy_covered(holey);
      dump(key, holey, result);
    }
  }
  window_.abandon(key);
  done_.emplace(key, std::move(result));
}

void CaptureInspector::dump(OpKey key, std::span<const std::uint8_t> bytes, InspectedOp& op) {
  if (config_.dump_dir.empty()) return;
  op.dump_file = fmt::format("allreduce-{}-{:010}{}.bin", key.comm, key.tag, op.complete ? "" : "-holes");
  const std::string path = config_.dump_dir + "/" + op.dump_file;
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  file.close();
  if (!file && dump_errors_.size() < kMaxDumpErrors) dump_errors_.push_back("cannot write " + path);
}

InspectReport CaptureInspector::report() {
  for (const bool last_chance : {false, true}) {
    std::vector<OpKey> keys;
    keys.reserve(open_.size());
    for (const auto& [key, tried] : open_) keys.push_back(key);
    for (const OpKey key : keys) finish(key, last_chance);
  }
  InspectReport report;
  for (const auto& [id, flow] : flows_) report.flows.push_back(flow);
  std::map<std::uint64_t, std::uint32_t> of_size;
  for (const auto& [key, op] : done_) {
    report.ops.push_back(op);
    if (op.bytes) report.ops.back().index = ++of_size[*op.bytes];
  }
  for (const auto& [key, other] : others_) report.other_ops.push_back(other);
  report.counters = window_.counters();
  report.not_reported = not_reported_;
  report.dump_errors = dump_errors_;
  return report;
}

}  // namespace gradtap::dataplane
