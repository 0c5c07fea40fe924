#include "dataplane/nccl_assembly.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <fstream>

#include <fmt/format.h>

#include "common/sha256.h"
#include "dataplane/nccl_ll.h"

namespace gradtap::dataplane {
namespace {

constexpr std::size_t kNcclDumpErrorsMax = 16;

std::vector<Interval> in_elements(const std::vector<Interval>& bytes, std::uint32_t element_bytes, bool whole) {
  std::vector<Interval> elements;
  for (const Interval& range : bytes) {
    // What is there counts in whole elements, and so does what is not.
    const std::uint64_t up = element_bytes - 1;
    const Interval part = whole ? Interval{(range.begin + up) / element_bytes, range.end / element_bytes}
                                : Interval{range.begin / element_bytes, (range.end + up) / element_bytes};
    if (part.begin < part.end) elements.push_back(part);
  }
  return elements;
}

}  // namespace

class NcclAssembly::Flow final : public RoceSink {
 public:
  Flow(NcclAssembly& assembly, std::uint32_t flow) : assembly_(assembly), flow_(flow) {}
  void piece(const RocePiece& piece) override {
    if (flow_ < assembly_.survey_.flows().size())
      assembly_.piece(*assembly_.survey_.flows()[flow_], assembly_.plan_.flows[flow_], piece);
  }
  void message(const RoceMessage&) override {}
  void lost(const PsnRange&) override {}
  void keep(const OwnedBytes&) override {}

