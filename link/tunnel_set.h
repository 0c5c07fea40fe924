// TunnelSet: the control tunnels now open, so that they can be counted, replaced and ended.
//
// Ownership: none; tunnels own themselves. Threads: the link's own. Invariants: at most tunnels_max a peer and
// direction. Failure behaviour: reserve() yields nothing at the bound. Internal to the link.
#pragma once

#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "link/control_tunnel.h"
#include "link/link_counters.h"
#include "link/link_options.h"

namespace gradtap::link {

// Both ends of a tunnel know it by the node that dialed it and a number that this node drew.
struct TunnelName {
  std::string peer;
  bool dialed_here = false;
  std::uint64_t number = 0;
};

class TunnelSet {
 public:
  struct Open {
    TunnelName name;
    std::shared_ptr<ControlTunnel> tunnel;
  };

  TunnelSet(const LinkLimits& limits, LinkCounters& counters) : limits_(limits), counters_(counters) {}
  // A place for one tunnel with a peer in one direction; null at the bound.
  [[nodiscard]] std::shared_ptr<void> reserve(const std::string& peer, bool dialed_here);
  void start(TunnelName name, std::shared_ptr<AsyncChannel> local, std::shared_ptr<AsyncChannel> remote,
             std::shared_ptr<void> place);
  // One that the peer dialed; null: there is none.
  [[nodiscard]] std::shared_ptr<ControlTunnel> find(const std::string& peer, std::uint64_t number) const;
  [[nodiscard]] std::vector<Open> dialed_here() const;
  void close_all();

 private:
  struct Entry {
    TunnelName name;
    std::weak_ptr<ControlTunnel> tunnel;
  };
  const LinkLimits& limits_;
  LinkCounters& counters_;
  std::map<std::string, std::size_t> places_;
  std::size_t open_ = 0;
  std::list<Entry> tunnels_;
};

}  // namespace gradtap::link
