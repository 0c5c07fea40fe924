#include "actors/placement.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "actors/exchange.h"

namespace gradtap::actors {
namespace {

using Holder = Exchange::Holder;  // a member in state kIn, numbered without the others

constexpr std::uint64_t kWorkMax = std::uint64_t{1} << 31;  // simple steps: a few seconds
constexpr int kCandidates = 8;                              // shards looked at for one move

struct Copy {
  Holder owner = 0;
  bool fresh = false;       // not in the map before: nothing lies there yet, so that moving it costs nothing
  std::uint32_t place = 0;  // in the list of what its owner may give away
};

// The members that may own, and what follows from them.
struct Field {
  std::vector<std::uint32_t> member;          // of a holder
  std::vector<std::optional<Holder>> holder;  // of a member
  std::vector<std::uint64_t> capacity;        // of a holder
  std::vector<std::uint32_t> domain;          // of a holder, numbered in order of appearance
  std::size_t domains = 0;
  std::size_t copies = 0;  // of a shard
  std::size_t spare = 0;   // copies of a shard that find no domain of their own

  Field(const std::vector<schema::EpochMember>& members, std::size_t replicas) : holder(members.size()) {
    std::map<std::string, std::uint32_t> known;
    for (std::size_t i = 0; i < members.size(); ++i) {
      if (members[i].state != schema::MemberState::kIn) continue;
      holder[i] = static_cast<Holder>(member.size());
      member.push_back(static_cast<std::uint32_t>(i));
      capacity.push_back(std::max<std::uint64_t>(1, members[i].capacity));
      domain.push_back(known.try_emplace(members[i].domain, static_cast<std::uint32_t>(known.size())).first->second);
    }
    domains = known.size();
    copies = std::min(replicas, member.size());
    spare = copies - std::min(copies, domains);
  }
  [[nodiscard]] std::size_t size() const { return member.size(); }
};

// Owners. A set of owners is legal when no more than `spare` of them share a domain with an earlier one; whatever legal
// set is begun, it can be completed, and what is complete has as many domains as there can be.
class Owners final : public Exchange {
 public:
  Owners(const Field& field, std::size_t shards)
      : Exchange(field.capacity, kWorkMax),
        field_(field),
        copies_(shards),
        in_domain_(field.domains),
        together_(field.size() * field.size()),
        held_(field.size()),
        cursor_(field.size()) {}

  // Keeps of the current owners as many as may stay; where some may not, the lighter ones stay.
  void keep(const ShardPlacement& current) {
    std::vector<std::vector<Holder>> kept(copies_.size());
    for (std::size_t shard = 0; shard < std::min(copies_.size(), current.size()); ++shard)
      for (const std::uint32_t owner : current[shard]) {
        const std::optional<Holder> holder = owner < field_.holder.size() ? field_.holder[owner] : std::nullopt;
        if (!holder || std::find(kept[shard].begin(), kept[shard].end(), *holder) != kept[shard].end()) continue;
        kept[shard].push_back(*holder);
        ++load(*holder);
      }
    for (std::size_t shard = 0; shard < kept.size(); ++shard) {
      std::vector<Holder> order = kept[shard];
      std::stable_sort(order.begin(), order.end(), [this](Holder a, Holder b) { return lighter(a, b); });
      std::vector<Holder> staying;
      for (const Holder holder : order)
        if (fits(staying, holder))
          staying.push_back(holder);
        else
          --load(holder);
      for (const Holder holder : kept[shard])
        if (std::find(staying.begin(), staying.end(), holder) != staying.end()) add(shard, {holder, false, 0});
    }
  }

  // The missing copies go to the lightest; of equals to the one that shares the fewest shards with the other owners, so
  // that when a member dies all others take part in its work.
  void fill() {
    std::vector<std::uint64_t> shared(field_.size());  // shards that a holder shares with the owners so far
    std::vector<bool> owns(field_.size(), false);
    for (std::size_t shard = 0; shard < copies_.size(); ++shard) {
      if (copies_[shard].size() == field_.copies) continue;
      std::fill(shared.begin(), shared.end(), 0);
      std::size_t repeated = 0;
      const auto take = [&](Holder owner) {
        owns[owner] = true;
        if (in_domain_[field_.domain[owner]]++ > 0) ++repeated;
        for (Holder holder = 0; holder < field_.size(); ++holder) shared[holder] += together(owner, holder);
      };
      for (const Copy& copy : copies_[shard]) take(copy.owner);
      while (copies_[shard].size() < field_.copies) {
        const bool may_repeat = repeated < field_.spare;
        std::optional<Holder> best;
        for (Holder holder = 0; holder < field_.size(); ++holder) {
          if (owns[holder] || (!may_repeat && in_domain_[field_.domain[holder]] > 0)) continue;
          if (!best || lighter(holder, *best) || (shared[holder] < shared[*best] && equally_light(holder, *best)))
            best = holder;
        }
        take(*best);  // a legal set that is not complete can always be completed
        add(shard, {*best, true, 0});
        ++load(*best);
      }
      for (const Copy& copy : copies_[shard]) {
        owns[copy.owner] = false;
        in_domain_[field_.domain[copy.owner]] = 0;
      }
    }
  }

