#include "dataplane/nccl_parse.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace gradtap::dataplane {
namespace {

constexpr std::size_t kHoleSteps = 2000;  // messages tried in one hole; also how deep its filling may nest
constexpr std::size_t kDecidedKept = 1024;

}  // namespace

void NcclParse::set_patterns(std::vector<NcclPattern> patterns) {
  std::erase_if(patterns, [](const NcclPattern& pattern) { return pattern.count() == 0 || !pattern.schedule(); });
  // Readings name patterns by place: the old ones keep theirs.
  for (const NcclPattern& pattern : patterns) {
    const bool known = std::any_of(patterns_.begin(), patterns_.end(),
                                   [&](const NcclPattern& old) { return old.id() == pattern.id(); });
    if (!known) patterns_.push_back(pattern);
  }
}

void NcclParse::restart(std::uint64_t all_reduces, std::uint64_t foreign) {
  ++revision_;
  boundary_ = {};
  boundary_.all_reduces = all_reduces;
  boundary_.foreign = foreign;
  readings_ = {boundary_};
  since_boundary_.clear();
  labelled_ = 0;
  waiting_ = 0;
  lost_ = filled_ = false;
}

std::vector<std::uint64_t> NcclParse::packets(std::uint64_t bytes) const {
  if (bytes == 0) return {1};
  std::vector<std::uint64_t> counts;
  const auto add = [&](std::uint64_t packet_bytes) {
    const std::uint64_t data = (bytes + packet_bytes - 1) / packet_bytes;
    if (bytes <= kNcclSplitBytes || !splits_.value_or(false)) counts.push_back(data);
    if (bytes > kNcclSplitBytes && splits_.value_or(true)) counts.push_back(data + 1);
  };
  if (packet_bytes_ != 0)
    add(packet_bytes_);
  else
    for (const std::uint64_t path_mtu : {256, 512, 1024, 2048, 4096}) add(path_mtu);
  std::sort(counts.begin(), counts.end());
  counts.erase(std::unique(counts.begin(), counts.end()), counts.end());
  return counts;
}

void NcclParse::learn(const RoceMessage& message) {
  if (message.bytes > message.packet_bytes) packet_bytes_ = std::max(packet_bytes_, message.packet_bytes);
  if (message.bytes > kNcclSplitBytes && message.immediate_seen) splits_ = message.split;
}

bool NcclParse::unclosed(const RoceMessage& message) const {
  if (message.awaits_immediate) return true;
  return !message.immediate_seen && !message.open_ended && message.bytes > kNcclSplitBytes && splits_.value_or(false);
}

void NcclParse::message(const RoceMessage& message, bool whole) {
  learn(message);
  Item item;
  item.bytes = message.bytes;
  item.at_least = message.open_ended;
  item.anything = message.head_uncertain;
  item.never = message.foreign || message.immediate_mismatch;
  item.unclosed = whole && unclosed(message);
  item.packet_bytes = message.packet_bytes;
  item.headless = whole && message.address == 0 && message.bytes > 0;
  ++waiting_;
  add(item);
}

void NcclParse::ended(const RoceMessage& message) {
  learn(message);
  if (lost_ || !unclosed(message)) return;
  for (Reading& reading : readings_) reading.owed_psns = 1;
  boundary_.owed_psns = since_boundary_.empty() ? 1 : 0;
}

void NcclParse::hole(const PsnRange& psns) {
  if (psns.count() == 0) return;
  Item item;
  item.hole = true;
  item.psns = psns.count();
  add(item);
}

bool NcclParse::fits(const Item& item, const NcclPattern& pattern, std::uint64_t index) const {
  if (item.never) return false;
  if (item.anything) return true;
  const std::uint64_t bytes = pattern.wire_bytes(index);
  return item.at_least ? item.bytes > 0 && item.bytes <= bytes : item.bytes == bytes;
}

