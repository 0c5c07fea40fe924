// Messages: the plain values that actors of one node send each other.
//
// Ownership: bursts travel as raw pointers under a protocol (lent by the ingress actor, returned with the credit);
// everything large and immutable travels as shared_ptr<const T>, once per op, step or burst, never per packet.
// None of these crosses nodes: CAF would deliver them empty there.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "actors/http_answer.h"
#include "common/error.h"
#include "common/gap_reason.h"
#include "common/ids.h"
#include "dataplane/binding.h"
#include "dataplane/decoder.h"
#include "dataplane/op_window.h"
#include "dataplane/port.h"
#include "recovery/job_plan.h"
#include "recovery/rebuild_shard.h"
#include "replica/hyper.h"
#include "replica/layout.h"
#include "replica/shard.h"
#include "replica/step_message.h"
#include "storage/shard_store.h"

namespace gradtap::actors {

using recovery::JobPlan;
using recovery::JobPlanPtr;
using recovery::plan_from_attach;
using recovery::plan_from_record;
using recovery::read_message;
using recovery::StepMessagePtr;

// Answer to a status request: the actor's name and a JSON object.
struct ActorStatus {
  std::string name;
  std::string json = "{}";
};

// The outcome of a request that yields nothing else.
struct Outcome {
  bool ok = true;
  Error error;
};

inline constexpr std::size_t kBurstFrames = 32;

struct Wiring;  // interfaces.h: the actors in force
using WiringPtr = std::shared_ptr<const Wiring>;

// Frames of one poll. Lives until every SegmentBurst cut from it has come home. Only the ingress actor that polled
// it touches `references`.
struct FrameBurst {
  std::array<dataplane::Frame, kBurstFrames> frames;
  std::uint16_t count = 0;
  std::uint32_t references = 0;
};

// Segments of one FrameBurst for one assembler: lent until returned with the credit.
struct SegmentBurst {
  FrameBurst* frames = nullptr;
  std::uint16_t home_queue = 0;
  std::uint16_t assembler = 0;
  std::vector<dataplane::Segment> segments;
  std::vector<dataplane::OwnedBytes> kept;  // blocks of segments that had waited for a late header
};
struct SegmentBurstRef {
  SegmentBurst* burst = nullptr;
};

// Frames whose flow another queue owns; the receiver decodes and releases them.
struct HandOver {
  std::vector<dataplane::Frame> frames;
};
using HandOverPtr = std::shared_ptr<const HandOver>;

// What an ingress actor had to say when it found its queue empty and gave up waiting for holes.
struct DrainReport {
  std::uint16_t queue = 0;
  std::uint64_t frames = 0;  // polled so far
};

// Sizes that ops of the job may have.
using OpSizesPtr = std::shared_ptr<const dataplane::SizeTable>;

// Ops that changed since the last message.
using OpSummariesPtr = std::shared_ptr<const std::vector<dataplane::OpSummary>>;

// Flows of which an assembler has proven, by counting an op's messages to the end, where that op began.
using ProvenFlowsPtr = std::shared_ptr<const std::vector<dataplane::ProvenFlow>>;

// Asks an assembler for the bits of 32-bit words of an op, taken to be op_bytes long.
struct WordQuery {
  dataplane::OpKey op;
  std::uint64_t op_bytes = 0;
  std::vector<std::uint64_t> byte_offsets;
};
struct WordAnswer {
  std::vector<std::optional<std::uint32_t>> words;  // empty where the bytes are not there
  std::vector<Interval> missing;                    // of [0, op_bytes)
};

// The coordinator's decision: this op is this bucket of this step. The assembler cuts its bytes along `slices` and
// hands them to the shard owners.
struct BindOrder {
  dataplane::OpKey op;
  std::uint64_t op_bytes = 0;
  StepNumber step = 0;
  std::uint32_t bucket = 0;
  std::shared_ptr<const std::vector<replica::Slice>> slices;
  LineageId lineage = 0;
  std::uint64_t number = 0;  // of the order; grows, so that an order that was given up is told from the one in force
};

// Proven bytes of one bucket for one shard. `bytes` keeps the op alive.
struct Contribution {
  StepNumber step = 0;
  std::uint32_t bucket = 0;
  ShardId shard = 0;
  std::shared_ptr<const dataplane::OpBytes> bytes;
  std::vector<replica::Slice> slices;  // those of this shard
  LineageId lineage = 0;
  std::uint64_t order = 0;  // BindOrder::number
};
using ContributionPtr = std::shared_ptr<const Contribution>;

// The coordinator's go for a step: every bucket is bound, covered and witnessed.
struct Go {
  replica::StepScalars scalars;
  std::uint64_t first_order = 0;  // contributions of earlier bind orders are not meant
};
using GoPtr = std::shared_ptr<const Go>;

// A shard owner applied a step, or could not.
struct Applied {
  ShardId shard = 0;
  StepNumber step = 0;
  Sha256 digest{};
  Outcome outcome;
};

// What an owner gives the keeper to make durable. The keep-alives hold the bytes that the spans point to.
struct ShardRecord {
  LineageId lineage = 0;
  StepNumber step = 0;
  storage::ShardCommit commit;
  std::vector<std::shared_ptr<const void>> keep_alive;
};
using ShardRecordPtr = std::shared_ptr<const ShardRecord>;

// A shard's step is durable, or could not be made so (the keeper tries again).
struct Durable {
  ShardId shard = 0;
  StepNumber step = 0;
  Outcome outcome;
};

// A step message of the authoritative rank, parsed and checked.
using LayoutPtr = std::shared_ptr<const replica::Layout>;

// What the client said about itself: steps that will never come, or that it has gone.
struct ClientNotice {
  std::vector<StepNumber> dropped_steps;
  bool detached = false;
  std::string reason;
};
using ClientNoticePtr = std::shared_ptr<const ClientNotice>;

struct SideEntries {
  std::vector<storage::SideEntry> entries;
};
using SideEntriesPtr = std::shared_ptr<const SideEntries>;

struct LineageAnswer {
  Outcome outcome;
  storage::Lineage lineage;
};
using LineageRecordPtr = std::shared_ptr<const schema::LineageRecord>;

// A chunk of the baseline or of the probe as it was uploaded.
struct ChunkUpload {
  std::string session;
  std::string id;
  std::uint32_t number = 0;
  std::string body;
};
using ChunkUploadPtr = std::shared_ptr<const ChunkUpload>;

// Side state too large for its message, as it was uploaded.
struct BlobUpload {
  std::string session;
  std::string digest;  // hex, as the path names it
  std::string body;
};
using BlobUploadPtr = std::shared_ptr<const BlobUpload>;

struct MessagesPost {
  std::string session;
  std::string body;
};
using MessagesPostPtr = std::shared_ptr<const MessagesPost>;

}  // namespace gradtap::actors
