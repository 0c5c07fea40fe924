#include "dataplane/nccl_comm.h"

#include <algorithm>
#include <iterator>

namespace gradtap::dataplane {
namespace {

constexpr std::uint64_t kNumberingEveryNs = 5'000'000;
constexpr std::size_t kRemembered = 4096;    // all-reduces that are over
constexpr std::uint32_t kOthersNamed = 256;  // at once, the newest

}  // namespace

void NcclComm::add(NcclConnection& connection) {
  if (connection.source_rank() >= edges_.size()) return;
  auto& edge = edges_[connection.source_rank()];
  const auto at = std::lower_bound(edge.begin(), edge.end(), &connection,
                                   [](const auto* a, const auto* b) { return a->target_qp() < b->target_qp(); });
  edge.insert(at, &connection);
}

std::vector<NcclPattern> NcclComm::patterns_on(std::uint32_t source, std::uint32_t channel) const {
  std::vector<NcclPattern> patterns;
  for (std::size_t id = 0; id < schedules_.size(); ++id)
    if (channel < schedules_[id].op().channels)
      patterns.push_back(NcclPattern::ring(static_cast<std::uint32_t>(id), schedules_[id], source, channel));
  return patterns;
}

void NcclComm::set_sizes(const SizeTable& sizes) {
  bool more = false;
  for (const OpSize& size : sizes.sizes()) {
    const auto op =
        nccl_plan(config_.tuning, NcclCollective::kAllReduce, size.bytes / size.element_bytes, size.element_bytes);
    const auto schedule = op ? NcclSchedule::of(*op) : std::nullopt;
    if (!schedule) continue;
    const bool known = std::any_of(schedules_.begin(), schedules_.end(),
                                   [&](const NcclSchedule& old) { return old.op() == schedule->op(); });
    if (known) continue;
    schedules_.push_back(*schedule);
    more = true;
  }
  if (!more) return;
  for (std::uint32_t source = 0; source < edges_.size(); ++source)
    for (NcclConnection* const connection : edges_[source])
      if (const auto channel = connection->channel())
        connection->attach(*this, *channel, patterns_on(source, *channel));
}

// A connection is numbered once its neighbours have had time to appear.
void NcclComm::number_channels(std::vector<NcclConnection*>& edge) {
  const std::uint64_t grace_ns = config_.channel_grace_ms * 1'000'000;
  bool open = false;
  for (const NcclConnection* const connection : edge) {
    if (connection->attached_to(*this)) continue;
    if (emission_.now_ns - connection->first_ns() < grace_ns) return;
    open = true;
  }
  if (!open) return;
  for (std::uint32_t channel = 0; channel < edge.size(); ++channel) {
    NcclConnection& connection = *edge[channel];
    if (channel >= config_.tuning.channels) {
      ++emission_.counters->surplus_connections;
      edge.resize(channel);
      return;
    }
    if (connection.attached_to(*this)) {
      if (connection.channel() == channel) continue;
      // What it gave out as another channel's was wrong, and only the witness stands behind it.
      ++emission_.counters->renumbered_channels;
    }
    connection.detach();
    connection.attach(*this, channel, patterns_on(connection.source_rank(), channel));
  }
}

// Connections of one edge that carry all-reduces, on the edge that has most of them.
std::size_t NcclComm::proven_channels() const {
  std::size_t most = 0;
  for (const auto& edge : edges_) {
    const auto proven = std::count_if(edge.begin(), edge.end(), [](const NcclConnection* connection) {
      return connection->all_reduces() > 0 && !connection->parse().lost();
    });
    most = std::max(most, static_cast<std::size_t>(proven));
  }
  return most;
}

void NcclComm::tick() {
  if (!schedules_.empty() && emission_.now_ns >= next_numbering_ns_) {
    next_numbering_ns_ = emission_.now_ns + kNumberingEveryNs;
    std::vector<std::vector<NcclConnection*>*> fullest_first;
    for (auto& edge : edges_)
      if (!edge.empty()) fullest_first.push_back(&edge);
    std::sort(fullest_first.begin(), fullest_first.end(),
              [](const auto* a, const auto* b) { return a->size() > b->size(); });
    for (auto* const edge : fullest_first)
      if (edge->size() >= std::min<std::size_t>(proven_channels(), config_.tuning.channels)) number_channels(*edge);
  }
  number_operations();
}

NcclComm::AllReduce* NcclComm::at(std::uint64_t a) {
  // The oldest make room; an all-reduce far beyond what was numbered is nobody's.
  while (a >= base_ + config_.max_open && numbered_ > 0) {
    open_.pop_front();
    ++base_;
    --numbered_;
  }
  if (a < base_ || a - base_ >= config_.max_open) return nullptr;
  while (open_.size() <= a - base_) {
    open_.emplace_back();
    open_.back().begun.resize(edges_.size());
  }
  return &open_[a - base_];
}

void NcclComm::begun(std::uint32_t source, std::uint64_t a, std::uint64_t foreign) {
  AllReduce* const all_reduce = at(a);
  if (all_reduce == nullptr || all_reduce->begun[source]) return;
  all_reduce->begun[source] = true;
  if (all_reduce->begun_count++ == 0) all_reduce->first_ns = emission_.now_ns;
  all_reduce->foreign = std::max(all_reduce->foreign, foreign);
  number_operations();
}

void NcclComm::narrow(std::uint64_t a, const std::vector<std::uint32_t>& ids) {
  AllReduce* const all_reduce = at(a);
  if (all_reduce == nullptr) return;
  if (all_reduce->ids.empty()) {
    all_reduce->ids = ids;
    unsettled_ = true;
    return;
  }
  std::vector<std::uint32_t> both;
  std::set_intersection(ids.begin(), ids.end(), all_reduce->ids.begin(), all_reduce->ids.end(),
                        std::back_inserter(both));
  if (both.empty() || both.size() == all_reduce->ids.size()) return;  // none: they mean different all-reduces
  all_reduce->ids = std::move(both);
  unsettled_ = true;
}

const std::vector<std::uint32_t>* NcclComm::candidates(std::uint64_t a) const {
  if (a < base_ || a - base_ >= open_.size() || open_[a - base_].ids.empty()) return nullptr;
  return &open_[a - base_].ids;
}

// Operations of other kinds are told too: the step coordinator counts them.
void NcclComm::name_others(std::uint32_t first, std::uint32_t end) {
  if (end - first > kOthersNamed) first = end - kOthersNamed;
  for (; first < end; ++first) {
    Segment segment;
    segment.op = {number_, first};
    segment.type = CollectiveType::kBroadcast;
    emission_.sink->segment(segment);
  }
}

void NcclComm::number_operations() {
  if (settling_) return;
  settling_ = true;
  for (bool again = true; again;) {
    const std::uint64_t before = numbered_;
    for (; numbered_ < open_.size(); ++numbered_) {
      AllReduce& all_reduce = open_[numbered_];
      if (all_reduce.begun_count == 0) break;
      if (all_reduce.begun_count < edges_.size() &&
          emission_.now_ns - all_reduce.first_ns < config_.grace_ms * 1'000'000)
        break;
      last_foreign_ = std::max(last_foreign_, all_reduce.foreign);
      all_reduce.tag = static_cast<std::uint32_t>(base_ + numbered_ + last_foreign_);
      name_others(next_tag_, all_reduce.tag);
      next_tag_ = all_reduce.tag + 1;
    }
    again = numbered_ != before || unsettled_;
    unsettled_ = false;
    if (!again) break;
    for (auto& edge : edges_)
      for (NcclConnection* const connection : edge)
        if (connection->attached_to(*this)) connection->settle();
  }
  settling_ = false;
}

std::optional<std::uint32_t> NcclComm::tag(std::uint64_t a) const {
  if (a < base_ || a - base_ >= numbered_) return std::nullopt;
  return open_[a - base_].tag;
}

std::optional<std::uint32_t> NcclComm::channels(std::uint64_t a) const {
  const std::vector<std::uint32_t>* const ids = candidates(a);
  if (ids == nullptr) return std::nullopt;
  const std::uint32_t channels = schedules_[ids->front()].op().channels;
  for (const std::uint32_t id : *ids)
    if (schedules_[id].op().channels != channels) return std::nullopt;
  return channels;
}

void NcclComm::forget_below(std::uint32_t tag) {
  while (numbered_ > kRemembered && open_.front().tag < tag) {
    open_.pop_front();
    ++base_;
    --numbered_;
  }
}

}  // namespace gradtap::dataplane
