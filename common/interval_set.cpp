#include "common/interval_set.h"

#include <algorithm>

namespace gradtap {

std::size_t IntervalSet::first_ending_after(std::uint64_t position) const {
  // Streams grow at their end: try the last range before searching.
  if (ranges_.empty() || ranges_.back().end <= position) return ranges_.size();
  if (ranges_.size() == 1 || ranges_[ranges_.size() - 2].end <= position) return ranges_.size() - 1;
  const auto it = std::upper_bound(ranges_.begin(), ranges_.end(), position,
                                   [](std::uint64_t p, const Interval& r) { return p < r.end; });
  return static_cast<std::size_t>(it - ranges_.begin());
}

std::uint64_t IntervalSet::add(std::uint64_t begin, std::uint64_t end) {
  if (begin >= end) return 0;
  std::size_t first = first_ending_after(begin);
  // A range that ends exactly at `begin` is adjacent: merge with it.
  if (first > 0 && ranges_[first - 1].end == begin) --first;
  std::size_t last = first;
  std::uint64_t absorbed = 0;
  Interval merged{begin, end};
  while (last < ranges_.size() && ranges_[last].begin <= end) {
    merged.begin = std::min(merged.begin, ranges_[last].begin);
    merged.end = std::max(merged.end, ranges_[last].end);
    absorbed += ranges_[last].length();
    ++last;
  }
  if (first == last) {
    ranges_.insert(ranges_.begin() + static_cast<std::ptrdiff_t>(first), merged);
  } else {
    ranges_[first] = merged;
    ranges_.erase(ranges_.begin() + static_cast<std::ptrdiff_t>(first) + 1,
                  ranges_.begin() + static_cast<std::ptrdiff_t>(last));
  }
  const std::uint64_t added = merged.length() - absorbed;
  total_ += added;
  return added;
}

void IntervalSet::remove(std::uint64_t begin, std::uint64_t end) {
  if (begin >= end) return;
  std::vector<Interval> kept;
  kept.reserve(ranges_.size() + 1);
  total_ = 0;
  for (const Interval& r : ranges_) {
    if (r.begin < begin) kept.push_back({r.begin, std::min(r.end, begin)});
    if (r.end > end) kept.push_back({std::max(r.begin, end), r.end});
  }
  std::erase_if(kept, [](const Interval& r) { return r.begin >= r.end; });
  ranges_ = std::move(kept);
  for (const Interval& r : ranges_) total_ += r.length();
}

void IntervalSet::clear() {
  ranges_.clear();
  total_ = 0;
}

bool IntervalSet::contains(std::uint64_t begin, std::uint64_t end) const {
  if (begin >= end) return true;
  const std::size_t i = first_ending_after(begin);
  return i < ranges_.size() && ranges_[i].begin <= begin && ranges_[i].end >= end;
}

std::vector<Interval> IntervalSet::missing(std::uint64_t begin, std::uint64_t end) const {
  std::vector<Interval> holes;
  split(begin, end, [&](std::uint64_t b, std::uint64_t e, bool covered) {
    if (!covered) holes.push_back({b, e});
  });
  return holes;
}

}  // namespace gradtap
