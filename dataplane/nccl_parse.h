// NcclParse: where the operations of one NCCL connection begin, said message by message while they pass.
//
// Purpose: on a live tap a message's place must be known when its bytes come, not when its operation is over
// (nccl_program.h looks back at whole ones). The parse keeps every reading of the lengths seen so far that ends in
// whole all-reduces of known sizes, and labels a message as soon as all readings agree on its label; that they differ
// in the size does not matter, assembly finds that out. What no all-reduce explains is foreign.
//
// Invariants: a label is given once, in order. An all-reduce is read wherever one fits; only when its messages stop
// fitting is its beginning read as foreign (reread() counts that: labels given meanwhile were wrong, and only the
// witness stands behind them), and only while nothing was lost; else the parse is lost. After PSNs that no reading
// explains the parse is lost: everything is foreign from then on. Ownership: plain values; at most max_readings
// readings and max_waiting unlabelled messages. Threads: one. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <utility>
#include <vector>

#include "dataplane/nccl_program.h"

namespace gradtap::dataplane {

struct NcclParseConfig {
  std::size_t max_readings = 64;
  std::size_t max_waiting = 4096;
  std::size_t max_op_messages = 1 << 20;
  std::uint64_t max_rereads = 64;  // before readings agree again
};

struct NcclLabel {
  bool all_reduce = false;
  std::uint64_t all_reduces = 0;  // that began before, on this connection
  std::uint64_t foreign = 0;      // other operations before, as far as lengths tell them apart
  std::uint64_t index = 0;        // of the message in the all-reduce
  std::uint64_t data_bytes = 0;
  Phase phase = Phase::kPartial;
  bool lines = false;            // LL: data and flags
  std::uint64_t head_bytes = 0;  // of a message whose beginning was uncertain: lost before what was seen of it
  friend bool operator==(const NcclLabel&, const NcclLabel&) = default;
};

class NcclParse {
 public:
  explicit NcclParse(const NcclParseConfig& config = {}) : config_(config) { restart(0, 0); }

  // The all-reduces to look for, from the next operation on.
  void set_patterns(std::vector<NcclPattern> patterns);
  // Forgets what it has read: an operation begins with the next message.
  void restart(std::uint64_t all_reduces, std::uint64_t foreign);

  // `whole`: it is known how it ended; otherwise ended() says so.
  void message(const RoceMessage& message, bool whole = true);
  // More about the last message, which was given by its first packet: how it ended, before anything that follows it.
  void ended(const RoceMessage& message);
  // What it hid is concluded with what follows it, which may say how long packets are.
  void hole(const PsnRange& psns);
  void conclude_hole() { conclude_hole(false); }  // nothing follows it for now

  // Labels of messages in the order in which they were given, each once; nothing while readings differ.
  [[nodiscard]] std::optional<NcclLabel> take();
  // What the all-reduce with this number may be (ids of patterns, ascending); nothing while some reading has not got to
  // it, or when it is long over.
  [[nodiscard]] std::vector<std::uint32_t> candidates(std::uint64_t all_reduce) const;
  // Others know that it is one of these: readings that say otherwise are dropped. True if that changed anything.
  bool restrict(std::uint64_t all_reduce, const std::vector<std::uint32_t>& ids);
  // Numbers of the all-reduces on which readings may still differ: [first, second).
  [[nodiscard]] std::pair<std::uint64_t, std::uint64_t> undecided() const;

  // Whether some reading has a message of this length next.
  [[nodiscard]] bool expects(std::uint64_t bytes) const;
  [[nodiscard]] bool at_boundary() const;
  [[nodiscard]] bool lost() const { return lost_; }
  [[nodiscard]] std::uint64_t reread() const { return reread_; }
  [[nodiscard]] std::size_t waiting() const { return waiting_; }
  // Rises whenever candidates() may give another answer.
  [[nodiscard]] std::uint64_t revision() const { return revision_; }

