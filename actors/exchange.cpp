#include "actors/exchange.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace gradtap::actors {

Exchange::Exchange(std::vector<std::uint64_t> capacity, std::uint64_t work_max)
    : capacity_(std::move(capacity)),
      load_(capacity_.size()),
      movable_(capacity_.size() * capacity_.size()),
      work_left_(work_max) {}

// One more changes load^2 / capacity by (2 load + 1) / capacity, one less by (2 load - 1) / capacity.
bool Exchange::lighter(Holder a, Holder b) const {
  return (2 * load_[a] + 1) * capacity_[b] < (2 * load_[b] + 1) * capacity_[a];
}

bool Exchange::equally_light(Holder a, Holder b) const {
  return (2 * load_[a] + 1) * capacity_[b] == (2 * load_[b] + 1) * capacity_[a];
}

bool Exchange::improves(Holder from, Holder to) const {
  return load_[from] > 0 && (2 * load_[from] - 1) * capacity_[to] > (2 * load_[to] + 1) * capacity_[from];
}

bool Exchange::spend(std::uint64_t work) {
  if (work > work_left_) work_left_ = 0;
  work_left_ -= std::min(work, work_left_);
  return work_left_ > 0;
}

// In which one less counts more; of equals the first.
bool Exchange::heavier(Holder a, Holder b) const {
  if (load_[a] == 0 || load_[b] == 0) return load_[a] != load_[b] ? load_[a] > load_[b] : a < b;
  const std::uint64_t less_a = (2 * load_[a] - 1) * capacity_[b], less_b = (2 * load_[b] - 1) * capacity_[a];
  return less_a != less_b ? less_a > less_b : a < b;
}

// A heap, because mostly the heaviest is enough.
std::vector<Exchange::Holder> Exchange::heap_of_heaviest() const {
  std::vector<Holder> heap(holders());
  std::iota(heap.begin(), heap.end(), Holder{0});
  std::make_heap(heap.begin(), heap.end(), [this](Holder a, Holder b) { return heavier(b, a); });
  return heap;
}

Exchange::Holder Exchange::pop_heaviest(std::vector<Holder>& heap) const {
  std::pop_heap(heap.begin(), heap.end(), [this](Holder a, Holder b) { return heavier(b, a); });
  const Holder heaviest = heap.back();
  heap.pop_back();
  return heaviest;
}

void Exchange::balance() {
  while (move_directly() || move_by_chain()) {
  }
}

bool Exchange::move_directly() {
  if (!spend(holders())) return false;
  for (std::vector<Holder> heap = heap_of_heaviest(); !heap.empty();) {
    const Holder from = pop_heaviest(heap);
    std::optional<Holder> best;
    const std::uint32_t* const count = movable(from);
    for (Holder to = 0; to < holders(); ++to)
      if (count[to] != 0 && (!best || lighter(to, *best))) best = to;
    if (!best || !improves(from, *best)) continue;
    return move_along({from, *best});
  }
  return false;
}

// Breadth first from the heaviest: a chain takes one from its beginning and gives one to its end, all between keep
// theirs. What was reached in vain is not entered again: from there nothing better can be reached, and it is lighter.
bool Exchange::move_by_chain() {
  std::vector<bool> seen(holders(), false);
  std::vector<Holder> before(holders());
  for (std::vector<Holder> heap = heap_of_heaviest(); !heap.empty();) {
    const Holder start = pop_heaviest(heap);
    if (seen[start]) continue;
    std::vector<Holder> reached{start};
    seen[start] = true;
    std::optional<Holder> best;
    for (std::size_t at = 0; at < reached.size(); ++at) {
      if (!spend(holders())) return false;
      const std::uint32_t* const count = movable(reached[at]);
      for (Holder to = 0; to < holders(); ++to) {
        if (count[to] == 0 || seen[to]) continue;
        seen[to] = true;
        before[to] = reached[at];
        reached.push_back(to);
        if (!best || lighter(to, *best)) best = to;
      }
    }
    if (!best || !improves(start, *best)) continue;
    std::vector<Holder> path{*best};
    while (path.back() != start) path.push_back(before[path.back()]);
    std::reverse(path.begin(), path.end());
    return move_along(path);
  }
  return false;
}

// The whole path or nothing.
bool Exchange::move_along(const std::vector<Holder>& path) {
  std::vector<std::uint32_t> moved;
  for (std::size_t i = path.size() - 1; i > 0; --i) {
    const std::optional<std::uint32_t> thing =
        movable(path[i - 1])[path[i]] != 0 ? choose(path[i - 1], path[i]) : std::nullopt;
    if (!thing) {
      for (; i + 1 < path.size(); ++i) {
        move(moved.back(), path[i + 1], path[i]);
        moved.pop_back();
      }
      return false;
    }
    move(*thing, path[i - 1], path[i]);
    moved.push_back(*thing);
  }
  return true;
}

}  // namespace gradtap::actors
