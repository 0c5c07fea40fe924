#include "link/node_link.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <future>
#include <map>
#include <mutex>
#include <thread>

#include <asio/executor_work_guard.hpp>
#include <asio/io_context.hpp>
#include <asio/post.hpp>
#include <asio/steady_timer.hpp>
#include <fmt/format.h>

#include "common/teller.h"
#include "link/bulk_threads.h"
#include "link/certificate.h"
#include "link/control_ports.h"
#include "link/door.h"
#include "link/peer_pool.h"

namespace gradtap::link {
namespace {

constexpr std::uint64_t kFirstPauseMs = 10;
constexpr std::uint64_t kLongestPauseMs = 500;
constexpr auto kUnusableTellPause = std::chrono::minutes(1);

std::int64_t now_s() {
  return std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch()).count();
}

}  // namespace

struct NodeLink::Impl {
  Impl(NodeLinkOptions from, LinkMember me)
      : options(std::move(from)),
        self(std::move(me)),
        book(options.members),
        counters(*options.metrics),
        control_target(options.control_target),
        bulk(options, counters, registry),
        tunnels(options.limits, counters),
        door(context, options, book, counters, bulk, tunnels, control_target),
        control(context, options, book, self, counters, tunnels),
        tending(context),
        unusable(options.events, kUnusableTellPause) {}

  void tend();
  void tend_later();
  void read_certificates();

  // Waits for the next try; false when the deadline comes first or the link is stopped.
  bool pause(std::uint64_t ms, Deadline deadline) {
    const Deadline until = after_ms(ms);
    if (until >= deadline) return false;
    std::unique_lock lock(mutex);
    return !stopping_cv.wait_until(lock, until, [this] { return stopping; });
  }

  Result<std::string> fetch(PeerPool& pool, const BulkRequest& request, const ChunkSink& sink, Deadline deadline);

  const NodeLinkOptions options;
  // The pool of a peer as it is now; null when it is no other member.
  std::shared_ptr<PeerPool> pool_of(const std::string& peer) {
    const std::lock_guard lock(mutex);
    const auto it = pools.find(peer);
    return it == pools.end() ? nullptr : it->second.pool;
  }

  struct Pool {
    LinkMember peer;
    std::shared_ptr<PeerPool> pool;
  };

  const LinkMember self;
  MemberBook book;
  LinkCounters counters;
  std::atomic<std::uint16_t> control_target;
  StreamRegistry registry;
  // Before the context: handlers that never ran are destroyed with it, and give back what they hold of these.
  BulkThreads bulk;
  TunnelSet tunnels;
  asio::io_context context{1};
  Door door;
  ControlPorts control;
  asio::steady_timer tending;
  Teller unusable;
  bool failed_before = false;
  std::map<std::string, Pool> pools;  // under mutex
  std::thread thread;
  std::mutex changing;
  std::mutex mutex;
  std::condition_variable stopping_cv;
  bool stopping = false;
};

Result<NodeLinkOptions> link_options(const NodeConfig& node, const ClusterConfig& cluster) {
  NodeLinkOptions options;
  options.self = node.node.name;
  options.cluster = cluster.digest();
  options.limits.call_timeout_ms = node.link.call_timeout_ms;
  options.limits.credits = node.link.credits;
  options.limits.connections_max = node.link.connections_max;
  options.limits.answer_bytes_max = node.link.answer_bytes_max;
  options.limits.body_bytes_max = node.link.body_bytes_max;
  options.limits.hellos_max = node.link.hellos_max;
  options.limits.hello_timeout_ms = node.link.hello_timeout_ms;
  options.limits.breaks_max = node.link.breaks_max;
  if (cluster.security == "tls") {
    options.limits.reload_interval_ms = node.security.reload_interval_ms;
    options.limits.renew_after_ms = node.security.renew_after_ms;
    options.any_address = node.security.any_address;
    const IdentityFiles files{node.security.ca_file, node.security.certificate_file, node.security.key_file};
    auto identity = Identity::load(files, options.self, now_s());
    if (!identity) return std::unexpected<Error>(identity.error());
    options.identities = std::make_shared<IdentityKeeper>(files, options.self, std::move(*identity));
  }
  for (const MemberSection& member : cluster.members) {
    const auto place = parse_host_port(member.link);
    if (!place) return std::unexpected<Error>(place.error());
    options.members.push_back({member.name, place->host, place->port});
  }
  return options;
}

