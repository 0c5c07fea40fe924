// IntervalSet: a sorted set of disjoint half-open ranges [begin, end) of 64-bit positions.
//
// Purpose: byte coverage of ops and streams. Invariants: ranges are non-empty, sorted, never adjacent (adjacent ones
// merge). Bounded by the caller: size() is the number of ranges. One thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace gradtap {

struct Interval {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  [[nodiscard]] std::uint64_t length() const { return end - begin; }
  friend bool operator==(const Interval&, const Interval&) = default;
};

class IntervalSet {
 public:
  // Adds [begin, end); returns the number of positions that were not covered before.
  std::uint64_t add(std::uint64_t begin, std::uint64_t end);
  void remove(std::uint64_t begin, std::uint64_t end);
  void clear();

  [[nodiscard]] bool contains(std::uint64_t begin, std::uint64_t end) const;
  // Calls visit(begin, end, covered) for the consecutive parts of [begin, end), covered and not, in order.
  template <class F>
  void split(std::uint64_t begin, std::uint64_t end, F visit) const {
    std::size_t i = first_ending_after(begin);
    while (begin < end) {
      if (i == ranges_.size() || ranges_[i].begin >= end) {
        visit(begin, end, false);
        return;
      }
      if (ranges_[i].begin > begin) {
        visit(begin, ranges_[i].begin, false);
        begin = ranges_[i].begin;
      }
      const std::uint64_t stop = ranges_[i].end < end ? ranges_[i].end : end;
      visit(begin, stop, true);
      begin = stop;
      ++i;
    }
  }
  // The ranges of [begin, end) that are not in the set.
  [[nodiscard]] std::vector<Interval> missing(std::uint64_t begin, std::uint64_t end) const;
  [[nodiscard]] std::uint64_t total() const { return total_; }
  [[nodiscard]] std::size_t size() const { return ranges_.size(); }
  [[nodiscard]] bool empty() const { return ranges_.empty(); }
  [[nodiscard]] const std::vector<Interval>& ranges() const { return ranges_; }

 private:
  [[nodiscard]] std::size_t first_ending_after(std::uint64_t position) const;

  std::vector<Interval> ranges_;
  std::uint64_t total_ = 0;
};

}  // namespace gradtap
