// NcclConnection: one data flow of an NCCL ring on a live tap, from pieces of messages to segments of ops.
//
// Purpose: lengths go to an NcclParse; what the parse labels, and the communicator numbers, is given out: bytes of
// final messages (LL lines without their flags), and for partial ones only that they were there, for assembly narrows
// sizes down by them. Ownership: owns copies of what comes before its label, at most keep_bytes, and all connections
// together at most the emission's keep_bytes, oldest dropped first;
// bytes of labelled messages are passed on where they lie (Simple) or stripped once (LL). Threads: one.
// Invariants: a piece is given out once per time it comes, and only at a place that its message's label proves; LL
// flags of a message all agree. Failure behaviour: what cannot be placed is counted and not given out.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "dataplane/nccl_parse.h"
#include "dataplane/roce_flow.h"
#include "dataplane/segment_sink.h"
#include "dataplane/strip_arena.h"

namespace gradtap::dataplane {

class NcclComm;

struct NcclConnectionConfig {
  NcclParseConfig parse;
  std::size_t recent_messages = 1024;
  std::size_t keep_bytes = std::size_t{32} << 20;
};

struct NcclCounters {
  std::uint64_t messages = 0;
  std::uint64_t foreign_messages = 0;
  std::uint64_t all_reduce_messages = 0;
  std::uint64_t segments = 0;
  std::uint64_t segment_bytes = 0;
  std::uint64_t kept_bytes = 0;     // copied: they came before their label
  std::uint64_t dropped_bytes = 0;  // of those: given up, for room or because their message has no label
  std::uint64_t keep_hits = 0;      // pieces for which there was no room among those of all connections
  std::uint64_t late_pieces = 0;    // of messages that are forgotten
  std::uint64_t bad_lines = 0;      // pieces whose flags disagree
  std::uint64_t lost_parses = 0;    // connections on which operations can no longer be told apart
  std::uint64_t renumbered_channels = 0;
  std::uint64_t surplus_connections = 0;  // more on an edge than the job has channels
};

// What is the same for all connections of a decoder while it decodes.
struct NcclEmission {
  SegmentSink* sink = nullptr;
  StripArena* arena = nullptr;
  NcclCounters* counters = nullptr;
  std::uint64_t now_ns = 0;
  std::size_t keep_bytes = std::size_t{256} << 20;  // of all connections
  std::size_t kept_bytes = 0;
};

class NcclConnection final : public RoceSink {
 public:
  NcclConnection(const NcclConnectionConfig& config, NcclEmission& emission, std::uint32_t flow,
                 std::uint16_t source_rank, std::uint16_t target_rank, std::uint32_t target_qp);
  NcclConnection(const NcclConnection&) = delete;
  NcclConnection& operator=(const NcclConnection&) = delete;
  ~NcclConnection() override;

  void piece(const RocePiece& piece) override;
  void message(const RoceMessage& message) override;
  void lost(const PsnRange& psns) override;
  void keep(const OwnedBytes& bytes) override;

  // From now on operations are looked for; everything since the connection began, or since its last all-reduce, is
  // read (again) with these patterns.
  void attach(NcclComm& comm, std::uint32_t channel, const std::vector<NcclPattern>& patterns);
  void detach() { comm_ = nullptr; }
  [[nodiscard]] bool attached_to(const NcclComm& comm) const { return comm_ == &comm; }
  // The communicator knows more: gives out what waited for it.
  void settle();
  // Nothing that is missing will come: a message whose end would be told by an immediate that is lost, or by what
  // follows it, is taken as it is if that is what operations have next.
  void flush();