// PSNs behind the message that are its own, if it had this length: what they may be, ascending.
std::vector<std::uint64_t> NcclParse::owed(const Item& item, std::uint64_t bytes) {
  if (item.at_least && item.packet_bytes != 0 && bytes >= item.bytes) {
    const std::uint64_t rest = (bytes - item.bytes + item.packet_bytes - 1) / item.packet_bytes;
    return {rest, rest + 1};  // the immediate with the last of them, or behind
  }
  return {item.unclosed ? std::uint64_t{1} : 0};
}

NcclLabel NcclParse::label_of(const Reading& reading, std::size_t pattern, std::uint64_t index) const {
  const NcclPattern& of = patterns_[pattern];
  const NcclMessage place = *of.schedule()->message(of.position(), of.channel(), index);
  NcclLabel label;
  label.all_reduce = true;
  label.all_reduces = reading.all_reduces;
  label.foreign = reading.foreign;
  label.index = index;
  label.data_bytes = (place.end - place.begin) * of.schedule()->op().element_bytes;
  label.phase = place.phase;
  label.lines = of.line_based();
  return label;
}

// The reading gets its next message, of `pattern`, behind it.
void NcclParse::go_on(Reading& reading, std::size_t pattern, std::uint64_t index) const {
  reading.foreign_goes_on = false;
  reading.owed_psns = 0;
  reading.pattern = pattern;
  reading.next = index + 1;
  if (index == 0) reading.taken.push_back({reading.all_reduces, {patterns_[pattern].id()}});
  if (reading.next == patterns_[pattern].count()) {
    reading.pattern = kBetween;
    reading.next = 0;
    ++reading.all_reduces;
  }
}

void NcclParse::take_message(const Reading& from, std::size_t pattern, std::uint64_t index,
                             std::vector<Reading>& to) const {
  Reading& reading = to.emplace_back(from);
  go_on(reading, pattern, index);
}

// Whole messages that fill the hole exactly.
void NcclParse::fill_hole(const Reading& from, std::uint64_t psns, std::size_t& budget,
                          std::vector<Reading>& to) const {
  if (psns == 0) {
    to.push_back(from);
    return;
  }
  const auto through = [&](std::size_t pattern, std::uint64_t index) {
    std::vector<Reading> taken;
    take_message(from, pattern, index, taken);
    for (const std::uint64_t needed : packets(patterns_[pattern].wire_bytes(index))) {
      if (needed > psns || budget == 0) return;
      --budget;
      fill_hole(taken.front(), psns - needed, budget, to);
    }
  };
  if (from.pattern != kBetween) {
    through(from.pattern, from.next);
    return;
  }
  for (std::size_t pattern = 0; pattern < patterns_.size(); ++pattern) through(pattern, 0);
}

NcclParse::Reading NcclParse::as_foreign(const Reading& from, const Item& item) {
  Reading reading = from;
  // A message that fills its slot is followed by the rest of the same operation.
  if (!from.foreign_goes_on) ++reading.foreign;
  reading.foreign_goes_on = item.bytes == kNcclLlSlotBytes;
  reading.owed_psns = owed(item, item.bytes).front();
  NcclLabel label;
  label.all_reduces = reading.all_reduces;
  label.foreign = reading.foreign;
  label.data_bytes = item.bytes;
  reading.labels.push_back(label);
  return reading;
}

void NcclParse::add(const Item& item) {
  if (lost_) {
    lose(item);
    return;
  }
  since_boundary_.push_back(item);
  step(item);
  if (readings_.size() > config_.max_readings || waiting_ > config_.max_waiting ||
      since_boundary_.size() > config_.max_op_messages) {
    lost_ = true;
    for (; waiting_ > 0; --waiting_) ready_.push_back({});
    return;
  }
  settle();
}

// What nearly every message is: the next one of the only reading there is. Nothing is copied then.
bool NcclParse::step_straight_on(const Item& item) {
  if (readings_.size() != 1 || item.hole || item.at_least) return false;
  Reading& reading = readings_.front();
  const std::size_t pattern = reading.pattern;
  const std::uint64_t index = reading.next;
  if (pattern == kBetween || reading.owed_psns > 0 || !fits(item, patterns_[pattern], index)) return false;
  reading.labels.push_back(label_of(reading, pattern, index));
  go_on(reading, pattern, index);
  reading.owed_psns = item.unclosed ? 1 : 0;
  filled_ = filled_ || item.headless;
  return true;
}

