// BulkThreads: the threads that answer accepted bulk connections, one each.
//
// Ownership: owns threads and their connections. Threads: reserve and start on the link's own thread, stop by the
// owner. Invariants: at most connections_max reserved or running for each peer. Failure behaviour: reserve() yields
// nothing at the bound.
#pragma once

#include <atomic>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "link/bulk_server.h"
#include "link/peer_pool.h"

namespace gradtap::link {

class BulkThreads {
 public:
  BulkThreads(const NodeLinkOptions& options, LinkCounters& counters, StreamRegistry& registry);
  ~BulkThreads();

  // A place for one connection of `peer`, held as long as the pointer; null at the bound.
  [[nodiscard]] std::shared_ptr<void> reserve(const std::string& peer);
  // Serves an accepted socket, which it owns from here on.
  void start(int socket, Session session, const std::string& peer, std::shared_ptr<void> place);
  // After the registry's streams were aborted: waits for the threads.
  void stop();

 private:
  struct Served {
    std::thread thread;
    std::atomic<bool> ended{false};
  };
  void reap();

  const NodeLinkOptions& options_;
  LinkCounters& counters_;
  StreamRegistry& registry_;
  std::mutex mutex_;
  std::map<std::string, std::size_t> places_;
  std::size_t open_ = 0;
  std::list<Served> served_;
};

}  // namespace gradtap::link