  [[nodiscard]] std::uint32_t flow() const { return flow_; }
  [[nodiscard]] std::uint16_t source_rank() const { return source_rank_; }
  [[nodiscard]] std::uint16_t target_rank() const { return target_rank_; }
  [[nodiscard]] std::uint32_t target_qp() const { return target_qp_; }
  [[nodiscard]] std::uint64_t first_ns() const { return first_ns_; }
  [[nodiscard]] std::uint64_t last_ns() const { return last_ns_; }
  [[nodiscard]] std::optional<std::uint32_t> channel() const { return channel_; }
  [[nodiscard]] std::uint64_t all_reduces() const { return all_reduces_; }
  [[nodiscard]] const NcclParse& parse() const { return parse_; }
  [[nodiscard]] std::uint64_t stream_bytes() const { return stream_bytes_; }
  [[nodiscard]] std::size_t kept_bytes() const { return kept_bytes_; }

 private:
  struct Kept {
    std::uint64_t offset = 0;
    bool provisional = false;
    std::shared_ptr<std::uint8_t[]> bytes;
    std::uint32_t count = 0;
  };
  enum class Stage : std::uint8_t { kNew, kAnnounced, kForeign, kLabelled, kPlaced };
  struct Message {
    std::uint64_t number = ~std::uint64_t{0};
    Stage stage = Stage::kNew;
    bool told = false;  // how it ended is known
    std::optional<std::uint64_t> begin_psn;
    std::uint64_t seen_end = 0;  // bytes up to the last that was seen
    RoceMessage extent;
    NcclLabel label;
    std::uint32_t tag = 0;   // when placed
    std::uint32_t flag = 0;  // of its LL lines
    std::vector<Kept> kept;
  };
  // In PSN order: what operations have not taken yet.
  struct Entry {
    bool hole = false;
    PsnRange psns;
    std::uint64_t number = 0;
    std::uint64_t foreign = 0;  // operations that are none of ours, up to here
  };

  [[nodiscard]] Message* find(std::uint64_t number);
  Message* open(std::uint64_t number);
  void copy(Message& message, const RocePiece& piece);
  void drop(Message& message);
  void let_go(std::size_t bytes);
  [[nodiscard]] bool keeps_too_much() const;
  void announce(Message& message);
  void give_to_parse(const Entry& entry);
  void take_labels();
  void place_waiting();
  [[nodiscard]] std::optional<std::uint64_t> all_reduce_of(std::uint64_t n);
  void tell_candidates();
  void heed_candidates();
  [[nodiscard]] bool place(Message& message);
  [[nodiscard]] static std::uint64_t head_bytes(const Message& message, bool provisional);
  [[nodiscard]] Segment segment_of(const Message& message) const;
  void give_out(Message& message, std::uint64_t offset, const std::uint8_t* data, std::uint32_t bytes);
  void make_room();

  NcclConnectionConfig config_;
  NcclEmission& emission_;
  std::uint32_t flow_;
  std::uint16_t source_rank_;
  std::uint16_t target_rank_;
  std::uint32_t target_qp_;
  std::uint64_t first_ns_;
  std::uint64_t last_ns_;
  NcclParse parse_;
  NcclComm* comm_ = nullptr;
  std::optional<std::uint32_t> channel_;
  std::vector<Message> recent_;           // as many as a power of two: message n stands at n modulo that
  std::deque<Entry> tail_;                // foreign, or not read at all, since the last all-reduce
  std::deque<std::uint64_t> unlabelled_;  // given to the parse
  std::deque<std::uint64_t> unplaced_;    // labelled, the communicator has no number for them yet
  std::uint64_t tail_all_reduces_ = 0;
  std::uint64_t tail_foreign_ = 0;
  std::uint64_t all_reduces_ = 0;
  std::deque<std::uint64_t>
      mapped_;  // the communicator's numbers of this connection's all-reduces from mapped_base_ on
  std::uint64_t mapped_base_ = 0;
  std::uint64_t next_mapped_ = 0;               // the next one of the communicator to look at
  std::optional<std::uint64_t> told_revision_;  // of the parse, when candidates were told
  std::uint64_t newest_ = 0;
  std::uint64_t last_announced_ = ~std::uint64_t{0};
  std::uint64_t next_psn_ = 0;  // behind what was told last
  std::size_t kept_bytes_ = 0;
  std::uint64_t stream_bytes_ = 0;
  bool lost_counted_ = false;
};

}  // namespace gradtap::dataplane