  // First only what lies nowhere yet; then, where that was not enough, everything.
  void spread() {
    for (const bool fresh_only : {true, false}) {
      if (even()) return;
      begin(fresh_only);
      balance();
    }
  }

  [[nodiscard]] const std::vector<std::vector<Copy>>& copies() const { return copies_; }

 private:
  [[nodiscard]] std::uint32_t& together(Holder a, Holder b) { return together_[std::size_t{a} * field_.size() + b]; }

  [[nodiscard]] bool fits(const std::vector<Holder>& owners, Holder holder) const {
    if (owners.size() >= field_.copies) return false;
    std::size_t repeated = 0;
    bool repeats = false;
    for (std::size_t i = 0; i < owners.size(); ++i) {
      if (owners[i] == holder) return false;
      repeats = repeats || field_.domain[owners[i]] == field_.domain[holder];
      for (std::size_t k = 0; k < i; ++k)
        if (field_.domain[owners[k]] == field_.domain[owners[i]]) {
          ++repeated;
          break;
        }
    }
    return repeated + (repeats ? 1U : 0U) <= field_.spare;
  }

  void add(std::size_t shard, Copy copy) {
    for (const Copy& other : copies_[shard]) {
      ++together(other.owner, copy.owner);
      ++together(copy.owner, other.owner);
    }
    copies_[shard].push_back(copy);
  }

  // No move, legal or not, would make the loads more even.
  [[nodiscard]] bool even() {
    for (Holder from = 0; from < field_.size(); ++from)
      for (Holder to = 0; to < field_.size(); ++to)
        if (load(to) < copies_.size() && improves(from, to)) return false;
    return true;
  }

  void begin(bool fresh_only) {
    fresh_only_ = fresh_only;
    for (Holder holder = 0; holder < field_.size(); ++holder) {
      std::fill_n(movable(holder), field_.size(), 0U);
      held_[holder].clear();
      cursor_[holder] = 0;
    }
    for (std::uint32_t shard = 0; shard < copies_.size(); ++shard) {
      count<1>(shard);
      for (Copy& copy : copies_[shard])
        if (may_move(copy)) hold(copy, shard);
    }
  }

  [[nodiscard]] bool may_move(const Copy& copy) const { return copy.fresh || !fresh_only_; }

  void hold(Copy& copy, std::uint32_t shard) {
    copy.place = static_cast<std::uint32_t>(held_[copy.owner].size());
    held_[copy.owner].push_back(shard);
  }

  void let_go(const Copy& copy) {
    std::vector<std::uint32_t>& held = held_[copy.owner];
    const std::uint32_t last = held.back();
    held[copy.place] = last;
    held.pop_back();
    for (Copy& other : copies_[last])
      if (other.owner == copy.owner) other.place = copy.place;
  }

  // Adds the shard's legal moves to movable(), or takes them away.
  template <int kSign>
  void count(std::uint32_t shard) {
    (void)spend(copies_[shard].size() * field_.size() / 4);  // the loop below is fast
    for (const Copy& copy : copies_[shard]) ++in_domain_[field_.domain[copy.owner]];
    for (const Copy& copy : copies_[shard]) {
      if (!may_move(copy)) continue;
      const std::uint32_t own = field_.domain[copy.owner];
      const bool spare = in_domain_[own] > 1;
      std::uint32_t* const row = movable(copy.owner);
      for (Holder to = 0; to < field_.size(); ++to)
        row[to] += static_cast<std::uint32_t>(kSign) *
                   static_cast<std::uint32_t>(spare || field_.domain[to] == own || in_domain_[field_.domain[to]] == 0);
      for (const Copy& other : copies_[shard])
        row[other.owner] -=
            static_cast<std::uint32_t>(kSign) * static_cast<std::uint32_t>(spare || field_.domain[other.owner] == own);
    }
    for (const Copy& copy : copies_[shard]) in_domain_[field_.domain[copy.owner]] = 0;
  }

  [[nodiscard]] bool legal(std::uint32_t shard, Holder from, Holder to) const {
    bool spare = false, taken = false;
    for (const Copy& copy : copies_[shard]) {
      if (copy.owner == to) return false;
      if (copy.owner == from) continue;
      spare = spare || field_.domain[copy.owner] == field_.domain[from];
      taken = taken || field_.domain[copy.owner] == field_.domain[to];
    }
    return spare || !taken || field_.domain[from] == field_.domain[to];
  }