 private:
  static constexpr std::size_t kBetween = ~std::size_t{0};
  struct Item {
    bool hole = false;
    std::uint64_t bytes = 0;
    bool at_least = false;        // more of it may have been lost
    bool head_uncertain = false;  // and at its beginning
    bool run = false;             // of writes of one packet each: its immediate comes apart
    bool never = false;           // certainly of no all-reduce
    bool unclosed = false;        // its immediate, apart from the data, was not seen: it is in the hole that follows
    bool end_unseen = false;      // whether its immediate comes apart is not known
    bool headless = false;        // where it begins was concluded, not seen
    bool heads = false;           // of a hole: what follows may have begun in it
    std::uint32_t packet_bytes = 0;
    std::uint64_t psns = 0;
  };
  // How long packets are and whether long messages have their immediate apart: a set of what may be, a bit each.
  using Worlds = std::uint32_t;
  static constexpr std::uint32_t kPathMtus = 5;  // 256, 512, ... 4096
  static constexpr Worlds kAllWorlds = (1U << 2 * kPathMtus) - 1;
  struct Packets {
    std::uint64_t psns = 0;
    Worlds worlds = 0;
  };
  struct Placement {
    std::uint64_t head_bytes = 0;
    Packets owed;
  };
  struct Taken {
    std::uint64_t all_reduce = 0;
    std::vector<std::uint32_t> ids;  // that look the same on this connection, ascending
  };
  struct Reading {
    std::uint64_t all_reduces = 0;
    std::uint64_t foreign = 0;
    std::size_t pattern = kBetween;  // index in patterns_
    std::uint64_t next = 0;          // message of the pattern
    Worlds worlds = kAllWorlds;
    std::uint64_t head_psns = 0;    // the last of the hole before: the next message began there
    std::uint64_t owed_psns = 0;    // the first of the hole that follows: the rest of the last message
    bool foreign_goes_on = false;   // the last message was a full slot of something foreign
    std::vector<NcclLabel> labels;  // of the messages that are not labelled yet
    std::vector<Taken> taken;       // all-reduces since readings stood between two operations
    // The future of both is the same, and so are the labels.
    [[nodiscard]] bool same_place(const Reading& other) const;
  };

  void conclude_hole(bool heads);
  void add(const Item& item);
  void step(const Item& item);
  [[nodiscard]] bool step_straight_on(const Item& item);
  [[nodiscard]] NcclLabel label_of(const Reading& reading, std::size_t pattern, std::uint64_t index) const;
  void go_on(Reading& reading, std::size_t pattern, std::uint64_t index) const;
  [[nodiscard]] static bool fits(const Item& item, const NcclPattern& pattern, std::uint64_t index);
  void learn(const RoceMessage& message);
  void narrow_worlds(Worlds worlds);
  [[nodiscard]] bool unclosed(const RoceMessage& message) const;
  [[nodiscard]] bool end_unseen(const RoceMessage& message) const;
  [[nodiscard]] static std::vector<Packets> owed(const Item& item, std::uint64_t bytes, Worlds worlds);
  [[nodiscard]] static std::vector<Placement> placements(const Item& item, const Reading& reading, std::uint64_t bytes);
  void take_message(const Reading& from, std::size_t pattern, std::uint64_t index, std::vector<Reading>& to) const;
  void fill_hole(const Reading& from, std::uint64_t psns, bool heads, std::size_t& budget,
                 std::vector<Reading>& to) const;
  [[nodiscard]] bool head_may_be(const Reading& from, std::uint64_t psns) const;
  // How many packets a message of this length may have been; ascending.
  [[nodiscard]] static std::vector<Packets> packets(std::uint64_t bytes, Worlds worlds);
  [[nodiscard]] static Reading as_foreign(const Reading& from, const Item& item);
  void reread_as_foreign();
  void lose(const Item& item);
  void settle();
  static void merge(Reading& into, const Reading& other);

  NcclParseConfig config_;
  std::vector<NcclPattern> patterns_;
  std::vector<Reading> readings_;
  std::deque<NcclLabel> ready_;
  std::optional<Item> hole_;          // not concluded yet
  std::vector<Item> since_boundary_;  // items since all readings stood between two operations
  std::size_t labelled_ = 0;          // messages among them that have got their label
  Reading boundary_;                  // and where that was
  std::deque<Taken> decided_;         // before the boundary, the newest
  std::size_t waiting_ = 0;
  Worlds worlds_ = kAllWorlds;
  bool filled_ = false;  // a hole was filled, or a message's beginning concluded, since the parse (re)started
  bool lost_ = false;
  std::uint64_t revision_ = 0;
  std::uint64_t reread_ = 0;
  std::uint64_t rereads_here_ = 0;
};

}  // namespace gradtap::dataplane
