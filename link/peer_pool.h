// PeerPool: the bulk connections of this node with one peer, as the caller.
//
// Ownership: owns idle connections; a borrowed one belongs to its borrower until it is given back or dropped. Threads:
// any. Invariants: at most connections_max exist at once, borrowed or idle; more borrowers wait until their deadline;
// a connection that is older than renew_after_ms, or than this node's certificate, serves no further request.
// Failure behaviour: PEER_UNREACHABLE at once when the peer's port is closed, TIMEOUT when it does not greet,
// PEER_REFUSED or NODE_BUSY as the peer says; after stop() every call fails.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <set>
#include <vector>

#include "link/bulk_client.h"

namespace gradtap::link {

// Every stream that some thread may be blocked in, so that stop() ends them all.
class StreamRegistry {
 public:
  [[nodiscard]] bool add(SocketStream* stream);  // false once stopped
  void remove(SocketStream* stream);
  void abort_all();

 private:
  std::mutex mutex_;
  std::set<SocketStream*> streams_;
  bool stopped_ = false;
};

class PeerPool {
 public:
  struct Borrowed {
    std::unique_ptr<SocketStream> stream;
    bool used_before = false;  // it may have died unnoticed
  };

  PeerPool(const NodeLinkOptions& options, const LinkMember& peer, const LinkMember& self, LinkCounters& counters,
           StreamRegistry& registry);
  ~PeerPool();

  [[nodiscard]] Result<Borrowed> borrow(Deadline deadline);
  // Gives back; a connection that cannot be used again is closed.
  void give_back(std::unique_ptr<SocketStream> stream, bool reusable);
  void stop();

 private:
  [[nodiscard]] Status connect(SocketStream& stream, Deadline deadline) const;
  [[nodiscard]] bool outdated(const SocketStream& stream) const;
  void drop_one(std::unique_ptr<SocketStream> stream);

  const NodeLinkOptions& options_;
  const LinkMember peer_;
  const LinkMember self_;
  LinkCounters& counters_;
  StreamRegistry& registry_;
  std::mutex mutex_;
  std::condition_variable freed_;
  std::vector<std::unique_ptr<SocketStream>> idle_;
  std::size_t open_ = 0;
  bool stopped_ = false;
};

}  // namespace gradtap::link
