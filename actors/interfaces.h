// Interfaces: every actor of the running system and every message it takes, one sentence each.
//
// Rules: every actor answers `status`; every request has a finite timeout; whoever dies is reported to the
// supervisor, which ends the node (the store recovers it). Credits bound every hop: ingress -> assembler by bursts
// lent, coordinator -> owner by steps bound ahead, owner -> keeper by steps not yet durable. Across nodes only the peer
// actor is addressed, with texts of peer_codec.h; bulk goes over the node link.
#pragma once

#include <caf/all.hpp>

#include "actors/cluster_messages.h"
#include "actors/messages.h"

CAF_ALLOW_UNSAFE_MESSAGE_TYPE(gradtap::actors::ActorStatus)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(gradtap::actors::Outcome)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(gradtap::actors::HttpAnswer)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(gradtap::actors::SegmentBurstRef)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(gradtap::actors::HandOverPtr)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(gradtap::actors::DrainReport)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(gradtap::actors::OpSizesPtr)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(gradtap::actors::WordQuery)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(gradtap::actors::WordAnswer)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(gradtap::actors::BindOrder)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(gradtap::actors::ContributionPtr)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(gradtap::actors::GoPtr)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(gradtap::actors::Applied)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(gradtap::actors::ShardRecordPtr)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(gradtap::actors::Durable)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(gradtap::actors::StepMessagePtr)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(gradtap::actors::LayoutPtr)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(gradtap::actors::ClientNoticePtr)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(gradtap::actors::SideEntriesPtr)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(gradtap::actors::LineageAnswer)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(gradtap::actors::LineageRecordPtr)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(gradtap::actors::ChunkUploadPtr)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(gradtap::actors::MessagesPostPtr)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(gradtap::actors::OpSummariesPtr)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(gradtap::actors::ProvenFlowsPtr)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(gradtap::actors::WiringPtr)

CAF_ALLOW_UNSAFE_MESSAGE_TYPE(gradtap::actors::PulledGradientPtr)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(gradtap::actors::PulledVersionPtr)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(gradtap::actors::PeerReportPtr)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(gradtap::actors::GapsPtr)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(gradtap::actors::PublishViewPtr)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(gradtap::actors::BlobUploadPtr)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(gradtap::actors::ClusterShapePtr)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(gradtap::actors::EpochPtr)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(gradtap::actors::PlacementViewPtr)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(gradtap::actors::ControlPortsPtr)

