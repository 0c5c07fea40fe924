#include "actors/cluster_state.h"

#include <algorithm>
#include <utility>

namespace gradtap::actors {

namespace {

EpochPtr epoch_zero(const ClusterConfig& config) {
  auto epoch = std::make_shared<storage::StoredEpoch>();
  epoch->record = first_epoch(config);
  epoch->record.number = 0;
  return epoch;
}

// The same members stand at the same places; more may have come.
bool follows(const schema::EpochRecord& next, const schema::EpochRecord& now) {
  if (next.number <= now.number || next.members.size() < now.members.size()) return false;
  for (std::size_t i = 0; i < now.members.size(); ++i)
    if (next.members[i].name != now.members[i].name) return false;
  return true;
}

}  // namespace

std::string_view member_state_name(schema::MemberState state) {
  switch (state) {
    case schema::MemberState::kIn:
      return "in";
    case schema::MemberState::kDraining:
      return "draining";
    case schema::MemberState::kOut:
      return "out";
  }
  return "unknown";
}

schema::EpochRecord first_epoch(const ClusterConfig& config) {
  schema::EpochRecord record;
  record.number = 1;
  record.replicas = static_cast<std::uint32_t>(config.replicas);
  for (const MemberSection& section : config.members) {
    schema::EpochMember member;
    member.name = section.name;
    member.link = section.link;
    member.http = section.http;
    member.domain = section.domain;
    member.capacity = static_cast<std::uint32_t>(section.capacity);
    record.members.push_back(std::move(member));
  }
  record.cause = "the cluster file";
  return record;
}

ClusterState::ClusterState(ClusterConfig config, EpochPtr epoch, MemberIndex self)
    : config_(std::move(config)), self_(self), epoch_(std::move(epoch)), seen_(epoch_->record.members.size()) {
  seen_[self_].live = true;
}

ClusterState::ClusterState(ClusterConfig config, MemberIndex self) : ClusterState(config, epoch_zero(config), self) {}

bool ClusterState::set_epoch(EpochPtr epoch) {
  const std::lock_guard lock(mutex_);
  if (!follows(epoch->record, epoch_->record)) return false;
  for (std::size_t i = 0; i < epoch_->record.members.size(); ++i) {
    const schema::EpochMember& next = epoch->record.members[i];
    // Another life of the same name: what is known of the one before does not hold for it.
    if (i != self_ &&
        (next.state == schema::MemberState::kOut || next.since_epoch != epoch_->record.members[i].since_epoch))
      seen_[i] = Seen{};
  }
  epoch_ = std::move(epoch);
  seen_.resize(epoch_->record.members.size());
  return true;
}

EpochPtr ClusterState::epoch() const {
  const std::lock_guard lock(mutex_);
  return epoch_;
}

std::size_t ClusterState::size() const {
  return epoch()->record.members.size();
}

schema::EpochMember ClusterState::member(MemberIndex member) const {
  const EpochPtr now = epoch();
  return member < now->record.members.size() ? now->record.members[member] : schema::EpochMember{};
}

std::string ClusterState::name(MemberIndex member) const {
  return this->member(member).name;
}

std::vector<std::string> ClusterState::names() const {
  std::vector<std::string> names;
  for (const schema::EpochMember& member : epoch()->record.members) names.push_back(member.name);
  return names;
}

std::optional<MemberIndex> ClusterState::index_of(std::string_view name) const {
  const EpochPtr now = epoch();
  for (MemberIndex member = 0; member < now->record.members.size(); ++member)
    if (now->record.members[member].name == name) return member;
  return std::nullopt;
}

bool ClusterState::is_out(MemberIndex member) const {
  const EpochPtr now = epoch();
  return member >= now->record.members.size() || now->record.members[member].state == schema::MemberState::kOut;
}

std::vector<std::vector<MemberIndex>> ClusterState::owners(std::size_t shards) const {
  const EpochPtr now = epoch();
  const ShardPlacement placed = now->record.owners.size() == shards
                                    ? now->record.owners
                                    : place_shards(now->record.members, now->record.replicas, shards, {});
  std::vector<std::vector<MemberIndex>> owners;
  owners.reserve(placed.size());
  for (const auto& list : placed) owners.emplace_back(list.begin(), list.end());
  return owners;
}

const ClusterState::Seen& ClusterState::seen(MemberIndex member) const {
  static const Seen nothing;
  return member < seen_.size() ? seen_[member] : nothing;
}

void ClusterState::set_live(MemberIndex member, bool live) {
  const std::lock_guard lock(mutex_);
  if (member >= seen_.size()) return;
  seen_[member].live = live || member == self_;
  if (!seen_[member].live) seen_[member].ready = false;
}

void ClusterState::set_ready(MemberIndex member, bool ready) {
  const std::lock_guard lock(mutex_);
  if (member < seen_.size()) seen_[member].ready = ready;
}

void ClusterState::set_tap(MemberIndex member, bool tap) {
  const std::lock_guard lock(mutex_);
  if (member < seen_.size()) seen_[member].tap = tap;
}

void ClusterState::set_store(MemberIndex member, storage::StoreHello hello) {
  const std::lock_guard lock(mutex_);
  if (member < seen_.size()) seen_[member].store = std::move(hello);
}

storage::StoreHello ClusterState::store(MemberIndex member) const {
  const std::lock_guard lock(mutex_);
  return seen(member).store;
}

bool ClusterState::live(MemberIndex member) const {
  const std::lock_guard lock(mutex_);
  return seen(member).live;
}

bool ClusterState::ready(MemberIndex member) const {
  const std::lock_guard lock(mutex_);
  return seen(member).live && seen(member).ready;
}

bool ClusterState::tap(MemberIndex member) const {
  const std::lock_guard lock(mutex_);
  return seen(member).tap;
}

std::vector<MemberIndex> ClusterState::live_peers() const {
  const std::lock_guard lock(mutex_);
  std::vector<MemberIndex> peers;
  for (MemberIndex member = 0; member < seen_.size(); ++member)
    if (member != self_ && seen_[member].live) peers.push_back(member);
  return peers;
}

std::optional<MemberIndex> ClusterState::home() const {
  const std::lock_guard lock(mutex_);
  for (const schema::MemberState state : {schema::MemberState::kIn, schema::MemberState::kDraining})
    for (MemberIndex member = 0; member < seen_.size(); ++member)
      if (seen_[member].live && seen_[member].ready && epoch_->record.members[member].state == state) return member;
  return std::nullopt;
}

}  // namespace gradtap::actors
