// NcclSurvey: the first look at a capture of RoCE traffic: what flows there are, what they carry, what is missing.
//
// Purpose: everything that can be said without keeping payload: flows with roles, messages with lengths, LL flags,
// clear-to-send entries, PSNs. What an operation is, and where its bytes belong, is decided on this (nccl_plan_flows.h)
// before a second look takes the payload. Ownership: owns the flow table and what it found, bounded by the
// configuration. Threads: one. Failure behaviour: frames that are not used are counted by reason; beyond max_items
// messages are counted only, and truncated() says so.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <vector>

#include "dataplane/encapsulation.h"
#include "dataplane/nccl_bootstrap.h"
#include "dataplane/nccl_cts.h"
#include "dataplane/nccl_manner.h"
#include "dataplane/nccl_program.h"
#include "dataplane/roce_flow_table.h"

namespace gradtap::dataplane {

struct RoceCaptureCounters {
  std::uint64_t frames = 0;
  std::uint64_t roce_frames = 0;
  std::uint64_t bad_icrc = 0;
  std::uint64_t vendor_frames = 0;  // of bad_icrc: with an opcode of no transport
  std::uint64_t tunnelled = 0;
  std::array<std::uint64_t, kFrameDropCount> drops{};  // by FrameDrop, of every kind of frame
};

// Finds the RoCE packet of a frame; counts. Both looks at a capture read frames through this. kNotRoce: `ip`, if it is
// asked for, is what was found instead.
[[nodiscard]] FrameDrop read_roce_frame(ByteSpan bytes, std::uint32_t wire_bytes, RoceCaptureCounters& counters,
                                        RoceFrame& frame, IpPacket* ip = nullptr);

enum class NcclRole : std::uint8_t { kUnknown, kData, kCts };

// What one flow carried.
class SurveyedFlow final : public RoceSink {
 public:
  SurveyedFlow(const RoceFlowIdentity& identity, std::uint64_t& items_left, NcclGrants& grants)
      : identity_(identity), items_left_(items_left), grants_(grants) {}

  void piece(const RocePiece& piece) override;
  void message(const RoceMessage& message) override;
  void lost(const PsnRange& psns) override;
  void keep(const OwnedBytes&) override {}

  [[nodiscard]] const RoceFlowIdentity& identity() const { return identity_; }
  [[nodiscard]] NcclRole role() const;
  [[nodiscard]] const std::vector<NcclItem>& items() const { return items_; }
  // The item of a message; nullptr when there was no room for it.
  [[nodiscard]] const NcclItem* item_of(std::uint64_t message) const;
  [[nodiscard]] const std::set<std::uint32_t>& tags() const { return tags_; }  // of clear-to-send entries
  [[nodiscard]] std::uint64_t cts_entries() const { return cts_entries_; }
  [[nodiscard]] std::uint64_t receives() const { return receives_; }  // most entries in one write
  [[nodiscard]] std::uint64_t data_bytes() const { return data_bytes_; }
  [[nodiscard]] std::uint32_t packet_bytes() const { return packet_bytes_; }
  [[nodiscard]] std::uint64_t mismatches() const { return mismatches_; }
  [[nodiscard]] const NcclFlowSigns& signs() const { return signs_; }
  [[nodiscard]] bool truncated() const { return truncated_; }

 private:
  struct Lines {
    std::uint32_t flag = 0;
    bool seen = false;
    bool broken = false;  // not LL
    std::uint64_t frame = 0;
  };
  void note(Lines& lines, const RocePiece& piece) const;

  static constexpr std::uint64_t kMaxCtsBytes = 64 * kMaxNcclReceives;
  static constexpr std::size_t kMaxTags = 1024;

  RoceFlowIdentity identity_;
  std::uint64_t& items_left_;
  NcclGrants& grants_;
  NcclFlowSigns signs_;
  std::vector<NcclItem> items_;
  std::vector<std::uint32_t> item_of_message_;
  std::map<std::uint64_t, Lines> open_;  // of messages that are not told yet
  std::set<std::uint32_t> tags_;
  std::uint64_t cts_entries_ = 0;
  std::uint64_t receives_ = 0;
  std::uint64_t data_bytes_ = 0;
  std::uint64_t messages_with_immediate_ = 0;
  std::uint64_t long_messages_ = 0;
  std::uint64_t mismatches_ = 0;
  std::uint32_t packet_bytes_ = 0;
  bool truncated_ = false;
};

struct NcclSurveyConfig {
  RoceFlowTableConfig table;
  std::uint64_t max_items = 8'000'000;
};

class NcclSurvey final : public RoceFlowUser {
 public:
  explicit NcclSurvey(const NcclSurveyConfig& config = {});

  void frame(ByteSpan bytes, std::uint32_t wire_bytes, std::uint64_t time_ns);
  void finish();

  [[nodiscard]] RoceSink& opened(const RoceFlowIdentity& identity) override;
  [[nodiscard]] const RoceFlowTable& table() const { return table_; }
  // By flow number, as in the table.
  [[nodiscard]] const std::vector<std::unique_ptr<SurveyedFlow>>& flows() const { return flows_; }
  [[nodiscard]] const RoceCaptureCounters& counters() const { return counters_; }
  [[nodiscard]] const SurveyedFlow* partner(const SurveyedFlow& flow) const;
  [[nodiscard]] bool truncated() const { return items_left_ == 0; }
  // Whether its packet numbers follow one another at all, as those of a connection do.
  [[nodiscard]] bool orderly(const SurveyedFlow& flow) const;
  // What the bootstrap said of a data flow, if it was seen.
  [[nodiscard]] const NcclConnectionName* name_of(const SurveyedFlow& flow) const;

 private:
  RoceCaptureCounters counters_;
  std::uint64_t items_left_;
  std::uint64_t time_ns_ = 0;
  NcclGrants grants_;
  std::vector<std::unique_ptr<SurveyedFlow>> flows_;
  RoceFlowTable table_;
  NcclBootstrap bootstrap_;
  std::map<std::pair<IpAddress, std::uint32_t>, NcclConnectionName>
      names_;  // by address and queue pair of the receiver
};

}  // namespace gradtap::dataplane
