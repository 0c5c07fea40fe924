#include "link/bulk_threads.h"

#include <utility>

namespace gradtap::link {

BulkThreads::BulkThreads(const NodeLinkOptions& options, LinkCounters& counters, StreamRegistry& registry)
    : options_(options), counters_(counters), registry_(registry) {}

BulkThreads::~BulkThreads() {
  stop();
}

std::shared_ptr<void> BulkThreads::reserve(const std::string& peer) {
  const std::lock_guard lock(mutex_);
  std::size_t& count = places_[peer];
  if (count >= options_.limits.connections_max) return nullptr;
  ++count;
  counters_.bulk_connections.set(++open_);
  return {this, [this, peer](void*) {
            const std::lock_guard inner(mutex_);
            --places_[peer];
            counters_.bulk_connections.set(--open_);
          }};
}

void BulkThreads::start(int socket, Session session, const std::string& peer, std::shared_ptr<void> place) {
  reap();
  auto stream = std::make_unique<SocketStream>(peer);
  if (!stream->adopt(socket, std::move(session))) return;
  Served& served = served_.emplace_back();
  served.thread = std::thread([this, &served, peer, stream = std::move(stream), place = std::move(place)]() mutable {
    if (registry_.add(stream.get())) {
      serve_bulk(*stream, peer, options_.handler, options_.limits, counters_, *options_.memory);
      registry_.remove(stream.get());
    }
    stream.reset();
    place.reset();
    served.ended.store(true);
  });
}

void BulkThreads::reap() {
  for (auto each = served_.begin(); each != served_.end();) {
    if (each->ended.load()) {
      each->thread.join();
      each = served_.erase(each);
    } else {
      ++each;
    }
  }
}

void BulkThreads::stop() {
  for (Served& each : served_) each.thread.join();
  served_.clear();
}

}  // namespace gradtap::link
