// SideChannelState: what the side channel's two sources share. For side_channel.cpp and attach.cpp alone.
//
// One actor's state: one thread at a time.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "actors/baseline_loader.h"
#include "actors/side_channel.h"
#include "replica/probe.h"

namespace gradtap::actors::side {

enum class AttachState : std::uint8_t { kUnattached, kOpening, kProbing, kBaseline, kFlushing, kTracking, kRefused };

[[nodiscard]] std::string_view attach_state_name(AttachState state);

// The lineage in force and how far its attach is.
struct Attached {
  AttachState state = AttachState::kUnattached;
  std::string run_nonce;
  JobPlan draft;    // until the recipe is known
  JobPlanPtr plan;  // from then on
  schema::LineageRecord record;
  std::unique_ptr<replica::ProbeUpload> probe;
  std::unique_ptr<BaselineLoader> baseline;
  LayoutPtr first_layout;
  std::optional<Error> refusal;
  [[nodiscard]] LineageId lineage() const { return record.lineage; }
  [[nodiscard]] const replica::Schema& schema() const { return plan ? plan->schema : draft.schema; }
};

// The capacity of the attach that was judged last.
struct Admission {
  capacity::JobShape job;
  std::uint32_t nodes = 1;
  double share = 1;
  bool asking = false;     // the members are being asked
  bool measuring = false;  // the step time was not declared and is measured
  std::optional<StepNumber> first_step;
  std::uint64_t first_ns = 0;
  std::string verdict;
  bool fits = true;
  std::optional<Error> refusal;
};

struct SideChannelState {
  explicit SideChannelState() = default;
  static inline const char* name = "side_channel";
  SideChannelOptions options;
  WiringPtr wiring;
  bool home = false;
  std::unique_ptr<SessionTable> sessions;
  Attached attached;
  Admission admission;
  std::uint64_t started_ns = 0;
  CoordinatorActor coordinator;
  LineageId base_durable = 0;            // the lineage of which every shard has a version in the stores
  std::set<std::string> busy;            // sessions with a post in flight
  std::set<std::string> layouts_wanted;  // hex ids
  std::uint64_t shards_flushed = 0;      // of the baseline
  // counters
  std::uint64_t posts = 0;
  std::uint64_t messages = 0;
  std::uint64_t refused = 0;
  std::uint64_t refused_limit = 0;  // of those: a bound was reached
  std::uint64_t superseded = 0;
  std::uint64_t store_failures = 0;
  std::uint64_t blobs = 0;
  std::uint64_t blob_bytes = 0;
  std::uint64_t not_home = 0;
};

using SideChannelPointer = SideChannelActor::stateful_pointer<SideChannelState>;

[[nodiscard]] HttpAnswer busy_answer(const std::string& what);
void note(SideChannelPointer self, LogLevel level, std::string_view text, std::vector<LogField> fields);
[[nodiscard]] HttpAnswer refuse(SideChannelPointer self, const Error& error);

// Why nothing of this session is taken: unknown, superseded, or not known well enough yet.
[[nodiscard]] std::optional<HttpAnswer> refuse_session(SideChannelPointer self, const Session* session,
                                                       const std::string& id);
// Stores entries here and on peers; `done` hears once they are durable on as many nodes as are wanted and live.
void spread(SideChannelPointer self, std::vector<storage::SideEntry> entries, std::function<void(const Outcome&)> done);
// Stores a session and entries with it, then answers with what `answer` makes of it.
void store_and_answer(SideChannelPointer self, caf::typed_response_promise<HttpAnswer> promise, const Session* session,
                      std::vector<storage::SideEntry> entries, std::function<HttpAnswer()> answer,
                      std::function<void()> on_failure);

// attach_admission.cpp: `then` hears CAPACITY_EXCEEDED, or NODE_BUSY, or that the job fits; maybe at once.
void admit(SideChannelPointer self, const JobPlan& plan, std::uint64_t step_time_ms,
           std::function<void(const Status&)> then);
// A step message of rank 0 has come: after kAdmissionSteps of them the step time is known.
void count_step(SideChannelPointer self, StepNumber step);

// attach.cpp
[[nodiscard]] caf::result<HttpAnswer> attach(SideChannelPointer self, const std::string& text);
[[nodiscard]] HttpAnswer attach_progress(SideChannelPointer self, const std::string& id);
[[nodiscard]] caf::result<HttpAnswer> take_chunk(SideChannelPointer self, const ChunkUpload& upload);

inline constexpr std::chrono::milliseconds kKeeperDeadline{3500};

}  // namespace gradtap::actors::side