CAF_BEGIN_TYPE_ID_BLOCK(gradtap, first_custom_type_id)
CAF_ADD_ATOM(gradtap, gradtap::actors, status_atom, "status")
CAF_ADD_ATOM(gradtap, gradtap::actors, poll_atom, "poll")
CAF_ADD_ATOM(gradtap, gradtap::actors, credit_atom, "credit")
CAF_ADD_ATOM(gradtap, gradtap::actors, handover_atom, "handover")
CAF_ADD_ATOM(gradtap, gradtap::actors, drain_atom, "drain")
CAF_ADD_ATOM(gradtap, gradtap::actors, closed_atom, "closed")
CAF_ADD_ATOM(gradtap, gradtap::actors, forget_atom, "forget")
CAF_ADD_ATOM(gradtap, gradtap::actors, segments_atom, "segments")
CAF_ADD_ATOM(gradtap, gradtap::actors, sizes_atom, "sizes")
CAF_ADD_ATOM(gradtap, gradtap::actors, words_atom, "words")
CAF_ADD_ATOM(gradtap, gradtap::actors, bind_atom, "bind")
CAF_ADD_ATOM(gradtap, gradtap::actors, wire_atom, "wire")
CAF_ADD_ATOM(gradtap, gradtap::actors, ops_atom, "ops")
CAF_ADD_ATOM(gradtap, gradtap::actors, step_atom, "step")
CAF_ADD_ATOM(gradtap, gradtap::actors, layout_atom, "layout")
CAF_ADD_ATOM(gradtap, gradtap::actors, notice_atom, "notice")
CAF_ADD_ATOM(gradtap, gradtap::actors, applied_atom, "applied")
CAF_ADD_ATOM(gradtap, gradtap::actors, durable_atom, "durable")
CAF_ADD_ATOM(gradtap, gradtap::actors, tick_atom, "tick")
CAF_ADD_ATOM(gradtap, gradtap::actors, digests_atom, "digests")
CAF_ADD_ATOM(gradtap, gradtap::actors, contrib_atom, "contrib")
CAF_ADD_ATOM(gradtap, gradtap::actors, go_atom, "go")
CAF_ADD_ATOM(gradtap, gradtap::actors, record_atom, "record")
CAF_ADD_ATOM(gradtap, gradtap::actors, flush_atom, "flush")
CAF_ADD_ATOM(gradtap, gradtap::actors, side_atom, "side")
CAF_ADD_ATOM(gradtap, gradtap::actors, lineage_atom, "lineage")
CAF_ADD_ATOM(gradtap, gradtap::actors, attach_atom, "attach")
CAF_ADD_ATOM(gradtap, gradtap::actors, attached_atom, "attached")
CAF_ADD_ATOM(gradtap, gradtap::actors, chunk_atom, "chunk")
CAF_ADD_ATOM(gradtap, gradtap::actors, post_atom, "post")
CAF_ADD_ATOM(gradtap, gradtap::actors, detach_atom, "detach")
CAF_ADD_ATOM(gradtap, gradtap::actors, ask_atom, "ask")
CAF_ADD_ATOM(gradtap, gradtap::actors, watch_atom, "watch")
CAF_ADD_ATOM(gradtap, gradtap::actors, shards_atom, "shards")
CAF_ADD_ATOM(gradtap, gradtap::actors, pull_atom, "pull")
CAF_ADD_ATOM(gradtap, gradtap::actors, version_atom, "version")
CAF_ADD_ATOM(gradtap, gradtap::actors, sync_atom, "sync")
CAF_ADD_ATOM(gradtap, gradtap::actors, hello_atom, "hello")
CAF_ADD_ATOM(gradtap, gradtap::actors, report_atom, "report")
CAF_ADD_ATOM(gradtap, gradtap::actors, live_atom, "live")
CAF_ADD_ATOM(gradtap, gradtap::actors, home_atom, "home")
CAF_ADD_ATOM(gradtap, gradtap::actors, fetch_atom, "fetch")
CAF_ADD_ATOM(gradtap, gradtap::actors, publish_atom, "publish")
CAF_ADD_ATOM(gradtap, gradtap::actors, upload_atom, "upload")
CAF_ADD_ATOM(gradtap, gradtap::actors, blob_atom, "blob")
CAF_ADD_ATOM(gradtap, gradtap::actors, retain_atom, "retain")
CAF_ADD_ATOM(gradtap, gradtap::actors, connect_to_atom, "connect to")
CAF_ADD_ATOM(gradtap, gradtap::actors, epoch_atom, "epoch")
CAF_ADD_ATOM(gradtap, gradtap::actors, placement_atom, "placement")
CAF_ADD_ATOM(gradtap, gradtap::actors, release_atom, "release")
CAF_ADD_ATOM(gradtap, gradtap::actors, full_atom, "full")
CAF_ADD_ATOM(gradtap, gradtap::actors, nodes_atom, "nodes")
CAF_ADD_ATOM(gradtap, gradtap::actors, whole_atom, "whole")
CAF_END_TYPE_ID_BLOCK(gradtap)

