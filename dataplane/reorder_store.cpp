#include "dataplane/reorder_store.h"

#include <algorithm>
#include <cstring>
#include <iterator>

namespace gradtap::dataplane {

ReorderStore::Blocks::const_iterator ReorderStore::covering_or_after(std::uint64_t position) const {
  auto it = blocks_.upper_bound(position);
  if (it != blocks_.begin()) {
    const auto before = std::prev(it);
    if (before->first + before->second.size > position) return before;
  }
  return it;
}

bool ReorderStore::insert(std::uint64_t position, ByteSpan bytes, Arrival arrival) {
  const std::uint64_t worst = bytes.size() + kBlockOverhead;
  if (cost_ + worst > window_bytes_ || budget_->used + worst > budget_->limit) return false;
  const std::uint64_t end = position + bytes.size();
  std::uint64_t at = position;
  while (at < end) {
    const auto it = covering_or_after(at);
    if (it != blocks_.end() && it->first <= at) {
      at = it->first + it->second.size;
      continue;
    }
    const std::uint64_t stop = it == blocks_.end() ? end : std::min(end, it->first);
    const std::size_t size = stop - at;
    // Filling many small gaps at once may need more blocks than was tested above.
    if (cost_ + size + kBlockOverhead > window_bytes_ || !budget_->take(size + kBlockOverhead)) return false;
    auto memory = std::make_shared_for_overwrite<std::uint8_t[]>(size);
    std::memcpy(memory.get(), bytes.data() + (at - position), size);
    const std::uint8_t* data = memory.get();
    blocks_.emplace(at, Block{std::move(memory), data, size, size + kBlockOverhead, arrival});
    cost_ += size + kBlockOverhead;
    at = stop;
  }
  return true;
}

ByteSpan ReorderStore::view(std::uint64_t position) const {
  const auto it = covering_or_after(position);
  if (it == blocks_.end() || it->first > position) return {};
  return {it->second.data + (position - it->first), it->second.size - (position - it->first)};
}

bool ReorderStore::read(std::uint64_t position, std::uint8_t* out, std::size_t count) const {
  auto it = covering_or_after(position);
  while (count > 0) {
    if (it == blocks_.end() || it->first > position) return false;
    const std::size_t skip = position - it->first;
    const std::size_t part = std::min(count, it->second.size - skip);
    std::memcpy(out, it->second.data + skip, part);
    position += part;
    out += part;
    count -= part;
    ++it;
  }
  return true;
}

std::uint64_t ReorderStore::next_stored(std::uint64_t position) const {
  const auto it = covering_or_after(position);
  return it == blocks_.end() ? kNone : std::max(position, it->first);
}

std::optional<Arrival> ReorderStore::arrival(std::uint64_t position) const {
  const auto it = covering_or_after(position);
  return it == blocks_.end() ? std::nullopt : std::optional(it->second.arrival);
}

std::uint64_t ReorderStore::run_end(std::uint64_t position) const {
  auto it = covering_or_after(position);
  while (it != blocks_.end() && it->first <= position) {
    position = it->first + it->second.size;
    ++it;
  }
  return position;
}

std::uint64_t ReorderStore::end() const {
  return blocks_.empty() ? 0 : blocks_.rbegin()->first + blocks_.rbegin()->second.size;
}

void ReorderStore::erase_before(std::uint64_t position) {
  while (!blocks_.empty()) {
    const auto it = blocks_.begin();
    if (it->first >= position && position != kNone) return;
    const std::uint64_t stop = it->first + it->second.size;
    if (stop <= position) {
      cost_ -= it->second.cost;
      budget_->give_back(it->second.cost);
      blocks_.erase(it);
      continue;
    }
    // The memory of a partly used block stays until its last byte is gone, so its cost stays too.
    Block rest = std::move(it->second);
    rest.data += position - it->first;
    rest.size = stop - position;
    blocks_.erase(it);
    blocks_.emplace(position, std::move(rest));
    return;
  }
}

}  // namespace gradtap::dataplane
