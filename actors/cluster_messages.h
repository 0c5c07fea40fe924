// ClusterMessages: the plain values that actors of one node send each other about the cluster.
//
// Same rules as messages.h: large immutable things travel as shared_ptr<const T>; none of these crosses nodes as it is
// (what crosses is text of peer_codec.h, or bulk over the node link).
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "actors/cluster_state.h"
#include "actors/coordination.h"
#include "actors/messages.h"

namespace gradtap::actors {

// A shard's gradient of one step, as a peer holds it: the form of the log record; empty for a skipped step.
struct PulledGradient {
  ShardId shard = 0;
  StepNumber step = 0;
  std::vector<std::uint8_t> bytes;
  MemoryLease memory;            // of the bytes
  std::optional<Sha256> digest;  // of the peer's shard after the step, when it owns the shard
  std::string source;
  Outcome outcome;
};
using PulledGradientPtr = std::shared_ptr<const PulledGradient>;

// A whole version of a shard, as a peer holds it; already rebuilt and its digest compared.
struct PulledVersion {
  std::shared_ptr<replica::Shard> shard;
  std::string source;
  Outcome outcome;
};
using PulledVersionPtr = std::shared_ptr<const PulledVersion>;

using PeerReportPtr = std::shared_ptr<const PeerReport>;
using GapsPtr = std::shared_ptr<const std::vector<Gap>>;

using ClusterShapePtr = std::shared_ptr<const ClusterShape>;
using ControlPortsPtr = std::shared_ptr<const std::vector<std::uint16_t>>;  // by member; 0 for this node

// What the publisher needs to know of the job's progress.
struct PublishView {
  JobPlanPtr plan;
  std::optional<StepNumber> due;                    // the step to publish next; nothing: none yet
  std::vector<Sha256> digests;                      // of the step that is due, in shard order
  std::vector<std::vector<MemberIndex>> producers;  // by shard: who can upload it, best first
  StepNumber training = 0;
  StepNumber verified = 0;
  StepNumber durable = 0;
  bool diverged = false;
};
using PublishViewPtr = std::shared_ptr<const PublishView>;

}  // namespace gradtap::actors
