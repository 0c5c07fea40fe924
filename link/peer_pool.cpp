#include "link/peer_pool.h"

#include <algorithm>

#include <fmt/format.h>

namespace gradtap::link {

bool StreamRegistry::add(SocketStream* stream) {
  const std::lock_guard lock(mutex_);
  if (stopped_) return false;
  streams_.insert(stream);
  return true;
}

void StreamRegistry::remove(SocketStream* stream) {
  const std::lock_guard lock(mutex_);
  streams_.erase(stream);
}

void StreamRegistry::abort_all() {
  const std::lock_guard lock(mutex_);
  stopped_ = true;
  for (SocketStream* const stream : streams_) stream->abort();
}

PeerPool::PeerPool(const NodeLinkOptions& options, const LinkMember& peer, const LinkMember& self,
                   LinkCounters& counters, StreamRegistry& registry)
    : options_(options), peer_(peer), self_(self), counters_(counters), registry_(registry) {}

PeerPool::~PeerPool() {
  stop();
}

Result<PeerPool::Borrowed> PeerPool::borrow(Deadline deadline) {
  const auto stopping = [this] { return fail(ErrorCode::kPeerUnreachable, "the link is being stopped", peer_.name); };
  {
    std::unique_lock lock(mutex_);
    for (;;) {
      const auto free = [this] { return stopped_ || !idle_.empty() || open_ < options_.limits.connections_max; };
      if (!free()) {
        counters_.waits_for_connection.add();
        if (!freed_.wait_until(lock, deadline, free))
          return fail(ErrorCode::kTimeout, "no connection with a peer came free", peer_.name,
                      fmt::format("one of {}", options_.limits.connections_max), "all in use",
                      "raise link.connections_max or link.call_timeout_ms");
      }
      if (stopped_) return stopping();
      if (idle_.empty()) break;
      std::unique_ptr<SocketStream> stream = std::move(idle_.back());
      idle_.pop_back();
      if (!stream->stale() && !outdated(*stream)) return Borrowed{std::move(stream), true};
      registry_.remove(stream.get());
      --open_;
    }
    ++open_;
  }
  auto stream = std::make_unique<SocketStream>(peer_.name);
  if (!registry_.add(stream.get())) {
    drop_one(std::move(stream));
    return stopping();
  }
  const Deadline connected = std::min(deadline, after_ms(options_.limits.connect_timeout_ms));
  if (const Status status = connect(*stream, connected); !status) {
    drop_one(std::move(stream));
    return std::unexpected<Error>(status.error());
  }
  return Borrowed{std::move(stream), false};
}

Status PeerPool::connect(SocketStream& stream, Deadline deadline) const {
  GRADTAP_TRY(stream.connect(self_.address, peer_.address, peer_.port, deadline));
  if (options_.identities != nullptr) GRADTAP_TRY(stream.secure(options_.identities->current(), deadline));
  return greet(stream, options_, peer_.name, deadline);
}

bool PeerPool::outdated(const SocketStream& stream) const {
  if (options_.identities == nullptr) return false;
  return stream.identity() != options_.identities->current().get() ||
         std::chrono::steady_clock::now() - stream.since() >= std::chrono::milliseconds(options_.limits.renew_after_ms);
}

void PeerPool::drop_one(std::unique_ptr<SocketStream> stream) {
  registry_.remove(stream.get());
  {
    const std::lock_guard lock(mutex_);
    --open_;
  }
  freed_.notify_one();
}

void PeerPool::give_back(std::unique_ptr<SocketStream> stream, bool reusable) {
  {
    const std::lock_guard lock(mutex_);
    if (reusable && !stopped_ && stream->open()) idle_.push_back(std::move(stream));
  }
  if (stream != nullptr) return drop_one(std::move(stream));
  freed_.notify_one();
}

void PeerPool::stop() {
  std::vector<std::unique_ptr<SocketStream>> idle;
  {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
    idle.swap(idle_);
    open_ -= idle.size();
  }
  freed_.notify_all();
  for (const auto& stream : idle) registry_.remove(stream.get());
}

}  // namespace gradtap::link
