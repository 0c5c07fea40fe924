// SideChannel: the actor of the trainer's messages (docs/side-channel.md).
//
// Purpose: sessions, attach with probe and baseline, step messages, blobs; at work on the home only. It stores what
// must last, here (through the keeper) and on peers (through the replicators), then tells the coordinator. Threads: the
// scheduler's, one message at a time; never waits. Owns the sessions and, during an attach, the shards being loaded.
// Invariants: an answer with durable_seq = n means that every message up to n is synced; a superseded lineage gets 409
// and nothing else. Failure behaviour: a named error for the client; what was stored stays.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "actors/admission.h"
#include "actors/cluster_state.h"
#include "actors/interfaces.h"
#include "actors/message_batch.h"
#include "actors/session_table.h"
#include "common/clock.h"
#include "common/event_ring.h"
#include "common/memory_ledger.h"
#include "common/random.h"
#include "recovery/job_plan.h"
#include "replica/shard.h"

namespace gradtap::actors {

// What an attach is judged by.
struct AdmissionOptions {
  AdmissionTerms terms;
  std::function<capacity::NodeShape()> own;  // of this node; empty: every job is admitted
  std::function<bool()> measured;            // its rates are known
  std::uint64_t rates_wait_ms = 5000;        // after the start: an attach with a step time is judged without rates
};

struct SideChannelOptions {
  std::string job_name;
  std::vector<std::string> endpoints;  // rank order
  std::uint64_t shard_elements = 0;
  std::uint64_t publish_interval_steps = 1;
  MessageLimits limits;
  KeeperActor keeper;
  std::shared_ptr<const Clock> clock;
  std::shared_ptr<Random> random;
  std::shared_ptr<EventRing> events;
  std::shared_ptr<const storage::ShardStore> store;  // read when this node becomes home
  std::shared_ptr<const ClusterState> cluster;       // empty: this node is alone
  // Starts coordinator and owners of the lineage and re-wires the node; an earlier lineage's actors end.
  std::function<CoordinatorActor(const JobPlanPtr&, std::vector<std::shared_ptr<replica::Shard>>)> launch;
  AdmissionOptions admission;
  std::function<void()> on_base_durable;                                    // the baseline in hand is no longer needed
  std::shared_ptr<MemoryLedger> memory = std::make_shared<MemoryLedger>();  // baselines are taken from it
};

[[nodiscard]] SideChannelActor spawn_side_channel(caf::actor_system& system, SideChannelOptions options);

// Where a session is kept in the store, and its bytes.
[[nodiscard]] std::string session_key(const JobId& job, LineageId lineage, std::uint32_t rank);
[[nodiscard]] std::vector<std::uint8_t> encode_session(const Session& session);
[[nodiscard]] Result<Session> decode_session(ByteSpan bytes);

}  // namespace gradtap::actors
