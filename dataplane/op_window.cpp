#include "dataplane/op_window.h"

#include <algorithm>
#include <string>
#include <utility>

namespace gradtap::dataplane {
namespace {
constexpr std::size_t kMaxReports = 1024;
}

OpWindow::OpWindow(const OpWindowConfig& config, std::shared_ptr<const Schedule> schedule)
    : config_(config),
      schedule_(std::move(schedule)),
      pool_(OpBufferPool::create(config.window_bytes, config.memory)),
      limbo_(config.limbo_bytes, config.memory) {
  config_.window_ops = std::max<std::uint32_t>(config_.window_ops, 1);
}

OpWindow::~OpWindow() = default;

OpWindow::Op* OpWindow::find(OpKey key) const {
  const auto at = ops_.find(key);
  return at == ops_.end() ? nullptr : at->second.get();
}

OpBuffer* OpWindow::buffer(OpKey key) {
  Op* op = find(key);
  return op == nullptr ? nullptr : op->buffer.get();
}

OpWindow::Op* OpWindow::oldest(bool (*fits)(const Op&)) const {
  for (const auto& [age, op] : by_age_)
    if (fits(*op)) return op;
  return nullptr;
}

OpWindow::Op* OpWindow::open(OpKey key) {
  if (open_ >= config_.window_ops) {
    // Ops that only say their type, or are bound already, go first: nothing is lost with them.
    Op* victim = oldest([](const Op& op) { return op.bound || !op.buffer; });
    close(victim != nullptr ? *victim : *by_age_.begin()->second,
          victim != nullptr ? ShedReason::kNone : ShedReason::kWindowOps);
  }
  auto op = std::make_unique<Op>();
  op->key = key;
  op->opened = ++opened_;
  Op* const raw = op.get();
  ops_.emplace(key, std::move(op));
  by_age_.emplace(raw->opened, raw);
  ++open_;
  ++counters_.ops_opened;
  return raw;
}

void OpWindow::close(Op& op, ShedReason reason) {
  if (op.closed) return;
  if (op.buffer) collect(op);
  op.closed = true;
  op.shed = reason;
  op.buffer.reset();
  by_age_.erase(op.opened);
  --open_;
  if (reason != ShedReason::kNone) {
    counters_.shed_window_ops += reason == ShedReason::kWindowOps;
    counters_.shed_window_bytes += reason == ShedReason::kWindowBytes;
    counters_.shed_limbo += reason == ShedReason::kLimbo;
    counters_.shed_fragments += reason == ShedReason::kFragments;
    if (shed_.size() < kMaxReports)
      shed_.push_back({op.key, reason});
    else
      ++counters_.reports_dropped;
    mark_dirty(op);
  }
  closed_.push_back(op.key);
  while (closed_.size() > config_.closed_ops) {
    const auto at = ops_.find(closed_.front());
    closed_.pop_front();
    if (at == ops_.end()) continue;
    std::replace(cache_.begin(), cache_.end(), at->second.get(), static_cast<Op*>(nullptr));
    ops_.erase(at);
  }
}

void OpWindow::mark_dirty(Op& op) {
  if (op.dirty) return;
  op.dirty = true;
  dirty_.push_back(op.key);
  // Nobody asked for a long time: forget the keys of ops that are gone.
  if (dirty_.size() > 2 * (config_.window_ops + std::size_t{config_.closed_ops}) + 16)
    std::erase_if(dirty_, [&](const OpKey& key) {
      const Op* known = find(key);
      return known == nullptr || !known->dirty;
    });
}

// Moves what an op buffer reports into the window's lists.
void OpWindow::collect(Op& op) {
  if (!op.buffer->take_changed()) return;
  mark_dirty(op);
  for (const std::uint32_t flow : op.buffer->take_proven_flows()) {
    if (proven_flows_.size() < kMaxReports)
      proven_flows_.push_back({flow, op.key});
    else
      ++counters_.reports_dropped;
  }
  for (ConflictReport& report : op.buffer->take_conflicts()) {
    if (conflicts_.size() < kMaxReports)
      conflicts_.push_back(std::move(report));
    else
      ++counters_.reports_dropped;
  }
}

void OpWindow::add(const Segment& segment) {
  ++counters_.segments;
  counters_.bytes += segment.bytes;
  Op*& cached = cache_[(segment.op.tag ^ segment.op.comm << 2) % cache_.size()];
  Op* op = cached;
  if (op == nullptr || op->key != segment.op) {
    op = find(segment.op);
    if (op == nullptr) {
      if (segment.type == CollectiveType::kUnknown) {
        ++counters_.rejected_type;
        return;
      }
      const auto floor = floors_.find(segment.op.comm);
      if (floor != floors_.end() && segment.op.tag < floor->second) {
        ++counters_.late_segments;
        return;
      }
      if (segment.type == CollectiveType::kAllReduce &&
          !schedule_->has_edge(segment.source_rank, segment.target_rank)) {
        ++counters_.rejected_edge;
        return;
      }
      op = open(segment.op);
    }
    cached = op;
  }
  if (op->closed) {
    ++counters_.late_segments;
    return;
  }
  if (op->type == CollectiveType::kUnknown) {
    op->type = segment.type;
    if (segment.type == CollectiveType::kAllReduce)
      op->buffer =
          std::make_unique<OpBuffer>(op->key, *schedule_, pool_, limbo_, counters_, config_.op, sizes_.sizes());
    mark_dirty(*op);
  }
  if (segment.type != op->type) {
    ++counters_.rejected_type;
    return;
  }
  if (!op->buffer) {
    ++counters_.other_collective_segments;
    return;
  }
  react(op, op->buffer->add(segment), &segment);
}

// Makes room until the op has what it asked for, or is itself the one that is given up.
void OpWindow::react(Op* op, AddOutcome outcome, const Segment* segment) {
  for (;;) {
    if (outcome == AddOutcome::kFragmented) {
      close(*op, ShedReason::kFragments);
      return;
    }
    if (outcome == AddOutcome::kLimboFull) {
      Op* victim = oldest([](const Op& other) { return other.buffer && !other.bound && other.buffer->has_limbo(); });
      if (victim == nullptr) victim = op;
      close(*victim, ShedReason::kLimbo);
      if (victim == op) return;
    } else if (outcome == AddOutcome::kNoMemory || outcome == AddOutcome::kStuck) {
      Op* victim = oldest([](const Op& other) { return other.buffer && other.buffer->holds_memory(); });
      if (victim == nullptr) victim = op;
      close(*victim, victim->bound ? ShedReason::kNone : ShedReason::kWindowBytes);
      if (victim == op) return;
    } else {
      collect(*op);
      return;
    }
    outcome = outcome == AddOutcome::kStuck || segment == nullptr ? op->buffer->settle() : op->buffer->add(*segment);
  }
}

void OpWindow::set_sizes(const SizeTable& sizes) {
  sizes_ = sizes;
  // Keys, not pointers: making room for one op may close another of the list.
  for (const OpKey key : open_ops()) {
    Op* op = find(key);
    if (op == nullptr || op->closed || !op->buffer || op->bound) continue;
    mark_dirty(*op);
    react(op, op->buffer->widen(sizes_.sizes()), nullptr);
  }
}

void OpWindow::offer_sizes(OpKey key, std::span<const OpSize> sizes) {
  Op* op = find(key);
  if (op == nullptr || op->closed || !op->buffer || op->bound) return;
  react(op, op->buffer->widen(sizes), nullptr);
}

OpSummary OpWindow::describe(const Op& op) const {
  OpSummary summary;
  summary.op = op.key;
  summary.type = op.type;
  summary.sizes_version = sizes_.version();
  summary.bound = op.bound;
  summary.closed = op.closed;
  summary.shed = op.shed;
  if (!op.buffer) return summary;
  for (const OpSize& size : op.buffer->candidates()) summary.lengths.push_back(size.bytes);
  std::sort(summary.lengths.begin(), summary.lengths.end());
  summary.lengths.erase(std::unique(summary.lengths.begin(), summary.lengths.end()), summary.lengths.end());
  summary.complete = op.buffer->complete();
  summary.conflict = op.buffer->conflicted();
  return summary;
}

std::optional<OpSummary> OpWindow::summary(OpKey key) const {
  const Op* op = find(key);
  if (op == nullptr) return std::nullopt;
  return describe(*op);
}

std::vector<OpSummary> OpWindow::summaries_changed() {
  std::vector<OpSummary> summaries;
  summaries.reserve(dirty_.size());
  for (const OpKey key : dirty_) {
    Op* op = find(key);
    if (op == nullptr) continue;
    op->dirty = false;
    summaries.push_back(describe(*op));
  }
  dirty_.clear();
  return summaries;
}

std::optional<std::uint32_t> OpWindow::read(OpKey key, std::uint64_t op_bytes, std::uint64_t offset_bytes) const {
  const Op* op = find(key);
  if (op == nullptr || !op->buffer) return std::nullopt;
  std::uint32_t value = 0;
  if (!op->buffer->read(op_bytes, offset_bytes, {reinterpret_cast<std::uint8_t*>(&value), sizeof value}))
    return std::nullopt;
  return value;
}

Result<std::shared_ptr<const OpBytes>> OpWindow::bind(OpKey key, std::uint64_t op_bytes) {
  Op* op = find(key);
  if (op == nullptr || !op->buffer)
    return fail(ErrorCode::kOpUnknown, "the window does not hold this all-reduce",
                "comm " + std::to_string(key.comm) + " tag " + std::to_string(key.tag));
  auto bytes = op->buffer->bind(op_bytes);
  collect(*op);
  if (bytes && !op->bound) {
    op->bound = true;
    ++counters_.ops_bound;
    mark_dirty(*op);
  }
  return bytes;
}

std::vector<Interval> OpWindow::missing(OpKey key, std::uint64_t op_bytes) const {
  const Op* op = find(key);
  if (op == nullptr || !op->buffer) return {{0, op_bytes}};
  return op->buffer->missing(op_bytes);
}

std::optional<Copies> OpWindow::copies(OpKey key) const {
  const Op* op = find(key);
  if (op == nullptr || !op->buffer) return std::nullopt;
  return op->buffer->copies();
}

void OpWindow::abandon(OpKey key) {
  Op* op = find(key);
  if (op == nullptr || op->closed) return;
  ++counters_.ops_abandoned;
  close(*op, ShedReason::kNone);
}

void OpWindow::abandon_below(std::uint32_t comm, std::uint32_t tag) {
  if (!floors_.contains(comm) && floors_.size() >= config_.max_comms) floors_.erase(floors_.begin());
  std::uint32_t& floor = floors_[comm];
  floor = std::max(floor, tag);
  std::vector<Op*> over;
  for (const auto& [age, op] : by_age_)
    if (op->key.comm == comm && op->key.tag < floor) over.push_back(op);
  for (Op* op : over) {
    ++counters_.ops_abandoned;
    close(*op, ShedReason::kNone);
  }
}

std::vector<OpKey> OpWindow::open_ops() const {
  std::vector<OpKey> keys;
  keys.reserve(by_age_.size());
  for (const auto& [age, op] : by_age_) keys.push_back(op->key);
  return keys;
}

}  // namespace gradtap::dataplane