// Every reading goes on by one item; those that cannot are dropped.
void NcclParse::step(const Item& item) {
  if (step_straight_on(item)) return;
  ++revision_;
  std::vector<Reading> next;
  std::size_t budget = kHoleSteps;
  for (const Reading& reading : readings_) {
    if (item.hole) {
      if (reading.owed_psns > item.psns) continue;
      Reading from = reading;
      from.owed_psns = 0;
      fill_hole(from, item.psns - reading.owed_psns, budget, next);
      continue;
    }
    if (reading.owed_psns > 0) continue;  // the hole that it needs is not there
    const auto through = [&](std::size_t pattern, std::uint64_t index) {
      if (!fits(item, patterns_[pattern], index)) return;
      const NcclLabel label = label_of(reading, pattern, index);
      for (const std::uint64_t owed_psns : owed(item, patterns_[pattern].wire_bytes(index))) {
        take_message(reading, pattern, index, next);
        next.back().owed_psns = owed_psns;
        next.back().labels.push_back(label);
      }
    };
    if (reading.pattern != kBetween) {
      through(reading.pattern, reading.next);
      continue;
    }
    for (std::size_t pattern = 0; pattern < patterns_.size(); ++pattern) through(pattern, 0);
  }
  if (item.hole && budget == 0) next.clear();  // what was not tried might fit as well
  if (next.empty() && !item.hole) {
    for (const Reading& reading : readings_)
      if (reading.pattern == kBetween && reading.owed_psns == 0) next.push_back(as_foreign(reading, item));
  }
  if (next.empty()) {
    if (item.hole || since_boundary_.size() < 2) {
      lost_ = true;
      for (; waiting_ > 0; --waiting_) ready_.push_back({});
      return;
    }
    reread_as_foreign();
    return;
  }
  filled_ = filled_ || item.hole || item.headless;
  readings_.clear();
  for (Reading& reading : next) {
    const auto same = std::find_if(readings_.begin(), readings_.end(),
                                   [&](const Reading& other) { return other.same_place(reading); });
    if (same == readings_.end())
      readings_.push_back(std::move(reading));
    else
      merge(*same, reading);
  }
}

bool NcclParse::Reading::same_place(const Reading& other) const {
  return all_reduces == other.all_reduces && foreign == other.foreign && pattern == other.pattern &&
         next == other.next && owed_psns == other.owed_psns && foreign_goes_on == other.foreign_goes_on &&
         labels == other.labels && taken.size() == other.taken.size();
}

// What looked the same up to here may have been any of both.
void NcclParse::merge(Reading& into, const Reading& other) {
  for (std::size_t i = 0; i < into.taken.size(); ++i) {
    std::vector<std::uint32_t> ids;
    std::set_union(into.taken[i].ids.begin(), into.taken[i].ids.end(), other.taken[i].ids.begin(),
                   other.taken[i].ids.end(), std::back_inserter(ids));
    into.taken[i].ids = std::move(ids);
  }
}

// No all-reduce begins where all readings began: the first message there is foreign, the rest is read again.
void NcclParse::reread_as_foreign() {
  ++reread_;
  ++rereads_here_;
  std::vector<Item> items = std::move(since_boundary_);
  since_boundary_.clear();
  Reading reading = boundary_;
  reading.labels.clear();
  // With a hole filled in between, the filling may as well have been wrong.
  if (filled_ || rereads_here_ > config_.max_rereads) {
    lost_ = true;
    for (; waiting_ > 0; --waiting_) ready_.push_back({});
    return;
  }
  // Labels that were given stand; what the new reading says of those messages is not told.
  std::size_t given = std::exchange(labelled_, 0);
  reading = as_foreign(reading, items.front());
  if (given > 0) {
    reading.labels.clear();
    --given;
  }
  boundary_ = reading;
  boundary_.labels.clear();
  readings_ = {reading};
  for (std::size_t i = 1; i < items.size() && !lost_; ++i) {
    since_boundary_.push_back(items[i]);
    step(items[i]);
    if (items[i].hole || given == 0 || lost_) continue;
    --given;
    ++labelled_;
    for (Reading& each : readings_) each.labels.pop_back();
  }
}

