#include "dataplane/roce_flow_table.h"

#include <algorithm>

#include "common/random.h"

namespace gradtap::dataplane {

std::size_t RoceFlowTable::KeyHash::operator()(const Key& key) const noexcept {
  return splitmix64_mix(load_le<std::uint64_t>(&key.target.bytes[0]) ^
                        splitmix64_mix(load_le<std::uint64_t>(&key.target.bytes[8]) + key.qp));
}

RoceFlowTable::RoceFlowTable(const RoceFlowTableConfig& config, RoceFlowUser& user) : config_(config), user_(user) {
  budget_.limit = config.total_reorder_bytes;
  budget_.memory = config.memory;
}

RoceFlowTable::Entry* RoceFlowTable::open(const RoceFrame& frame, std::uint32_t epoch, std::uint64_t now_ns) {
  if (config_.forget && entries_.size() >= config_.max_flows) make_room(now_ns);
  if (entries_.size() >= config_.max_flows) {
    ++counters_.refused;
    return nullptr;
  }
  auto entry = std::make_unique<Entry>();
  entry->identity = {flows_++, epoch, frame.source, frame.target, frame.target_qp, frame.source_port};
  entry->flow = std::make_unique<RoceFlow>(config_.flow, budget_);
  entry->sink = &user_.opened(entry->identity);
  entry->last_ns = now_ns;
  Entry* const opened = entry.get();
  entries_.push_back(std::move(entry));
  current_[{frame.target, frame.target_qp}] = opened;
  pair(*opened);
  by_port_.emplace(frame.source_port, opened);
  return opened;
}

// The flow in the other direction with the same source port. Where several have it, the rule that made the port must
// give it for both numbers.
void RoceFlowTable::pair(Entry& entry) {
  Entry* only = nullptr;
  std::size_t candidates = 0;
  const auto [begin, end] = by_port_.equal_range(entry.identity.source_port);
  for (auto at = begin; at != end; ++at) {
    Entry& other = *at->second;
    if (other.ended || other.identity.source != entry.identity.target || other.identity.target != entry.identity.source)
      continue;
    if (roce_source_port(entry.identity.target_qp, other.identity.target_qp) == entry.identity.source_port) {
      only = &other;
      candidates = 1;
      break;
    }
    only = &other;
    ++candidates;
  }
  if (candidates != 1 || only->partner != nullptr) return;
  entry.partner = only;
  only->partner = &entry;
}

RoceFlowTable::Entry* RoceFlowTable::renew(Entry& entry, const RoceFrame& frame, std::uint64_t now_ns,
                                           std::uint64_t packets) {
  ++counters_.renewed;
  RoceFlowContext flow_context = context(entry, now_ns, packets);
  entry.flow->finish(flow_context);
  const std::uint32_t epoch = entry.identity.epoch + 1;
  unlink(entry);
  if (config_.forget) forget_if([&](const Entry& one) { return &one == &entry; });
  return open(frame, epoch, now_ns);
}

void RoceFlowTable::unlink(Entry& entry) {
  entry.ended = true;
  if (entry.partner != nullptr) entry.partner->partner = nullptr;
  entry.partner = nullptr;
  const auto [begin, end] = by_port_.equal_range(entry.identity.source_port);
  for (auto at = begin; at != end; ++at) {
    if (at->second == &entry) {
      by_port_.erase(at);
      break;
    }
  }
}

template <class F>
void RoceFlowTable::forget_if(F gone) {
  std::erase_if(entries_, [&](const std::unique_ptr<Entry>& entry) {
    if (!gone(*entry)) return false;
    const auto current = current_.find({entry->identity.target, entry->identity.target_qp});
    if (current != current_.end() && current->second == entry.get()) current_.erase(current);
    std::replace(near_.begin(), near_.end(), entry.get(), static_cast<Entry*>(nullptr));
    user_.closed(entry->identity);
    ++counters_.forgotten;
    return true;
  });
}

// A sixteenth at once, so that it need not be done for each new flow.
void RoceFlowTable::make_room(std::uint64_t now_ns) {
  std::vector<Entry*> idle;
  for (const auto& entry : entries_)
    if (now_ns - entry->last_ns >= config_.idle_ms * 1'000'000 && user_.dispensable(entry->identity))
      idle.push_back(entry.get());
  const std::size_t count = std::min<std::size_t>(idle.size(), config_.max_flows / 16 + 1);
  std::partial_sort(idle.begin(), idle.begin() + static_cast<std::ptrdiff_t>(count), idle.end(),
                    [](const Entry* a, const Entry* b) { return a->last_ns < b->last_ns; });
  idle.resize(count);
  for (Entry* const entry : idle) unlink(*entry);
  std::sort(idle.begin(), idle.end());
  forget_if([&](Entry& entry) { return entry.ended && std::binary_search(idle.begin(), idle.end(), &entry); });
}

RoceFlowTable::Entry* RoceFlowTable::entry_of(const RoceFrame& frame, std::uint64_t now_ns, std::uint64_t packets) {
  Entry*& near = near_[frame.target_qp % kNear];
  const auto is_of = [&](const Entry& entry) {
    return entry.identity.source_port == frame.source_port && entry.identity.source == frame.source;
  };
  if (near != nullptr && near->identity.target_qp == frame.target_qp && near->identity.target == frame.target &&
      is_of(*near) && !near->ended)
    return near;
  const auto found = current_.find({frame.target, frame.target_qp});
  // Whoever forgets clears `near`: it is set behind that.
  Entry* const entry = found == current_.end() ? open(frame, 0, now_ns)
                       : is_of(*found->second) ? found->second
                                               : renew(*found->second, frame, now_ns, packets);
  return near = entry;
}

void RoceFlowTable::frame(const RoceFrame& frame, std::uint64_t now_ns, std::uint64_t packets) {
  switch (frame.meaning.kind) {
    case RoceKind::kCongestion:
      ++counters_.congestion;
      return;
    case RoceKind::kDatagram:
      ++(frame.target_qp == 1 ? counters_.management : counters_.datagrams);
      return;
    case RoceKind::kUnknown:
      ++counters_.unknown;
      return;
    case RoceKind::kResponse:
      ++counters_.responses;
      return;
    case RoceKind::kAcknowledgement: {
      Entry* const entry = entry_of(frame, now_ns, packets);
      if (entry == nullptr) return;
      entry->last_ns = now_ns;
      if (frame.is_ack()) {
        ++entry->acknowledgements;
        ++counters_.acknowledgements;
        if (entry->partner != nullptr) entry->partner->flow->acknowledged(frame.psn);
      } else if (frame.is_nak()) {
        ++entry->naks;
        ++counters_.naks;
      } else {
        ++counters_.not_ready;
      }
      return;
    }
    case RoceKind::kWrite:
    case RoceKind::kRequest:
      break;
  }
  Entry* entry = entry_of(frame, now_ns, packets);
  if (entry == nullptr) return;
  RoceFlowContext flow_context = context(*entry, now_ns, packets);
  if (!entry->flow->request(frame, flow_context)) {
    entry = renew(*entry, frame, now_ns, packets);
    if (entry == nullptr) return;
    RoceFlowContext new_context = context(*entry, now_ns, packets);
    if (!entry->flow->request(frame, new_context)) return;  // a flow without a past contradicts nothing
  }
  ++entry->requests;
  entry->last_ns = now_ns;
}

void RoceFlowTable::tick(std::uint64_t now_ns, std::uint64_t packets) {
  for (const auto& entry : entries_) {
    if (entry->ended || !entry->flow->waiting()) continue;
    RoceFlowContext flow_context = context(*entry, now_ns, packets);
    entry->flow->tick(flow_context);
  }
}

void RoceFlowTable::flush_holes(std::uint64_t now_ns, std::uint64_t packets) {
  for (const auto& entry : entries_) {
    if (entry->ended || !entry->flow->waiting()) continue;
    RoceFlowContext flow_context = context(*entry, now_ns, packets);
    entry->flow->flush_holes(flow_context);
  }
}

void RoceFlowTable::finish(std::uint64_t now_ns, std::uint64_t packets) {
  for (const auto& entry : entries_) {
    if (entry->ended) continue;
    RoceFlowContext flow_context = context(*entry, now_ns, packets);
    entry->flow->finish(flow_context);
  }
}

}  // namespace gradtap::dataplane
