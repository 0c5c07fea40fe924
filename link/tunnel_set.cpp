#include "link/tunnel_set.h"

#include <utility>

namespace gradtap::link {

std::shared_ptr<void> TunnelSet::reserve(const std::string& peer, bool dialed_here) {
  const std::string key = (dialed_here ? "to " : "from ") + peer;
  std::size_t& count = places_[key];
  if (count >= limits_.tunnels_max) return nullptr;
  ++count;
  counters_.tunnels.set(++open_);
  return {this, [this, key](void*) {
            --places_[key];
            counters_.tunnels.set(--open_);
          }};
}

void TunnelSet::start(TunnelName name, std::shared_ptr<AsyncChannel> local, std::shared_ptr<AsyncChannel> remote,
                      std::shared_ptr<void> place) {
  std::erase_if(tunnels_, [](const Entry& each) { return each.tunnel.expired(); });
  const auto tunnel = std::make_shared<ControlTunnel>(std::move(local), std::move(remote), limits_.tunnel_bytes,
                                                      counters_.tunnel_bytes, std::move(place));
  tunnels_.push_back({std::move(name), tunnel});
  tunnel->start();
}

std::shared_ptr<ControlTunnel> TunnelSet::find(const std::string& peer, std::uint64_t number) const {
  for (const Entry& each : tunnels_)
    if (!each.name.dialed_here && each.name.peer == peer && each.name.number == number) return each.tunnel.lock();
  return nullptr;
}

std::vector<TunnelSet::Open> TunnelSet::dialed_here() const {
  std::vector<Open> found;
  for (const Entry& each : tunnels_)
    if (auto tunnel = each.tunnel.lock(); tunnel != nullptr && each.name.dialed_here)
      found.push_back({each.name, std::move(tunnel)});
  return found;
}

void TunnelSet::close_all() {
  for (const Entry& each : tunnels_)
    if (const auto tunnel = each.tunnel.lock()) tunnel->close();
}

}  // namespace gradtap::link