NodeLink::NodeLink(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

NodeLink::~NodeLink() {
  stop();
}

Result<std::unique_ptr<NodeLink>> NodeLink::start(NodeLinkOptions options) {
  const auto self = std::find_if(options.members.begin(), options.members.end(),
                                 [&](const LinkMember& member) { return member.name == options.self; });
  if (self == options.members.end() || !options.handler || options.metrics == nullptr || options.limits.credits == 0 ||
      options.limits.connections_max == 0)
    return fail(ErrorCode::kConfigImpossibleValue, "the node link cannot start", options.self,
                "a member of the cluster, a handler, and limits above 0", {}, "correct node.name or the cluster file");
  const LinkMember me = *self;
  std::unique_ptr<NodeLink> link(new NodeLink(std::make_unique<Impl>(std::move(options), me)));
  Impl& impl = *link->impl_;
  GRADTAP_TRY(impl.door.open(impl.self.address, impl.self.port));
  for (const LinkMember& member : impl.options.members) {
    if (member.name == impl.self.name) continue;
    GRADTAP_TRY(impl.control.open(member));
    impl.pools[member.name] = {
        member, std::make_shared<PeerPool>(impl.options, member, impl.self, impl.counters, impl.registry)};
  }
  if (impl.options.identities != nullptr) {
    impl.counters.certificate_expires_s.set(
        static_cast<std::uint64_t>(impl.options.identities->current()->not_after_s()));
    impl.tend_later();
  }
  impl.thread = std::thread([&impl] {
    const auto work = asio::make_work_guard(impl.context);
    impl.context.run();
  });
  return link;
}

void NodeLink::stop() {
  Impl& impl = *impl_;
  const std::lock_guard changing(impl.changing);  // nobody waits for the link's thread when it ends
  {
    const std::lock_guard lock(impl.mutex);
    if (impl.stopping) return;
    impl.stopping = true;
  }
  impl.stopping_cv.notify_all();
  if (impl.thread.joinable()) {
    asio::post(impl.context, [&impl] {
      impl.door.close();
      impl.control.close();
      impl.tending.cancel();
      impl.tunnels.close_all();
      // What was cancelled completes first.
      asio::post(impl.context, [&impl] { impl.context.stop(); });
    });
    impl.thread.join();
  }
  impl.registry.abort_all();
  for (const auto& [name, entry] : impl.pools) entry.pool->stop();
  impl.bulk.stop();
}

std::uint16_t NodeLink::control_port(const std::string& peer) const {
  return impl_->control.port(peer);
}

void NodeLink::set_control_target(std::uint16_t port) {
  impl_->control_target.store(port);
}

Status NodeLink::set_members(const std::vector<LinkMember>& members) {
  Impl& impl = *impl_;
  const std::lock_guard changing(impl.changing);
  std::vector<std::shared_ptr<PeerPool>> gone;
  {
    const std::lock_guard lock(impl.mutex);
    if (impl.stopping) return {};
    impl.book.set(members);
    for (auto it = impl.pools.begin(); it != impl.pools.end();) {
      const auto now = impl.book.find(it->first);
      const bool same = now && now->address == it->second.peer.address && now->port == it->second.peer.port;
      if (!same) gone.push_back(it->second.pool);
      it = same ? std::next(it) : impl.pools.erase(it);
    }
    for (const LinkMember& member : members)
      if (member.name != impl.self.name && !impl.pools.contains(member.name))
        impl.pools[member.name] = {
            member, std::make_shared<PeerPool>(impl.options, member, impl.self, impl.counters, impl.registry)};
  }
  for (const auto& pool : gone) pool->stop();
  std::promise<Status> opened;
  asio::post(impl.context, [&] {
    Status status;
    for (const LinkMember& member : members)
      if (status && member.name != impl.self.name) status = impl.control.open(member);
    opened.set_value(std::move(status));
  });
  return opened.get_future().get();
}

void NodeLink::reload_certificates() {
  Impl& impl = *impl_;
  if (impl.options.identities != nullptr) asio::post(impl.context, [&impl] { impl.tend(); });
}

void NodeLink::Impl::tend_later() {
  tending.expires_after(std::chrono::milliseconds(options.limits.reload_interval_ms));
  tending.async_wait([this](const asio::error_code& stopped) {
    if (stopped) return;
    tend();
    tend_later();
  });
}

void NodeLink::Impl::tend() {
  read_certificates();
  control.renew();
}

void NodeLink::Impl::read_certificates() {
  const auto changed = options.identities->refresh(now_s());
  if (!changed) {
    counters.certificates_unusable.add();
    // Once is nothing: the files are changed one after another.
    if (std::exchange(failed_before, true))
      unusable.tell("new certificates cannot be used; the old ones stay in use", "node", self.name, changed.error());
    return;
  }
  failed_before = false;
  if (!*changed) return;
  const auto identity = options.identities->current();
  counters.certificates_read.add();
  counters.certificate_expires_s.set(static_cast<std::uint64_t>(identity->not_after_s()));
  if (options.events != nullptr)
    options.events->add(
        LogLevel::kInfo, "new certificates are in use",
        {{"fingerprint", identity->fingerprint()}, {"valid_until", time_text(identity->not_after_s())}});
}

std::uint16_t NodeLink::listen_port() const {
  return impl_->door.port();
}

Result<std::string> NodeLink::Impl::fetch(PeerPool& pool, const BulkRequest& request, const ChunkSink& sink,
                                          Deadline deadline) {
  AnswerProgress progress;
  progress.next = request.first_chunk;
  std::uint64_t breaks = 0;  // in a row, without a new chunk
  std::uint64_t pause_ms = kFirstPauseMs;
  for (;;) {
    auto borrowed = pool.borrow(deadline);
    if (!borrowed) {
      // Busy passes; everything else is final: a peer that is down is not waited for.
      if (borrowed.error().code != ErrorCode::kNodeBusy || !pause(pause_ms, deadline))
        return std::unexpected<Error>(borrowed.error());
      pause_ms = std::min(pause_ms * 2, kLongestPauseMs);
      continue;
    }
    const std::uint64_t before = progress.next;
    ExchangeResult result = exchange(*borrowed->stream, request, progress, sink, options.limits, counters, deadline);
    const bool died_idle = borrowed->used_before && !result.answered;
    pool.give_back(std::move(borrowed->stream), result.reusable);
    if (result.end == ExchangeEnd::kDone) return std::move(progress.meta);
    if (result.end == ExchangeEnd::kFault || result.error.code == ErrorCode::kTimeout)
      return std::unexpected<Error>(std::move(result.error));
    counters.breaks.add();
    if (died_idle && result.error.code == ErrorCode::kPeerUnreachable) continue;
    breaks = progress.next > before ? 0 : breaks + 1;
    if (progress.next > before) pause_ms = kFirstPauseMs;
    if (breaks >= options.limits.breaks_max || !pause(pause_ms, deadline))
      return std::unexpected<Error>(std::move(result.error));
    pause_ms = std::min(pause_ms * 2, kLongestPauseMs);
  }
}

Result<std::string> NodeLink::fetch(const std::string& peer, const BulkRequest& request, const ChunkSink& sink,
                                    std::uint64_t deadline_ms) {
  Impl& impl = *impl_;
  impl.counters.calls.add();
  const std::shared_ptr<PeerPool> pool = impl.pool_of(peer);
  const auto failed = [&](Error error) {
    impl.counters.calls_failed.add();
    if (error.code == ErrorCode::kTimeout) impl.counters.calls_timed_out.add();
    return std::unexpected<Error>(std::move(error));
  };
  if (pool == nullptr)
    return failed({ErrorCode::kPeerUnreachable,
                   "no other member has this name",
                   peer,
                   {},
                   {},
                   "correct the name or the cluster file"});
  if (request.body.size() > impl.options.limits.body_bytes_max)
    return failed({ErrorCode::kRequestTooLarge, "the body of a request is too large", peer,
                   fmt::format("at most {} bytes", impl.options.limits.body_bytes_max),
                   fmt::format("{} bytes", request.body.size()), "send less at once"});
  auto meta =
      impl.fetch(*pool, request, sink, after_ms(deadline_ms != 0 ? deadline_ms : impl.options.limits.call_timeout_ms));
  if (!meta) return failed(std::move(meta.error()));
  return meta;
}

Result<NodeLink::Answer> NodeLink::call(const std::string& peer, const BulkRequest& request,
                                        std::uint64_t deadline_ms) {
  Answer answer;
  const std::uint64_t bytes_max = impl_->options.limits.answer_bytes_max;
  auto meta = fetch(
      peer, request,
      [&](std::uint64_t index, std::vector<std::uint8_t>&& bytes) -> Status {
        if (index == request.first_chunk) answer.bytes.clear();
        if (bytes.size() > bytes_max - answer.bytes.size()) {
          impl_->counters.refused_large.add();
          return fail(ErrorCode::kLimitReached, "the answer of a peer is too large", peer,
                      fmt::format("at most {} bytes", bytes_max), "more", "raise link.answer_bytes_max");
        }
        const std::size_t needed = answer.bytes.size() + bytes.size();
        if (needed > answer.bytes.capacity()) {
          // Both stand while the one is copied into the other.
          const std::size_t room = std::max(needed, std::min<std::size_t>(2 * answer.bytes.capacity(), bytes_max));
          GRADTAP_LET(lease, impl_->options.memory->lease(MemoryAccount::kPeers, room, "the answer of a peer"));
          std::vector<std::uint8_t> roomier;
          roomier.reserve(room);
          roomier.insert(roomier.end(), answer.bytes.begin(), answer.bytes.end());
          answer.bytes = std::move(roomier);
          answer.memory = std::move(lease);
        }
        answer.bytes.insert(answer.bytes.end(), bytes.begin(), bytes.end());
        return {};
      },
      deadline_ms);
  if (!meta) return std::unexpected<Error>(std::move(meta.error()));
  answer.meta = std::move(*meta);
  return answer;
}

}  // namespace gradtap::link
