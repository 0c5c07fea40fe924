#include "dataplane/nccl_parse.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace gradtap::dataplane {
namespace {

constexpr std::size_t kHoleSteps = 2000;  // messages tried in one hole; also how deep its filling may nest
constexpr std::size_t kDecidedKept = 1024;
constexpr std::uint32_t kMinMtuBytes = 256;

// Worlds: bit 2 m is of path MTU 256 << m and immediates with the data, bit 2 m + 1 of immediates apart.
constexpr std::uint32_t kApart = 0x2aa;
constexpr std::uint32_t mtu_bytes(std::uint32_t mtu) {
  return kMinMtuBytes << mtu;
}
constexpr std::uint32_t worlds_with(std::uint32_t mtu) {
  return 3U << 2 * mtu;
}
constexpr std::uint32_t apart_with(std::uint32_t mtu) {
  return 2U << 2 * mtu;
}
bool is_mtu(std::uint32_t bytes) {
  return bytes >= kMinMtuBytes && bytes <= 4096 && (bytes & (bytes - 1)) == 0;
}

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
  boundary_.worlds = worlds_;
  readings_ = {boundary_};
  since_boundary_.clear();
  labelled_ = 0;
  waiting_ = 0;
  hole_.reset();
  lost_ = filled_ = false;
}

std::vector<NcclParse::Packets> NcclParse::packets(std::uint64_t bytes, Worlds worlds) {
  std::vector<Packets> counts;
  const auto add = [&](std::uint64_t psns, Worlds in) {
    if (in == 0) return;
    const auto same = std::find_if(counts.begin(), counts.end(), [&](const Packets& one) { return one.psns == psns; });
    if (same == counts.end())
      counts.push_back({psns, in});
    else
      same->worlds |= in;
  };
  for (std::uint32_t mtu = 0; mtu < kPathMtus; ++mtu) {
    const std::uint64_t data = std::max<std::uint64_t>(1, (bytes + mtu_bytes(mtu) - 1) / mtu_bytes(mtu));
    const Worlds apart = worlds & apart_with(mtu);
    add(data, worlds & (worlds_with(mtu) & ~apart_with(mtu)));
    add(bytes > kNcclSplitBytes ? data + 1 : data, apart);
  }
  std::sort(counts.begin(), counts.end(), [](const Packets& a, const Packets& b) { return a.psns < b.psns; });
  return counts;
}

void NcclParse::learn(const RoceMessage& message) {
  Worlds worlds = kAllWorlds;
  for (std::uint32_t mtu = 0; message.bytes > 0 && mtu < kPathMtus; ++mtu) {
    const bool full = message.bytes > message.packet_bytes && is_mtu(message.packet_bytes);
    if (full ? mtu_bytes(mtu) != message.packet_bytes : mtu_bytes(mtu) < message.packet_bytes)
      worlds &= ~worlds_with(mtu);
  }
  if (message.run || (message.bytes > kNcclSplitBytes && message.immediate_seen))
    worlds &= message.run || message.split ? kApart : ~kApart;
  if (worlds != kAllWorlds && (worlds_ & worlds) != worlds_) narrow_worlds(worlds);
}

// Readings that have assumed otherwise are none.
void NcclParse::narrow_worlds(Worlds worlds) {
  if (worlds == 0) return;
  worlds_ = (worlds_ & worlds) != 0 ? worlds_ & worlds : worlds;
  const auto possible = [&](const Reading& reading) { return (reading.worlds & worlds_) != 0; };
  if (std::none_of(readings_.begin(), readings_.end(), possible)) {
    for (Reading& reading : readings_) reading.worlds = worlds_;
    return;
  }
  std::erase_if(readings_, [&](const Reading& reading) { return !possible(reading); });
  for (Reading& reading : readings_) reading.worlds &= worlds_;
  ++revision_;
}

// Nothing tells whether the packet that was lost at its end had the immediate.
bool NcclParse::end_unseen(const RoceMessage& message) const {
  return !message.awaits_immediate && !message.immediate_seen && !message.open_ended &&
         message.bytes > kNcclSplitBytes && (worlds_ & kApart) != 0 && (worlds_ & ~kApart) != 0;
}