  // Of the next legal ones the one after whose move the owners share the fewest shards.
  std::optional<std::uint32_t> choose(Holder from, Holder to) override {
    const std::vector<std::uint32_t>& shards = held_[from];
    std::optional<std::uint32_t> best;
    std::int64_t best_shared = 0;
    int candidates = 0;
    std::size_t& at = cursor_[from];
    for (std::size_t looked = 0; looked < shards.size() && candidates < kCandidates && spend(4); ++looked) {
      at = at + 1 < shards.size() ? at + 1 : 0;
      if (!legal(shards[at], from, to)) continue;
      ++candidates;
      std::int64_t shared = 0;
      for (const Copy& copy : copies_[shards[at]])
        if (copy.owner != from)
          shared += std::int64_t{together(copy.owner, to)} - std::int64_t{together(copy.owner, from)};
      if (!best || shared < best_shared) {
        best = shards[at];
        best_shared = shared;
      }
    }
    return best;
  }

  void move(std::uint32_t shard, Holder from, Holder to) override {
    count<-1>(shard);
    for (Copy& copy : copies_[shard]) {
      if (copy.owner != from) continue;
      for (const Copy& other : copies_[shard]) {
        if (other.owner == from) continue;
        --together(other.owner, from);
        --together(from, other.owner);
        ++together(other.owner, to);
        ++together(to, other.owner);
      }
      let_go(copy);
      copy = {to, true, 0};
      hold(copy, shard);
      break;
    }
    count<1>(shard);
    --load(from);
    ++load(to);
  }

  const Field& field_;
  std::vector<std::vector<Copy>> copies_;
  std::vector<std::uint32_t> in_domain_;          // zero between calls
  std::vector<std::uint32_t> together_;           // shards that two holders share
  std::vector<std::vector<std::uint32_t>> held_;  // shards of which a holder may give its copy away
  std::vector<std::size_t> cursor_;
  bool fresh_only_ = true;
};

// Which owner of a shard is its primary. Nothing lies elsewhere for it: only the role moves.
class Primaries final : public Exchange {
 public:
  Primaries(const Field& field, const std::vector<std::vector<Copy>>& copies, const ShardPlacement& current)
      : Exchange(field.capacity, kWorkMax), copies_(copies), primary_(copies.size()), led_(field.size()) {
    // A primary that still owns stays; the others are the lightest.
    for (std::uint32_t shard = 0; shard < copies.size(); ++shard) {
      const Copy& first = copies[shard].front();
      primary_[shard] = first.owner;
      if (first.fresh || field.member[first.owner] != current[shard].front())
        for (const Copy& copy : copies[shard])
          if (lighter(copy.owner, primary_[shard])) primary_[shard] = copy.owner;
      ++load(primary_[shard]);
      lead(primary_[shard], shard);
    }
    balance();
  }

  [[nodiscard]] Holder of(std::size_t shard) const { return primary_[shard]; }

 private:
  void lead(Holder holder, std::uint32_t shard) {
    led_[holder].push_back(shard);
    for (const Copy& copy : copies_[shard])
      if (copy.owner != holder) ++movable(holder)[copy.owner];
  }

  std::optional<std::uint32_t> choose(Holder from, Holder to) override {
    std::vector<std::uint32_t>& led = led_[from];
    for (std::size_t at = led.size(); at > 0 && spend(1); --at)
      for (const Copy& copy : copies_[led[at - 1]])
        if (copy.owner == to) return led[at - 1];
    return std::nullopt;
  }

  void move(std::uint32_t shard, Holder from, Holder to) override {
    std::vector<std::uint32_t>& led = led_[from];
    led.erase(std::next(std::find(led.rbegin(), led.rend(), shard)).base());  // choose() looks from the end
    for (const Copy& copy : copies_[shard])
      if (copy.owner != from) --movable(from)[copy.owner];
    lead(to, shard);
    primary_[shard] = to;
    --load(from);
    ++load(to);
  }

  const std::vector<std::vector<Copy>>& copies_;
  std::vector<Holder> primary_;
  std::vector<std::vector<std::uint32_t>> led_;
};

}  // namespace

ShardPlacement place_shards(const std::vector<schema::EpochMember>& members, std::size_t replicas, std::size_t shards,
                            const ShardPlacement& current) {
  ShardPlacement placement(shards);
  const Field field(members, replicas);
  if (field.copies == 0 || shards == 0) return placement;
  Owners owners(field, shards);
  owners.keep(current);
  owners.fill();
  owners.spread();
  const Primaries primaries(field, owners.copies(), current);
  for (std::size_t shard = 0; shard < shards; ++shard) {
    placement[shard].push_back(field.member[primaries.of(shard)]);
    for (const Copy& copy : owners.copies()[shard])
      if (copy.owner != primaries.of(shard)) placement[shard].push_back(field.member[copy.owner]);
  }
  return placement;
}

std::size_t shards_in_one_domain(const std::vector<schema::EpochMember>& members, const ShardPlacement& placement) {
  return static_cast<std::size_t>(std::count_if(placement.begin(), placement.end(), [&](const auto& owners) {
    return owners.size() > 1 && std::all_of(owners.begin(), owners.end(), [&](std::uint32_t owner) {
             return members[owner].domain == members[owners.front()].domain;
           });
  }));
}

}  // namespace gradtap::actors
