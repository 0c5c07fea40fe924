#include "storage/lease.h"

#include <algorithm>
#include <set>
#include <utility>

#include "schema/envelope.h"

namespace gradtap::storage {
namespace {

constexpr std::size_t kHolderBytesMax = 256;

}  // namespace

Result<Lease> Lease::take(ObjectStore& store, std::string_view job, LineageId lineage, StepNumber step,
                          std::string_view holder, Random& random) {
  const std::string_view text = holder.substr(0, kHolderBytesMax);
  auto content =
      schema::seal(schema::RecordType::kRaw, {reinterpret_cast<const std::uint8_t*>(text.data()), text.size()});
  ObjectKey key{KeyKind::kLease, std::string(job), lineage, 0, step, new_uid(random)};
  Lease lease(store, std::move(key), std::move(content));
  if (const auto created = store.create(lease.key(), lease.content_); !created)
    return std::unexpected<Error>(created.error());
  return lease;
}

Status Lease::renew() {
  const std::string before = key();
  ObjectKey next = key_;
  ++next.counter;
  if (const auto created = store_->create(build_key(next), content_); !created)
    return std::unexpected<Error>(created.error());
  key_ = std::move(next);
  return store_->remove({before});
}

Status Lease::release() {
  return store_->remove({key()});
}

LeaseWatch::Seen LeaseWatch::look(std::string_view job, const std::vector<std::string>& keys) {
  const std::uint64_t now = clock_.monotonic_ns();
  std::map<Name, std::uint64_t> there;  // highest counter of each lease
  std::vector<std::pair<Name, std::string>> all;
  for (const std::string& text : keys) {
    const auto key = parse_key(text);
    if (!key || key->kind != KeyKind::kLease || key->job != job) continue;
    Name name{key->job, key->lineage, key->step, key->uid};
    std::uint64_t& counter = there[name];
    counter = std::max(counter, key->counter);
    all.emplace_back(std::move(name), text);
  }
  // Leases of this job that are gone are forgotten; of other jobs this listing says nothing.
  std::erase_if(last_, [&](const auto& entry) { return entry.first.job == job && !there.contains(entry.first); });
  std::set<std::pair<LineageId, StepNumber>> held;
  std::set<Name> expired;
  for (const auto& [name, counter] : there) {
    const auto [at, is_new] = last_.try_emplace(name, Last{counter, now});
    if (!is_new && at->second.counter != counter) at->second = {counter, now};
    if (now - at->second.changed_ns < timeout_ns_)
      held.emplace(name.lineage, name.step);
    else
      expired.insert(name);
  }
  Seen seen;
  seen.held.assign(held.begin(), held.end());
  for (const auto& [name, text] : all)
    if (expired.contains(name)) seen.expired.push_back(text);
  return seen;
}

}  // namespace gradtap::storage