bool NcclParse::unclosed(const RoceMessage& message) const {
  if (message.awaits_immediate) return true;
  return !message.immediate_seen && !message.open_ended && message.bytes > kNcclSplitBytes && (worlds_ & ~kApart) == 0;
}

void NcclParse::message(const RoceMessage& message, bool whole) {
  learn(message);
  conclude_hole(message.head_uncertain);
  Item item;
  item.bytes = message.bytes;
  item.at_least = message.open_ended;
  item.head_uncertain = message.head_uncertain;
  item.run = message.run;
  item.psns = message.psns.count();
  item.never = message.foreign || message.immediate_mismatch;
  item.unclosed = whole && unclosed(message);
  item.end_unseen = whole && end_unseen(message);
  item.packet_bytes = message.packet_bytes;
  item.headless = whole && message.address == 0 && message.bytes > 0;
  ++waiting_;
  add(item);
}

void NcclParse::ended(const RoceMessage& message) {
  learn(message);
  if (lost_) return;
  if (unclosed(message)) {
    for (Reading& reading : readings_) reading.owed_psns = 1;
    boundary_.owed_psns = since_boundary_.empty() ? 1 : 0;
  } else if (end_unseen(message)) {
    std::vector<Reading> both;
    for (const Reading& reading : readings_)
      for (const bool apart : {false, true}) {
        const Worlds worlds = reading.worlds & (apart ? kApart : ~kApart);
        if (worlds == 0) continue;
        both.push_back(reading);
        both.back().worlds = worlds;
        both.back().owed_psns = apart ? 1 : 0;
      }
    readings_ = std::move(both);
  }
  settle();
}

void NcclParse::hole(const PsnRange& psns) {
  if (psns.count() == 0) return;
  conclude_hole();
  hole_ = Item{};
  hole_->hole = true;
  hole_->psns = psns.count();
}

void NcclParse::conclude_hole(bool heads) {
  auto hole = std::exchange(hole_, std::nullopt);
  if (!hole) return;
  hole->heads = heads;
  add(*hole);
}

bool NcclParse::fits(const Item& item, const NcclPattern& pattern, std::uint64_t index) {
  if (item.never) return false;
  const std::uint64_t bytes = pattern.wire_bytes(index);
  return item.at_least || item.head_uncertain ? item.bytes > 0 && item.bytes <= bytes : item.bytes == bytes;
}

// PSNs behind the message that are its own, if it had this length.
std::vector<NcclParse::Packets> NcclParse::owed(const Item& item, std::uint64_t bytes, Worlds worlds) {
  if (item.at_least && item.packet_bytes != 0 && bytes >= item.bytes) {
    const std::uint64_t rest = (bytes - item.bytes + item.packet_bytes - 1) / item.packet_bytes;
    if (item.run) return {{rest + 1, worlds}};
    return {{rest, worlds & ~kApart}, {rest + 1, worlds & kApart}};
  }
  if (item.end_unseen) return {{0, worlds & ~kApart}, {1, worlds & kApart}};
  return {{item.unclosed ? std::uint64_t{1} : 0, worlds}};
}

