#include "dataplane/flow_directory.h"

#include <algorithm>

#include "common/random.h"

namespace gradtap::dataplane {

std::size_t FlowKeyHash::operator()(const FlowKey& key) const {
  const auto word = [](const std::uint8_t* p) { return load_le<std::uint64_t>(p); };
  std::uint64_t hash = splitmix64_mix(word(&key.source.bytes[8]) + kSplitmix64Increment * word(&key.source.bytes[0]));
  hash = splitmix64_mix(hash + word(&key.target.bytes[8]) + kSplitmix64Increment * word(&key.target.bytes[0]));
  return splitmix64_mix(hash + (std::uint64_t{key.source_port} << 16 | key.target_port));
}

FlowKey FlowDirectory::canonical(const FlowKey& key) {
  const FlowKey other = key.reversed();
  return key <= other ? key : other;
}

FlowAdmission FlowDirectory::oriented(const Connection& connection, const FlowKey& key) {
  FlowAdmission admission = connection.admission;
  if (key != connection.key) std::swap(admission.forward, admission.backward);
  return admission;
}

void EndpointTable::add(const IpAddress& address, std::uint16_t rank) {
  if (2 * (size_ + 1) > slots_.size()) {
    std::vector<Slot> more(2 * slots_.size());
    more.swap(slots_);
    size_ = 0;
    for (const Slot& slot : more)
      if (slot.taken) add(slot.address, slot.rank);
  }
  std::size_t at = home(address);
  while (slots_[at & (slots_.size() - 1)].taken) ++at;
  slots_[at & (slots_.size() - 1)] = {address, rank, true};
  ++size_;
}

Status FlowDirectory::set_endpoints(std::span<const IpAddress> endpoints) {
  auto table = std::make_shared<EndpointTable>();
  for (std::size_t i = 0; i < endpoints.size(); ++i) {
    if (table->rank(endpoints[i])) {
      return fail(ErrorCode::kUnknownEndpoint, "two ranks share one address", endpoints[i].text(),
                  "one address per rank", {}, "give every rank an address of its own");
    }
    table->add(endpoints[i], static_cast<std::uint16_t>(i));
  }
  const std::scoped_lock lock(mutex_);
  endpoints_ = std::move(table);
  generation_.fetch_add(1, std::memory_order_release);
  return {};
}

std::shared_ptr<const EndpointTable> FlowDirectory::endpoints() const {
  const std::scoped_lock lock(mutex_);
  return endpoints_;
}

bool FlowDirectory::make_room() {
  if (connections_.size() < max_connections_) return true;
  std::erase_if(connections_, [&](const auto& entry) {
    if (!entry.second.closed) return false;
    flows_.erase(entry.second.admission.forward.flow);
    flows_.erase(entry.second.admission.backward.flow);
    return true;
  });
  return connections_.size() < max_connections_;
}

void FlowDirectory::name_flows(Connection& connection) {
  connection.admission.forward.flow = next_flow_++;
  connection.admission.backward.flow = next_flow_++;
  connection.comm = kNoComm;
  connection.closed = false;
  flows_[connection.admission.forward.flow] = canonical(connection.key);
  flows_[connection.admission.backward.flow] = canonical(connection.key);
}

std::optional<FlowAdmission> FlowDirectory::admit(const FlowKey& key, std::uint16_t source_rank,
                                                  std::uint16_t target_rank, std::uint16_t queue) {
  const std::scoped_lock lock(mutex_);
  const FlowKey name = canonical(key);
  const auto found = connections_.find(name);
  if (found != connections_.end()) return oriented(found->second, key);
  if (!make_room()) return std::nullopt;
  Connection connection;
  connection.key = key;
  connection.admission.forward = {0, source_rank, target_rank};
  connection.admission.backward = {0, target_rank, source_rank};
  connection.admission.owner_queue = queue;
  name_flows(connection);
  return connections_.emplace(name, connection).first->second.admission;
}

std::optional<FlowAdmission> FlowDirectory::renew(const FlowKey& key) {
  const std::scoped_lock lock(mutex_);
  const auto found = connections_.find(canonical(key));
  if (found == connections_.end()) return std::nullopt;
  flows_.erase(found->second.admission.forward.flow);
  flows_.erase(found->second.admission.backward.flow);
  ++found->second.admission.epoch;
  name_flows(found->second);
  return oriented(found->second, key);
}

void FlowDirectory::closed(std::uint32_t flow) {
  const std::scoped_lock lock(mutex_);
  const auto found = flows_.find(flow);
  if (found == flows_.end()) return;
  connections_.at(found->second).closed = true;
  // A run that ended in its start leaves pairs that have counted further than others. When nothing of it is open any
  // more, all pairs go on from one number, or the comms of the next run would never meet.
  const bool open = std::any_of(connections_.begin(), connections_.end(),
                                [](const auto& entry) { return !entry.second.closed && entry.second.comm != kNoComm; });
  if (open) return;
  for (const auto& [pair, next] : next_comm_) comm_base_ = std::max(comm_base_, next);
}

std::uint32_t FlowDirectory::comm(std::uint32_t flow) {
  const std::scoped_lock lock(mutex_);
  const auto found = flows_.find(flow);
  if (found == flows_.end()) return kNoComm;
  Connection& connection = connections_.at(found->second);
  if (connection.comm == kNoComm) {
    const std::uint16_t a = connection.admission.forward.source_rank;
    const std::uint16_t b = connection.admission.forward.target_rank;
    std::uint32_t& next = next_comm_[std::minmax(a, b)];
    connection.comm = std::max(next, comm_base_);
    next = connection.comm + 1;
  }
  return connection.comm;
}

std::uint32_t FlowDirectory::ended_comms() const {
  const std::scoped_lock lock(mutex_);
  return comm_base_;
}

void FlowDirectory::reset(std::uint32_t first_kept) {
  const std::scoped_lock lock(mutex_);
  const std::uint32_t limit = std::min(first_kept, next_flow_);
  std::erase_if(connections_, [&](const auto& entry) {
    const FlowAdmission& admission = entry.second.admission;
    if (std::max(admission.forward.flow, admission.backward.flow) >= limit) return false;
    flows_.erase(admission.forward.flow);
    flows_.erase(admission.backward.flow);
    return true;
  });
  // Ordinals start again only when nothing is left that holds one.
  if (connections_.empty()) {
    next_comm_.clear();
    comm_base_ = 0;
  }
  closed_below_.store(std::max(closed_below_.load(), limit), std::memory_order_release);
  generation_.fetch_add(1, std::memory_order_release);
}

std::uint32_t FlowDirectory::new_flow() {
  const std::scoped_lock lock(mutex_);
  return next_flow_++;
}

std::uint32_t FlowDirectory::next_flow() const {
  const std::scoped_lock lock(mutex_);
  return next_flow_;
}

std::size_t FlowDirectory::connections() const {
  const std::scoped_lock lock(mutex_);
  return connections_.size();
}

void FlowDirectory::refuse(std::string text) {
  const std::lock_guard lock(mutex_);
  refusal_ = std::move(text);
}

std::string FlowDirectory::refusal() const {
  const std::lock_guard lock(mutex_);
  return refusal_;
}

}  // namespace gradtap::dataplane