namespace gradtap::actors {

// One detached actor per receive queue: polls frames, decodes them, lends bursts of segments to assemblers.
using IngressActor = caf::typed_actor<
    // Poll once more; sent by the actor to itself, at once while frames come, later and later while none do.
    caf::reacts_to<poll_atom>,
    // An assembler returns a burst that it has consumed, and with it the credit.
    caf::reacts_to<credit_atom, SegmentBurstRef>,
    // Another queue saw frames of a flow that belongs here.
    caf::reacts_to<handover_atom, HandOverPtr>,
    // Poll until the queue is empty, then stop waiting for the holes of every flow: what is missing will not come.
    caf::replies_to<drain_atom>::with<DrainReport>,
    // An assembler has proven, by counting to the end, where ops of these flows began.
    caf::reacts_to<closed_atom, ProvenFlowsPtr>,
    // Ops of a communicator below a tag are done with.
    caf::reacts_to<forget_atom, std::uint32_t, std::uint32_t>,
    // The sizes that ops may have, as far as layouts are known.
    caf::reacts_to<sizes_atom, OpSizesPtr>,
    // The assemblers and the other queues, once all of them exist.
    caf::reacts_to<wire_atom, WiringPtr>,
    // What the decoder and the credits have counted.
    caf::replies_to<status_atom>::with<ActorStatus>>;

// Several per node; which op goes to which is a guess that only spreads the load: copies payload once to its place.
using AssemblerActor = caf::typed_actor<
    // Segments of one burst; the actor returns the burst to its ingress actor.
    caf::reacts_to<segments_atom, SegmentBurstRef>,
    // The sizes that ops may have, as far as layouts are known.
    caf::reacts_to<sizes_atom, OpSizesPtr>,
    // The bits at some offsets of an op (the witness's positions), and what of it is missing.
    caf::replies_to<words_atom, WordQuery>::with<WordAnswer>,
    // An op is a bucket of a step: hand its bytes to the owners.
    caf::replies_to<bind_atom, BindOrder>::with<Outcome>,
    // Ops of a communicator below a tag are done with: free them.
    caf::reacts_to<forget_atom, std::uint32_t, std::uint32_t>,
    // The coordinator, owners and ingress actors in force.
    caf::reacts_to<wire_atom, WiringPtr>,
    // Ops, bytes, duplicates, conflicts, limbo.
    caf::replies_to<status_atom>::with<ActorStatus>>;

// One per job: binds ops to steps by count, interval and witness, and gives the go. Bytes never pass it.
using CoordinatorActor = caf::typed_actor<
    // What assemblers know about ops, whenever it changed.
    caf::reacts_to<ops_atom, OpSummariesPtr>,
    // The authoritative rank committed a step.
    caf::reacts_to<step_atom, StepMessagePtr>,
    // A layout by value, in force or predicted.
    caf::reacts_to<layout_atom, LayoutPtr>,
    // The client declared steps lost, or left.
    caf::reacts_to<notice_atom, ClientNoticePtr>,
    // A shard applied a step.
    caf::reacts_to<applied_atom, Applied>,
    // A shard's step is durable.
    caf::reacts_to<durable_atom, Durable>,
    // An owner here took a whole version over from a peer.
    caf::reacts_to<version_atom, std::uint32_t, std::uint64_t>,
    // What a peer's coordinator says of the lineage.
    caf::reacts_to<report_atom, PeerReportPtr>,
    // A member came or went.
    caf::reacts_to<live_atom, std::uint64_t, bool>,
    // Another epoch is in force: who owns what now.
    caf::reacts_to<epoch_atom, ClusterShapePtr>,
    // Who holds which shard and how far each is.
    caf::replies_to<placement_atom>::with<PlacementViewPtr>,
    // The newest recovery point, and why there is no newer one.
    caf::reacts_to<publish_atom, std::uint64_t, GapsPtr>,
    // What the publisher needs to know for the step that is due after this one, at this interval.
    caf::replies_to<publish_atom, std::uint64_t, std::uint64_t>::with<PublishViewPtr>,
    // Peers and publisher are to be told what is new; sent by the actor to itself, once for many events.
    caf::reacts_to<flush_atom>,
    // Time has passed: deadlines are looked at.
    caf::reacts_to<tick_atom>,
    // The owners, assemblers and ingress actors in force.
    caf::reacts_to<wire_atom, WiringPtr>,
    // State roots of the steps from..to, as JSON.
    caf::replies_to<digests_atom, std::uint64_t, std::uint64_t>::with<HttpAnswer>,
    // The four numbers, the gaps and the counters of binding.
    caf::replies_to<status_atom>::with<ActorStatus>>;

// One per shard: holds the shard at step s-1, applies s iff the go and every byte are there.
using OwnerActor = caf::typed_actor<
    // Proven bytes of a bucket.
    caf::reacts_to<contrib_atom, ContributionPtr>,
    // The scalars of a step whose buckets are all proven.
    caf::reacts_to<go_atom, GoPtr>,
    // The scalars of a step that this node's tap did not show whole: its gradient is to be fetched from a peer.
    caf::reacts_to<fetch_atom, GoPtr>,
    // The owner has no version, or none that a log leads on from: it asks peers for a whole one, at this step or newer.
    caf::reacts_to<version_atom, std::uint64_t>,
    // Peers ask for a full version at this step or newer: write one with the next step if none is there.
    caf::reacts_to<full_atom, std::uint64_t>,
    // The shard's new owners have it: apply nothing more, have it deleted here, and end.
    caf::reacts_to<release_atom>,
    // A step of this shard is durable.
    caf::reacts_to<durable_atom, Durable>,
    // No memory was left to copy the first version: try again; sent by the actor to itself.
    caf::reacts_to<flush_atom>,
    // The coordinator and keeper in force; the owner then makes its base version durable if it is not yet.
    caf::reacts_to<wire_atom, WiringPtr>,
    // Version, durable step, digest, as JSON.
    caf::replies_to<status_atom>::with<ActorStatus>>;

// One detached actor per node that owns the store: makes steps durable in groups; the only one that waits for a disk.
using KeeperActor = caf::typed_actor<
    // A shard's step is to become durable; answered by `durable` to its owner (named here) and to the coordinator.
    caf::reacts_to<record_atom, ShardRecordPtr, caf::strong_actor_ptr>,
    // Commit what has gathered; sent by the actor to itself.
    caf::reacts_to<flush_atom>,
    // The node stops: what was given here is to be durable when this is answered, or a commit has failed.
    caf::replies_to<drain_atom>::with<Outcome>,
    // Side values are to become durable, in one synced batch.
    caf::replies_to<side_atom, SideEntriesPtr>::with<Outcome>,
    // The lineage of a run: the same number for the same run_nonce.
    caf::replies_to<lineage_atom, LineageRecordPtr>::with<LineageAnswer>,
    // The lineage's record is to be replaced (the recipe is known now).
    caf::replies_to<record_atom, LineageRecordPtr>::with<Outcome>,
    // The shard of this lineage is no longer held here: its versions, logs and mark are deleted.
    caf::reacts_to<release_atom, std::uint32_t, std::uint32_t>,
    // Shards' logs at or below this step are no longer needed by co-owners or recovery points.
    caf::reacts_to<retain_atom, std::uint64_t>,
    // The coordinator in force.
    caf::reacts_to<wire_atom, WiringPtr>,
    // Commits, bytes, errors, free space.
    caf::replies_to<status_atom>::with<ActorStatus>>;

// One per job: sessions, attach, baseline and step messages as the trainer sends them.
using SideChannelActor = caf::typed_actor<
    // POST attach.
    caf::replies_to<attach_atom, MessagesPostPtr>::with<HttpAnswer>,
    // GET attach/SESSION: how far the attach is.
    caf::replies_to<attached_atom, std::string>::with<HttpAnswer>,
    // PUT chunks: baseline or probe.
    caf::replies_to<chunk_atom, ChunkUploadPtr>::with<HttpAnswer>,
    // POST messages.
    caf::replies_to<post_atom, MessagesPostPtr>::with<HttpAnswer>,
    // PUT blobs: side state too large for a message.
    caf::replies_to<blob_atom, BlobUploadPtr>::with<HttpAnswer>,
    // POST detach.
    caf::replies_to<detach_atom, MessagesPostPtr>::with<HttpAnswer>,
    // This node has become, or is no longer, the home of the job.
    caf::reacts_to<home_atom, bool>,
    // Sessions that a peer stored as home.
    caf::reacts_to<side_atom, SideEntriesPtr>,
    // The actors in force.
    caf::reacts_to<wire_atom, WiringPtr>,
    // The coordinator wants the body of the layout with this id (hex) again.
    caf::reacts_to<ask_atom, std::string>,
    // Every shard's base version is durable: the attach is complete.
    caf::reacts_to<durable_atom, std::uint64_t>,
    // So many shards' base versions are durable: the client waits, and should see that something moves.
    caf::reacts_to<flush_atom, std::uint64_t>,
    // Sessions, lineage, queue.
    caf::replies_to<status_atom>::with<ActorStatus>>;

// One detached actor per node that has peers: waits for them, so that nobody else has to.
using FetcherActor = caf::typed_actor<
    // The gradient of a shard's step from any peer that has it.
    caf::replies_to<pull_atom, std::uint32_t, std::uint32_t, std::uint64_t>::with<PulledGradientPtr>,
    // A whole version of a shard, at this step or newer, from any peer that has one.
    caf::replies_to<version_atom, std::uint32_t, std::uint64_t>::with<PulledVersionPtr>,
    // Side entries of the newest lineage from that member, of steps after the given one, into this node's store.
    caf::replies_to<sync_atom, std::uint64_t, std::uint64_t>::with<Outcome>,
    // The lineage in force.
    caf::reacts_to<wire_atom, WiringPtr>,
    // Bytes, sources, failures.
    caf::replies_to<status_atom>::with<ActorStatus>>;

// One detached actor per peer: hands it side entries in order, and waits until they are durable there.
using ReplicatorActor = caf::typed_actor<
    // These entries are to be durable on the peer; at once a failure when the peer is not live.
    caf::replies_to<side_atom, SideEntriesPtr>::with<Outcome>,
    // Entries, failures.
    caf::replies_to<status_atom>::with<ActorStatus>>;

// One per node: what the home stored is stored here too, and told to this node's coordinator.
using FeedActor = caf::typed_actor<
    // Entries that came from a peer.
    caf::replies_to<side_atom, SideEntriesPtr>::with<Outcome>,
    // The coordinator and keeper in force.
    caf::reacts_to<wire_atom, WiringPtr>,
    // Batches, entries by kind.
    caf::replies_to<status_atom>::with<ActorStatus>>;

// The only actor that other nodes address. Texts are those of peer_codec.h: hostile until parsed.
using PeerActor = caf::typed_actor<
    // Who the caller is, and what it is: answered by who this node is.
    caf::replies_to<hello_atom, std::string>::with<std::string>,
    // What the caller's coordinator has to say.
    caf::reacts_to<report_atom, std::string>,
    // A question of the admin actor or the publisher there (what, argument): answered for this node alone.
    caf::replies_to<ask_atom, std::string, std::string>::with<std::string>>;

// One per node: connects to every peer's peer actor, watches it, and keeps ClusterState.
using MembershipActor = caf::typed_actor<
    // Try to reach this member; sent by the actor to itself.
    caf::reacts_to<connect_to_atom, std::uint64_t>,
    // Say hello to everybody, look at deadlines.
    caf::reacts_to<tick_atom>,
    // Another epoch: loopback ports that lead to its members, by index.
    caf::reacts_to<epoch_atom, ControlPortsPtr>,
    // A peer has said who it is (text of its hello), when it called here.
    caf::reacts_to<hello_atom, std::string>,
    // What this node's coordinator has to say to every live peer.
    caf::reacts_to<report_atom, std::string>,
    // Ask every live peer; answers by member name, JSON; absent ones are left out.
    caf::replies_to<ask_atom, std::string, std::string>::with<HttpAnswer>,
    // Ask one member.
    caf::replies_to<ask_atom, std::uint64_t, std::string, std::string>::with<HttpAnswer>,
    // The actors in force.
    caf::reacts_to<wire_atom, WiringPtr>,
    // Members, live, ready, home, connections.
    caf::replies_to<status_atom>::with<ActorStatus>>;

// One detached actor per node, at work on the home: turns durable steps into recovery points.
using PublisherActor = caf::typed_actor<
    // Look whether a step is publishable.
    caf::reacts_to<tick_atom>,
    // Upload this node's part of a point (text of peer_codec.h); answered by references to the objects.
    caf::replies_to<upload_atom, std::string>::with<HttpAnswer>,
    // The actors in force.
    caf::reacts_to<wire_atom, WiringPtr>,
    // Points, bytes, errors.
    caf::replies_to<status_atom>::with<ActorStatus>>;

// One per node: answers for everybody with a deadline; who does not answer in time is listed as absent.
using AdminActor = caf::typed_actor<
    // A question (what, argument) of cluster_answer.h, answered by every live node: the paths of that name.
    caf::replies_to<whole_atom, std::string, std::string>::with<HttpAnswer>,
    // The same question, or capacity, for this node alone, as peers ask it.
    caf::replies_to<ask_atom, std::string, std::string>::with<HttpAnswer>,
    // The actors in force.
    caf::reacts_to<wire_atom, WiringPtr>,
    // The admin actor's own counters.
    caf::replies_to<status_atom>::with<ActorStatus>>;

// One detached actor per node: reads from the store what the admin actor is asked about it.
using CatalogActor = caf::typed_actor<
    // What is durable of each shard here, as JSON.
    caf::replies_to<shards_atom>::with<ActorStatus>,
    // Digest of a shard at a step, and whether this node can produce it, as JSON.
    caf::replies_to<version_atom, std::uint64_t, std::uint64_t>::with<ActorStatus>,
    // The lineage in force.
    caf::reacts_to<wire_atom, WiringPtr>,
    // Questions.
    caf::replies_to<status_atom>::with<ActorStatus>>;

// One detached actor per node that has peers: reads epochs from the object store, and proposes them on command.
using EpochActor = caf::typed_actor<
    // Look whether there is a newer one.
    caf::reacts_to<tick_atom>,
    // A peer knows an epoch of this number.
    caf::reacts_to<epoch_atom, std::uint64_t>,
    // A command for the members (JSON: add, drain, remove, replace, check); answered when it is decided.
    caf::replies_to<nodes_atom, std::string>::with<HttpAnswer>,
    // The actors in force.
    caf::reacts_to<wire_atom, WiringPtr>,
    // Epoch in force, reads, proposals, errors.
    caf::replies_to<status_atom>::with<ActorStatus>>;

// One per node: carries HTTP to the actors.
using GatewayActor = caf::typed_actor<
    // Requests, refusals.
    caf::replies_to<status_atom>::with<ActorStatus>>;

// One per node: every other actor is watched here; an unexpected death ends the node.
using SupervisorActor = caf::typed_actor<
    // Watch this actor under this name.
    caf::reacts_to<watch_atom, caf::strong_actor_ptr, std::string>,
    // Who is watched, who died.
    caf::replies_to<status_atom>::with<ActorStatus>>;

// The actors in force, told to everybody whenever one of them changes (a new lineage brings a new coordinator and new
// owners). Immutable.
struct Wiring {
  std::vector<IngressActor> ingress;
  std::vector<AssemblerActor> assemblers;
  CoordinatorActor coordinator;
  std::vector<OwnerActor> owners;
  KeeperActor keeper;
  SideChannelActor side_channel;
  GatewayActor gateway;
  SupervisorActor supervisor;
  AdminActor admin;
  CatalogActor catalog;
  FetcherActor fetcher;                      // empty when the node is alone
  std::vector<ReplicatorActor> replicators;  // by member; empty handle for this node
  FeedActor feed;
  MembershipActor membership;
  PublisherActor publisher;
  EpochActor epochs;                 // empty when the node is alone
  JobPlanPtr plan;                   // of the lineage in force
  std::vector<OwnerActor> owner_of;  // by shard; empty handle where this node owns it not
  // By shard: its owner here is leaving, so that its new owners may need what comes from now on after it is gone.
  std::vector<bool> leaving;
};

}  // namespace gradtap::actors