// Where what was seen lies in a message of this length, and what must follow.
std::vector<NcclParse::Placement> NcclParse::placements(const Item& item, const Reading& reading, std::uint64_t bytes) {
  std::vector<Placement> found;
  if (!item.head_uncertain) {
    for (const Packets& packets : owed(item, bytes, reading.worlds)) found.push_back({0, packets});
    return found;
  }
  // A run that began in a hole: all packets but the last are full.
  for (std::uint32_t mtu = 0; mtu < kPathMtus; ++mtu) {
    const Worlds worlds = reading.worlds & apart_with(mtu);
    const std::uint64_t full = mtu_bytes(mtu);
    const std::uint64_t total = (bytes + full - 1) / full;
    const std::uint64_t end = reading.head_psns + item.psns;
    if (worlds == 0 || end > total || item.bytes <= (item.psns - 1) * full || item.bytes > item.psns * full) continue;
    const std::uint64_t last = item.bytes - (item.psns - 1) * full;
    if (last != (end == total ? bytes - (total - 1) * full : full)) continue;
    found.push_back({reading.head_psns * full, {total - end + 1, worlds}});
  }
  return found;
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
  reading.owed_psns = reading.head_psns = 0;
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

// Whether the next message is longer than these packets.
bool NcclParse::head_may_be(const Reading& from, std::uint64_t psns) const {
  const auto longer = [&](const NcclPattern& pattern, std::uint64_t index) {
    const std::uint64_t bytes = pattern.wire_bytes(index);
    return bytes > kNcclSplitBytes && (bytes + kMinMtuBytes - 1) / kMinMtuBytes > psns &&
           packets(bytes, from.worlds & kApart).back().psns > psns + 1;
  };
  if ((from.worlds & kApart) == 0) return false;
  if (from.pattern != kBetween) return longer(patterns_[from.pattern], from.next);
  return std::any_of(patterns_.begin(), patterns_.end(),
                     [&](const NcclPattern& pattern) { return longer(pattern, 0); });
}

// Whole messages that fill the hole exactly, or up to the beginning of one that goes on behind it.
void NcclParse::fill_hole(const Reading& from, std::uint64_t psns, bool heads, std::size_t& budget,
                          std::vector<Reading>& to) const {
  if (psns == 0) {
    to.push_back(from);
    return;
  }
  if (heads && head_may_be(from, psns)) {
    to.push_back(from);
    to.back().head_psns = psns;
  }
  const auto through = [&](std::size_t pattern, std::uint64_t index) {
    std::vector<Reading> taken;
    take_message(from, pattern, index, taken);
    for (const Packets& needed : packets(patterns_[pattern].wire_bytes(index), from.worlds)) {
      if (needed.psns > psns || budget == 0) return;
      --budget;
      taken.front().worlds = needed.worlds;
      fill_hole(taken.front(), psns - needed.psns, heads, budget, to);
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
  reading.owed_psns = owed(item, item.bytes, from.worlds).front().psns;
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
  if (readings_.size() != 1 || item.hole || item.at_least || item.end_unseen || item.head_uncertain) return false;
  Reading& reading = readings_.front();
  const std::size_t pattern = reading.pattern;
  const std::uint64_t index = reading.next;
  if (pattern == kBetween || reading.owed_psns > 0 || reading.head_psns > 0 || !fits(item, patterns_[pattern], index))
    return false;
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
      fill_hole(from, item.psns - reading.owed_psns, item.heads, budget, next);
      continue;
    }
    if (reading.owed_psns > 0) continue;  // the hole that it needs is not there
    if (reading.head_psns > 0 && !item.head_uncertain) continue;
    const auto through = [&](std::size_t pattern, std::uint64_t index) {
      if (!fits(item, patterns_[pattern], index)) return;
      NcclLabel label = label_of(reading, pattern, index);
      for (const Placement& placement : placements(item, reading, patterns_[pattern].wire_bytes(index))) {
        if (placement.owed.worlds == 0) continue;
        take_message(reading, pattern, index, next);
        label.head_bytes = placement.head_bytes;
        next.back().owed_psns = placement.owed.psns;
        next.back().worlds = placement.owed.worlds;
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
      if (reading.pattern == kBetween && reading.owed_psns == 0 && reading.head_psns == 0) {
        for (const Packets& packets : owed(item, item.bytes, reading.worlds)) {
          if (packets.worlds == 0) continue;
          next.push_back(as_foreign(reading, item));
          next.back().owed_psns = packets.psns;
          next.back().worlds = packets.worlds;
        }
      }
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
  filled_ = filled_ || item.hole || item.headless || item.head_uncertain;
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
         next == other.next && owed_psns == other.owed_psns && head_psns == other.head_psns && worlds == other.worlds &&
         foreign_goes_on == other.foreign_goes_on && labels == other.labels && taken.size() == other.taken.size();
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
  reading.worlds = worlds_;
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
  return readings_.size() == 1 && readings_.front().pattern == kBetween && readings_.front().head_psns == 0 && !hole_;
}

}  // namespace gradtap::dataplane
