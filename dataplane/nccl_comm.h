// NcclComm: what the connections of one NCCL communicator know together: the number of every operation.
//
// Purpose: a connection counts the all-reduces and the other operations that it carries; but not every operation
// crosses every connection (a broadcast never enters its root, a small operation uses few channels). An all-reduce is
// operation number a + f: a all-reduces came before, and f others, counted on the edge of the ring that carried most.
// Channel 0 carries every operation, so its connections count; the others are mapped to it by the number of channels
// that each size uses. A number is given when every edge has begun the all-reduce: before that no rank can send a
// final byte of it. An edge that is silent for `grace_ms` is not waited for.
//
// Channels of an edge are numbered by the queue pairs' numbers, which NCCL's connections are made in the order of. Each
// channel has a connection on every edge: one that shows fewer than have proven to carry all-reduces on another waits.
// Ownership: refers to connections that the decoder owns. Threads: one. Bounds: max_open all-reduces.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "dataplane/nccl_connection.h"
#include "dataplane/nccl_schedule.h"
#include "dataplane/size_table.h"

namespace gradtap::dataplane {

struct NcclCommConfig {
  NcclTuning tuning;
  std::uint64_t grace_ms = 20;  // that an edge may be late to an operation
  std::uint64_t channel_grace_ms =
      100;  // that a connection's neighbours have to appear, one with its first packet lost too
  std::size_t max_open = 65536;
};

class NcclComm {
 public:
  NcclComm(const NcclCommConfig& config, std::uint32_t number, NcclEmission& emission)
      : config_(config), number_(number), emission_(emission), edges_(config.tuning.ranks) {}

  // A connection between neighbours of the ring.
  void add(NcclConnection& connection);
  void set_sizes(const SizeTable& sizes);
  void tick();
  // Operations below this number are over.
  void forget_below(std::uint32_t tag);

  // For connections. A message of all-reduce `a` was seen on channel 0 of the edge that begins at `source`.
  void begun(std::uint32_t source, std::uint64_t a, std::uint64_t foreign);
  // What a connection takes all-reduce `a` for: ids of patterns, ascending.
  void narrow(std::uint64_t a, const std::vector<std::uint32_t>& ids);
  // What all connections together take it for; null while none has said anything.
  [[nodiscard]] const std::vector<std::uint32_t>* candidates(std::uint64_t a) const;
  [[nodiscard]] std::optional<std::uint32_t> tag(std::uint64_t a) const;
  // Channels that all-reduce `a` uses; nothing while that is not known.
  [[nodiscard]] std::optional<std::uint32_t> channels(std::uint64_t a) const;
  [[nodiscard]] std::uint32_t number() const { return number_; }
  [[nodiscard]] std::uint32_t message_index(std::uint32_t channel, std::uint64_t message) const {
    return static_cast<std::uint32_t>(message * config_.tuning.channels + channel);
  }
  [[nodiscard]] std::uint64_t numbered() const { return base_ + numbered_; }

 private:
  struct AllReduce {
    std::uint64_t first_ns = 0;
    std::uint64_t foreign = 0;
    std::vector<bool> begun;  // by the edge's source
    std::uint32_t begun_count = 0;
    std::vector<std::uint32_t> ids;  // empty: nobody has said anything
    std::uint32_t tag = 0;
  };
  [[nodiscard]] std::vector<NcclPattern> patterns_on(std::uint32_t source, std::uint32_t channel) const;
  void number_channels(std::vector<NcclConnection*>& edge);
  [[nodiscard]] std::size_t proven_channels() const;
  void number_operations();
  [[nodiscard]] AllReduce* at(std::uint64_t a);
  void name_others(std::uint32_t first, std::uint32_t end);

  NcclCommConfig config_;
  std::uint32_t number_;
  NcclEmission& emission_;
  std::vector<std::vector<NcclConnection*>> edges_;  // by source, in order of queue pair numbers
  std::vector<NcclSchedule> schedules_;              // by pattern id
  std::deque<AllReduce> open_;
  std::uint64_t base_ = 0;      // number of open_.front()
  std::uint64_t numbered_ = 0;  // of open_
  std::uint64_t last_foreign_ = 0;
  std::uint64_t next_numbering_ns_ = 0;
  bool settling_ = false;
  bool unsettled_ = false;  // something became known that lets connections go on
  std::uint32_t next_tag_ = 0;
};

}  // namespace gradtap::dataplane