void NcclParse::lose(const Item& item) {
  if (item.hole) return;
  ready_.push_back({});
  --waiting_;
}

// Gives out what all readings agree on, and notes where they all stand between operations.
void NcclParse::settle() {
  if (lost_) return;
  while (waiting_ > 0 && !readings_.front().labels.empty()) {
    const NcclLabel& label = readings_.front().labels.front();
    const bool same = std::all_of(readings_.begin(), readings_.end(),
                                  [&](const Reading& reading) { return reading.labels.front() == label; });
    if (!same) break;
    ready_.push_back(label);
    --waiting_;
    ++labelled_;
    for (Reading& reading : readings_) reading.labels.erase(reading.labels.begin());
  }
  if (!at_boundary()) return;
  Reading& only = readings_.front();
  for (Taken& taken : only.taken) decided_.push_back(std::move(taken));
  while (decided_.size() > kDecidedKept) decided_.pop_front();
  only.taken.clear();
  boundary_ = only;
  boundary_.labels.clear();
  since_boundary_.clear();
  labelled_ = 0;
  rereads_here_ = 0;
}

std::optional<NcclLabel> NcclParse::take() {
  if (ready_.empty()) return std::nullopt;
  const NcclLabel label = ready_.front();
  ready_.pop_front();
  return label;
}

std::vector<std::uint32_t> NcclParse::candidates(std::uint64_t all_reduce) const {
  if (!decided_.empty() && all_reduce <= decided_.back().all_reduce) {
    for (auto at = decided_.rbegin(); at != decided_.rend(); ++at)
      if (at->all_reduce == all_reduce) return at->ids;
    return {};
  }
  std::vector<std::uint32_t> ids;
  for (const Reading& reading : readings_) {
    const auto at = std::find_if(reading.taken.begin(), reading.taken.end(),
                                 [&](const Taken& taken) { return taken.all_reduce == all_reduce; });
    if (at == reading.taken.end()) return {};
    std::vector<std::uint32_t> both;
    std::set_union(ids.begin(), ids.end(), at->ids.begin(), at->ids.end(), std::back_inserter(both));
    ids = std::move(both);
  }
  return ids;
}

bool NcclParse::restrict(std::uint64_t all_reduce, const std::vector<std::uint32_t>& ids) {
  if (lost_ || readings_.size() < 2) return false;
  const auto excluded = [&](const Reading& reading) {
    for (const Taken& taken : reading.taken) {
      if (taken.all_reduce != all_reduce) continue;
      return std::none_of(taken.ids.begin(), taken.ids.end(),
                          [&](std::uint32_t id) { return std::binary_search(ids.begin(), ids.end(), id); });
    }
    return false;
  };
  const auto out = static_cast<std::size_t>(std::count_if(readings_.begin(), readings_.end(), excluded));
  if (out == 0 || out == readings_.size()) return false;  // all: then it is not the same all-reduce
  std::erase_if(readings_, excluded);
  ++revision_;
  settle();
  return true;
}

std::pair<std::uint64_t, std::uint64_t> NcclParse::undecided() const {
  std::uint64_t end = boundary_.all_reduces;
  for (const Reading& reading : readings_)
    end = std::max(end, reading.all_reduces + (reading.pattern == kBetween ? 0 : 1));
  return {boundary_.all_reduces, end};
}

bool NcclParse::expects(std::uint64_t bytes) const {
  if (lost_) return false;
  return std::any_of(readings_.begin(), readings_.end(), [&](const Reading& reading) {
    if (reading.pattern != kBetween) return patterns_[reading.pattern].wire_bytes(reading.next) == bytes;
    return std::any_of(patterns_.begin(), patterns_.end(),
                       [&](const NcclPattern& pattern) { return pattern.wire_bytes(0) == bytes; });
  });
}

bool NcclParse::at_boundary() const {
  return readings_.size() == 1 && readings_.front().pattern == kBetween;
}

}  // namespace gradtap::dataplane