 private:
  NcclAssembly& assembly_;
  std::uint32_t flow_;
};

NcclAssembly::NcclAssembly(const NcclSurvey& survey, const NcclTrafficPlan& plan, const NcclAssemblyConfig& config)
    : survey_(survey), plan_(plan), config_(config), table_(config.table, *this) {
  for (const PlannedFlow& flow : plan.flows) {
    if (flow.kind != PlannedFlow::Kind::kSend) continue;
    for (std::size_t b = 0; b < plan.buckets.size(); ++b) {
      if (!plan.buckets[b].schedule) continue;
      Unsent& unsent = unsent_[{b, flow.position}];
      unsent.elements = plan.unsent(b, flow.position);
      std::uint64_t elements = 0;
      for (const Interval& range : unsent.elements) elements += range.length();
      unsent.chunk_bytes = nccl_send_chunk_bytes(elements * plan.buckets[b].bucket.element_bytes);
    }
  }
}

NcclAssembly::~NcclAssembly() = default;

RoceSink& NcclAssembly::opened(const RoceFlowIdentity& identity) {
  flows_.push_back(std::make_unique<Flow>(*this, identity.flow));
  return *flows_.back();
}

void NcclAssembly::frame(ByteSpan bytes, std::uint32_t wire_bytes, std::uint64_t time_ns) {
  RoceFrame frame;
  time_ns_ = time_ns;
  if (read_roce_frame(bytes, wire_bytes, frames_, frame) == FrameDrop::kNone)
    table_.frame(frame, time_ns, frames_.frames);
}

bool NcclAssembly::line_based(const PlannedFlow& flow, const NcclStep& step) const {
  return flow.kind == PlannedFlow::Kind::kRing &&
         plan_.buckets[step.pattern].schedule->op().protocol == NcclProtocol::kLl;
}

template <class F>
void NcclAssembly::places(const PlannedFlow& flow, const NcclStep& step, std::uint64_t offset, std::uint64_t bytes,
                          F visit) {
  const PlannedBucket& bucket = plan_.buckets[step.pattern];
  const std::uint64_t element = bucket.bucket.element_bytes;
  if (flow.kind == PlannedFlow::Kind::kRing) {
    const auto message = bucket.schedule->message(flow.position, flow.channel, step.index);
    if (!message || message->phase != Phase::kFinal) return;
    const std::uint64_t length = (message->end - message->begin) * element;
    if (offset >= length) return;  // behind an odd last element
    visit(message->begin * element + offset, std::uint64_t{0}, std::min(bytes, length - offset));
    return;
  }
  const Unsent& unsent = unsent_[{step.pattern, flow.position}];
  std::uint64_t from = step.index * unsent.chunk_bytes + offset;
  std::uint64_t taken = 0;
  for (const Interval& range : unsent.elements) {
    const std::uint64_t length = range.length() * element;
    if (from >= length) {
      from -= length;
      continue;
    }
    const std::uint64_t part = std::min(bytes - taken, length - from);
    visit(range.begin * element + from, taken, part);
    taken += part;
    from = 0;
    if (taken == bytes) return;
  }
}

void NcclAssembly::piece(const SurveyedFlow& flow, const PlannedFlow& planned, const RocePiece& piece) {
  const NcclStep* const step = planned.step_of(piece.message);
  const NcclItem* const item = flow.item_of(piece.message);
  if (step == nullptr || item == nullptr) return;
  const RoceMessage& message = item->message;
  std::uint64_t offset = piece.offset_bytes + (piece.provisional ? message.head_missing_bytes : 0);
  const std::uint8_t* data = piece.data;
  std::uint64_t bytes = piece.bytes;
  std::array<std::uint8_t, kMaxPathMtuBytes / 2> stripped;
  if (line_based(planned, *step)) {
    if (bytes % kLlLineBytes != 0 || offset % kLlLineBytes != 0 || bytes > kMaxPathMtuBytes ||
        !strip_ll(data, bytes / kLlLineBytes, item->flag, stripped.data())) {
      ++counters_.wrong_flags;
      return;
    }
    offset /= 2;
    bytes /= 2;
    data = stripped.data();
  }
  places(planned, *step, offset, bytes, [&](std::uint64_t at, std::uint64_t from, std::uint64_t count) {
    Op* const op = op_of({step->pattern, planned.group, step->occurrence});
    if (op == nullptr) return;
    if (op->closed) {
      ++counters_.closed_early;
      return;
    }
    store(*op, at, data + from, count);
  });
}

NcclAssembly::Op* NcclAssembly::op_of(const OpName& name) {
  const auto found = ops_.find(name);
  if (found != ops_.end()) return &found->second;
  if (ops_.size() >= config_.max_operations) return nullptr;
  const NcclBucket& bucket = plan_.buckets[name.bucket].bucket;
  const std::uint64_t size = bucket.elements * bucket.element_bytes;
  Op& op = ops_[name];
  if (size > config_.window_bytes) {
    op.closed.emplace();
    op.closed->bucket = name.bucket;
    op.closed->group = name.group;
    op.closed->index = name.index;
    op.closed->shed = true;
    return &op;
  }
  for (auto at = ops_.begin(); at != ops_.end() && held_bytes_ + size > config_.window_bytes; ++at)
    if (at->first != name && !at->second.closed) close(at->first, at->second);
  op.bytes.resize(size);
  held_bytes_ += size;
  return &op;
}

void NcclAssembly::store(Op& op, std::uint64_t offset, const std::uint8_t* data, std::uint64_t bytes) {
  if (offset > op.bytes.size() || bytes > op.bytes.size() - offset) return;
  op.covered.split(offset, offset + bytes, [&](std::uint64_t begin, std::uint64_t end, bool covered) {
    const std::uint8_t* const from = data + (begin - offset);
    if (!covered) {
      std::memcpy(&op.bytes[begin], from, end - begin);
      counters_.placed_bytes += end - begin;
    } else {
      counters_.repeated_bytes += end - begin;
      if (std::memcmp(&op.bytes[begin], from, end - begin) != 0) {
        op.conflicts.add(begin, end);
        ++counters_.conflicts;
      }
    }
  });
  op.covered.add(offset, offset + bytes);
}

void NcclAssembly::close(const OpName& name, Op& op) {
  const NcclBucket& bucket = plan_.buckets[name.bucket].bucket;
  AssembledOp closed;
  closed.bucket = name.bucket;
  closed.group = name.group;
  closed.index = name.index;
  closed.conflict = !op.conflicts.empty();
  for (const Interval& range : op.conflicts.ranges()) op.covered.remove(range.begin, range.end);
  closed.present = in_elements(op.covered.ranges(), bucket.element_bytes, true);
  closed.complete = op.covered.contains(0, op.bytes.size());
  if (closed.complete) closed.sha256 = sha256(op.bytes);
  if (!config_.dump_dir.empty()) {
    const std::string job = name.group == 0 ? std::string() : fmt::format("-job{}", name.group);
    closed.dump_file = fmt::format("allreduce-{}-{}{}-{:06}{}.bin", bucket.elements, bucket.dtype, job, name.index,
                                   closed.complete ? "" : "-holes");
    const std::string path = config_.dump_dir + "/" + closed.dump_file;
    std::ofstream file(path, std::ios::binary | std::ios::trunc);
    for (const Interval& range : IntervalSet(op.covered).missing(0, op.bytes.size()))
      std::memset(&op.bytes[range.begin], 0, range.length());
    file.write(reinterpret_cast<const char*>(op.bytes.data()), static_cast<std::streamsize>(op.bytes.size()));
    file.close();
    if (!file && dump_errors_.size() < kNcclDumpErrorsMax) dump_errors_.push_back("cannot write " + path);
  }
  held_bytes_ -= op.bytes.size();
  op.bytes = {};
  op.closed = std::move(closed);
}

// Packets of final messages that the other side acknowledged and the tap never saw.
void NcclAssembly::note_losses() {
  for (const auto& flow : survey_.flows()) {
    const PlannedFlow& planned = plan_.flows[flow->identity().flow];
    if (planned.steps.empty() && planned.lost_steps.empty()) continue;
    const RoceFlow& seen = *survey_.table().entries()[flow->identity().flow]->flow;
    const std::uint64_t acknowledged = seen.acknowledged_end();
    const auto note = [&](const NcclStep& step, std::uint64_t wire_offset, std::uint64_t wire_bytes) {
      const std::uint64_t scale = line_based(planned, step) ? 2 : 1;
      places(planned, step, wire_offset / scale, wire_bytes / scale,
             [&](std::uint64_t at, std::uint64_t, std::uint64_t count) {
               if (Op* const op = op_of({step.pattern, planned.group, step.occurrence})) op->lost.add(at, at + count);
             });
    };
    for (const Interval& range : seen.missing_psns()) {
      const std::uint64_t end = std::min(range.end, acknowledged);
      if (range.begin >= end) continue;
      for (const NcclItem& item : flow->items()) {
        if (item.hole || item.psns.begin >= end || item.psns.end <= range.begin || item.message.packet_bytes == 0)
          continue;
        const NcclStep* const step = planned.step_of(item.message.number);
        if (step == nullptr) continue;
        for (std::uint64_t psn = std::max(range.begin, item.psns.begin); psn < std::min(end, item.psns.end); ++psn) {
          const std::uint64_t offset = (psn - item.psns.begin) * item.message.packet_bytes;
          if (offset < item.message.bytes)
            note(*step, offset, std::min<std::uint64_t>(item.message.packet_bytes, item.message.bytes - offset));
        }
      }
    }
    for (const NcclStep& step : planned.lost_steps)
      if (step.psns.end <= acknowledged) note(step, 0, kMaxNcclElements);
  }
}

std::vector<AssembledOp> NcclAssembly::finish() {
  table_.finish(time_ns_, frames_.frames);
  // Operations of which no final byte was seen are there too.
  for (const PlannedFlow& flow : plan_.flows)
    for (const NcclStep& step : flow.steps)
      if (flow.kind == PlannedFlow::Kind::kRing && step.pattern != PlannedFlow::kForeign)
        (void)op_of({step.pattern, flow.group, step.occurrence});
  note_losses();
  std::vector<AssembledOp> result;
  for (auto& [name, op] : ops_) {
    if (!op.closed) close(name, op);
    const std::uint32_t element = plan_.buckets[name.bucket].bucket.element_bytes;
    IntervalSet lost = op.lost;
    for (const Interval& range : op.closed->present) lost.remove(range.begin * element, range.end * element);
    op.closed->lost_definitive = in_elements(lost.ranges(), element, false);
    result.push_back(std::move(*op.closed));
  }
  return result;
}

}  // namespace gradtap::dataplane
