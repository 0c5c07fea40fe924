// Exchange: spreads things over holders in proportion to capacity, by single moves and chains of moves.
//
// Purpose: both the owners and the primaries of shards are spread so. Integers only: what is made small is the sum of
// load^2 / capacity; it is at its smallest when no chain of legal moves lowers it, and then loads per unit of capacity
// differ by at most one wherever a move is legal. Ownership: none. Threads: one. Invariants: the same input gives the
// same moves; nothing moves unless the sum becomes smaller; work is bounded. Failure behaviour: none; when the bound is
// reached, the rest stays where it is.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace gradtap::actors {

class Exchange {
 public:
  using Holder = std::uint32_t;

  virtual ~Exchange() = default;
  // Makes the loads as even as legal moves allow.
  void balance();

 protected:
  Exchange(std::vector<std::uint64_t> capacity, std::uint64_t work_max);

  // A thing that may move from one holder to the other now; called where movable() is not 0. May be nothing only when
  // the bound on work is reached.
  [[nodiscard]] virtual std::optional<std::uint32_t> choose(Holder from, Holder to) = 0;
  // Does the move, or undoes one; keeps load() and movable() as they must be afterwards.
  virtual void move(std::uint32_t thing, Holder from, Holder to) = 0;

  [[nodiscard]] std::size_t holders() const { return capacity_.size(); }
  [[nodiscard]] std::uint64_t& load(Holder holder) { return load_[holder]; }
  // How many things may move from one holder to the other.
  [[nodiscard]] std::uint32_t* movable(Holder from) { return movable_.data() + std::size_t{from} * holders(); }
  // Would one more at `a` weigh less than one more at `b`?
  [[nodiscard]] bool lighter(Holder a, Holder b) const;
  [[nodiscard]] bool equally_light(Holder a, Holder b) const;
  // Would the loads be more even after such a move?
  [[nodiscard]] bool improves(Holder from, Holder to) const;
  // False: the bound is reached.
  [[nodiscard]] bool spend(std::uint64_t work);

 private:
  [[nodiscard]] bool heavier(Holder a, Holder b) const;
  [[nodiscard]] std::vector<Holder> heap_of_heaviest() const;
  [[nodiscard]] Holder pop_heaviest(std::vector<Holder>& heap) const;
  bool move_directly();
  bool move_by_chain();
  bool move_along(const std::vector<Holder>& path);

  const std::vector<std::uint64_t> capacity_;
  std::vector<std::uint64_t> load_;
  std::vector<std::uint32_t> movable_;
  std::uint64_t work_left_;
};

}  // namespace gradtap::actors
