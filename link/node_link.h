// NodeLink: everything that travels between the nodes of a cluster, over one listening port a node.
//
// Purpose: call() asks a peer and gathers its answer; the handler answers peers; control ports lead the actors'
// middleman to its peers. Members may change while it runs. Ownership: owns sockets and threads; options.metrics and
// options.events outlive it. Threads: call() and fetch() from any thread, they block; the handler runs on the link's
// threads, several at once; start, stop and destruction by one owner (stop() waits for handlers that run). Invariants:
// only members of the same cluster file, from their own addresses and, with identities, with a certificate of their
// name, are listened to; every buffer, wait and number of connections is bounded by LinkLimits, what is gathered also
// by the node's memory. New certificates are found while it runs: connections made from then on show them, and older
// ones are replaced without losing a byte. Failure behaviour: a stopped peer is PEER_UNREACHABLE at once, a frozen one
// TIMEOUT at the deadline (or at connect_timeout_ms, when no connection was open); a connection that breaks under an
// answer is replaced, and the answer goes on at the first chunk that is missing, until the deadline. A request may
// reach the peer more than once.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "common/cluster_config.h"
#include "link/bulk_client.h"
#include "link/link_options.h"

namespace gradtap::link {

// The options that follow from the configuration; handler, metrics and events are left to the caller. With security tls
// the certificates are read: CERTIFICATE when they are not what they must be.
[[nodiscard]] Result<NodeLinkOptions> link_options(const NodeConfig& node, const ClusterConfig& cluster);

class NodeLink {
 public:
  struct Answer {
    std::string meta;
    std::vector<std::uint8_t> bytes;
    MemoryLease memory;  // of the bytes
  };

  [[nodiscard]] static Result<std::unique_ptr<NodeLink>> start(NodeLinkOptions options);
  ~NodeLink();
  NodeLink(const NodeLink&) = delete;
  NodeLink& operator=(const NodeLink&) = delete;

  // deadline_ms 0: limits.call_timeout_ms.
  [[nodiscard]] Result<Answer> call(const std::string& peer, const BulkRequest& request, std::uint64_t deadline_ms = 0);
  // As call(), but chunk by chunk, and nothing is gathered; yields meta. Index request.first_chunk a second time: the
  // answer starts over. An error of the sink ends the call.
  [[nodiscard]] Result<std::string> fetch(const std::string& peer, const BulkRequest& request, const ChunkSink& sink,
                                          std::uint64_t deadline_ms = 0);

  // Loopback port that leads to the peer's middleman; 0 when it is no other member.
  [[nodiscard]] std::uint16_t control_port(const std::string& peer) const;
  void set_control_target(std::uint16_t port);
  // From now on these are the members, this node among them: new ones can be called and may call, others neither; who
  // changed its address is called there. Waits for the link's thread; by the link's owner, one call at a time.
  [[nodiscard]] Status set_members(const std::vector<LinkMember>& members);
  [[nodiscard]] std::uint16_t listen_port() const;
  // Looks at the certificates' files now, and not only when it is time. Any thread; returns at once.
  void reload_certificates();
  void stop();

 private:
  struct Impl;
  explicit NodeLink(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace gradtap::link
