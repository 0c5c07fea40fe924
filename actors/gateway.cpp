#include "actors/gateway.h"

#include <atomic>
#include <mutex>
#include <optional>
#include <string_view>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "actors/probes.h"
#include "actors/request_path.h"
#include "common/number_text.h"
#include "common/teller.h"

namespace gradtap::actors {

namespace {

constexpr std::chrono::milliseconds kTellPause{1000};

std::optional<std::uint64_t> number(const HttpRequest& request, const std::string& key, std::uint64_t absent) {
  const auto it = request.query.find(key);
  return it == request.query.end() ? std::optional(absent) : parse_integer<std::uint64_t>(it->second);
}

HttpAnswer not_found(const HttpRequest& request) {
  return http_error({ErrorCode::kRequestMalformed,
                     "there is nothing at this path",
                     request.method + " " + request.path,
                     "a path of docs/side-channel.md",
                     {},
                     {}},
                    404);
}

HttpAnswer bad_number(const HttpRequest& request) {
  return http_error(
      {ErrorCode::kBadNumber, "a number of the request is not one", request.path, "a decimal integer", {}, {}}, 422);
}

Error no_points() {
  return {ErrorCode::kPointNone,
          "this node publishes no recovery points",
          {},
          "an object store",
          {},
          "set objects.directory in the node's configuration"};
}

class Router {
 public:
  Router(caf::actor_system& system, GatewayOptions options)
      : system_(system), options_(std::move(options)), teller_(options_.events.get(), kTellPause) {}

  [[nodiscard]] Result<Admission> admit(const RequestHead& head) {
    if (!options_.guard) return Admission{std::string(head.peer), {}};
    auto admitted = options_.guard->admit(head);
    if (!admitted) tell(std::string(head.peer), admitted.error());
    return admitted;
  }

  [[nodiscard]] Status check_body(const Admission& admission, std::string_view body) {
    if (!options_.guard) return {};
    Status same = options_.guard->check_body(admission, body);
    if (!same) tell(admission.caller, same.error());
    return same;
  }

  [[nodiscard]] HttpAnswer answer(HttpRequest&& request) {
    const auto parts = split_path(request.path);
    if (parts.size() == 1 && request.method == "GET") {
      if (parts[0] == "metrics") return own_status(metrics_answer);
      if (parts[0] == "healthz") return own_status(health_answer);
      if (parts[0] == "readyz") return own_status(readiness_answer);
    }
    if (parts.size() < 2 || parts[0] != "v1") return not_found(request);
    if (parts[1] == "status" && parts.size() == 2 && request.method == "GET") return of_cluster("status");
    if (parts[1] == "limits" && parts.size() == 2 && request.method == "GET") return of_cluster("limits");
    if (parts[1] == "epoch" && parts.size() == 2 && request.method == "GET") return of_cluster("epoch");
    if (parts[1] == "events" && parts.size() == 2 && request.method == "GET") return events(request);
    if (parts[1] == "nodes" && parts.size() == 2) return nodes(std::move(request));
    if (parts[1] != "jobs" || parts.size() < 4) return not_found(request);
    if (parts[2] != options_.job)
      return http_error({ErrorCode::kJobUnknown, "this node does not protect that job", std::string(parts[2]),
                         options_.job, std::string(parts[2]), "check the job name in the job file and in attach()"});
    return job_request(std::move(request), parts);
  }

  // A side-channel request for this node as home.
  [[nodiscard]] HttpAnswer here(HttpRequest&& request) {
    const auto parts = split_path(request.path);
    if (parts.size() < 4 || parts[0] != "v1" || parts[1] != "jobs" || parts[2] != options_.job ||
        !of_side_channel(parts[3]))
      return not_found(request);
    return side_request(std::move(request), parts);
  }

  // Every read of state is written down, with what came of it.
  [[nodiscard]] Result<std::function<bool(const ByteSink&)>> stream(const HttpRequest& request) {
    auto prepared = prepare_stream(request);
    if (!options_.access_log) return prepared;
    const std::shared_ptr<AccessLog> log = options_.access_log;
    AccessRecord record{request.caller, request.path, {}, 0, {}};
    for (const auto& [key, value] : request.query)
      record.query += fmt::format("{}{}={}", record.query.empty() ? "" : "&", key, value);
    if (!prepared) {
      record.result = error_name(prepared.error().code);
      log->add(record);
      return prepared;
    }
    return [run = std::move(*prepared), log, record](const ByteSink& sink) mutable {
      const bool whole = run([&](const char* data, std::size_t count) {
        if (!sink(data, count)) return false;
        record.bytes += count;
        return true;
      });
      record.result = whole ? "whole" : "cut";
      log->add(record);
      return whole;
    };
  }

  [[nodiscard]] std::uint64_t unanswered() const { return unanswered_.load(std::memory_order_relaxed); }

 private:
  void tell(const std::string& who, const Error& error) {
    const std::lock_guard lock(teller_mutex_);
    teller_.tell("a request was refused", "address", who, error);
  }

  [[nodiscard]] Result<std::function<bool(const ByteSink&)>> prepare_stream(const HttpRequest& request) {
    const auto parts = split_path(request.path);
    if (parts.size() < 4 || parts[2] != options_.job)
      return fail(ErrorCode::kJobUnknown, "this node does not protect that job", request.path, options_.job);
    if (parts[3] == "points") {
      if (!options_.points) return std::unexpected(no_points());
      return options_.points->stream(request, {parts.begin() + 3, parts.end()});
    }
    const auto step = number(request, "step", 0);
    const auto optimizer = number(request, "optimizer", 0);
    if (!step || !optimizer || !request.query.contains("step"))
      return fail(ErrorCode::kBadNumber, "the step to export is missing or not a number", request.path,
                  "?step=S&optimizer=0|1");
    return options_.state(*step, *optimizer != 0);
  }

  template <class Handle, class... Args>
  HttpAnswer ask(const Handle& handle, Args&&... args) {
    HttpAnswer answer;
    caf::scoped_actor self{system_};
    self->request(handle, std::chrono::milliseconds(options_.deadline_ms), std::forward<Args>(args)...)
        .receive([&](const HttpAnswer& got) { answer = got; },
                 [&](const caf::error& error) {
                   unanswered_.fetch_add(1, std::memory_order_relaxed);
                   answer = http_error({ErrorCode::kNodeBusy,
                                        "the node did not answer in time",
                                        {},
                                        fmt::format("an answer in {} ms", options_.deadline_ms),
                                        system_.render(error),
                                        "try again"});
                 });
    return answer;
  }

  HttpAnswer side_request(HttpRequest&& request, const std::vector<std::string_view>& parts) {
    const std::string_view what = parts[3];
    const bool get = request.method == "GET";
    const bool post = request.method == "POST";
    if (what == "attach" && post && parts.size() == 4)
      return ask(options_.side_channel, attach_atom_v, posted(request));
    if (what == "attach" && get && parts.size() == 5)
      return ask(options_.side_channel, attached_atom_v, std::string(parts[4]));
    if (what == "messages" && post && parts.size() == 4)
      return ask(options_.side_channel, post_atom_v, posted(request));
    if (what == "detach" && post && parts.size() == 4)
      return ask(options_.side_channel, detach_atom_v, posted(request));
    if (what == "chunks" && request.method == "PUT" && parts.size() == 6) {
      const auto n = parse_integer<std::uint32_t>(parts[5]);
      if (!n || *n > 1'000'000) return bad_number(request);
      auto chunk = std::make_shared<ChunkUpload>();
      chunk->session = request.session;
      chunk->id = std::string(parts[4]);
      chunk->number = *n;
      chunk->body = std::move(request.body);
      return ask(options_.side_channel, chunk_atom_v, ChunkUploadPtr(std::move(chunk)));
    }
    if (what == "blobs" && request.method == "PUT" && parts.size() == 5) {
      auto blob = std::make_shared<BlobUpload>();
      blob->session = request.session;
      blob->digest = std::string(parts[4]);
      blob->body = std::move(request.body);
      return ask(options_.side_channel, blob_atom_v, BlobUploadPtr(std::move(blob)));
    }
    return not_found(request);
  }

  HttpAnswer job_request(HttpRequest&& request, const std::vector<std::string_view>& parts) {
    const std::string_view what = parts[3];
    if (of_side_channel(what))
      return options_.forward ? options_.forward(std::move(request)) : side_request(std::move(request), parts);
    const bool get = request.method == "GET";
    if (what == "points" || (get && what == "lineages")) {
      if (!options_.points) return http_error(no_points());
      return options_.points->answer(request, {parts.begin() + 3, parts.end()});
    }
    if (!get || parts.size() != 4) return not_found(request);
    if (what == "status") return of_cluster("job");
    if (what == "shards") return of_cluster("shards");
    if (what == "placement") return of_cluster("placement");
    if (what == "digests" || what == "version") {
      const auto argument =
          what == "digests" ? pair_of(request, "from", "to", ~std::uint64_t{0}) : pair_of(request, "shard", "step");
      return argument ? of_cluster(std::string(what).c_str(), *argument) : bad_number(request);
    }
    return not_found(request);
  }

  HttpAnswer nodes(HttpRequest&& request) {
    if (request.method == "GET") return of_cluster("nodes");
    const WiringPtr wiring = options_.wiring ? options_.wiring() : nullptr;
    if (!wiring || !wiring->epochs)
      return http_error({ErrorCode::kUnsupported,
                         "this node is alone: it has no members to command",
                         {},
                         "a cluster file of two members or more",
                         {},
                         "see docs/operations.md, Nodes"},
                        404);
    if (request.method != "POST") return not_found(request);
    return ask(wiring->epochs, nodes_atom_v, std::string(request.body.begin(), request.body.end()));
  }

  // What this node says of itself, read by a program that watches it.
  HttpAnswer own_status(HttpAnswer (*shown)(const nlohmann::json&)) {
    const HttpAnswer answer = ask(options_.admin, ask_atom_v, std::string("status"), std::string());
    return answer.status == 200 ? shown(nlohmann::json::parse(answer.body, nullptr, false)) : answer;
  }

  HttpAnswer of_cluster(const char* what, std::string argument = {}) {
    return ask(options_.admin, whole_atom_v, std::string(what), std::move(argument));
  }

  // Two numbers of the query as an argument; nothing: one of them is none.
  static std::optional<std::string> pair_of(const HttpRequest& request, const char* first, const char* second,
                                            std::optional<std::uint64_t> absent = {}) {
    if (!absent && (!request.query.contains(first) || !request.query.contains(second))) return std::nullopt;
    const auto one = number(request, first, 0);
    const auto two = number(request, second, absent.value_or(0));
    if (!one || !two) return std::nullopt;
    return std::to_string(*one) + ":" + std::to_string(*two);
  }

  static MessagesPostPtr posted(HttpRequest& request) {
    auto post = std::make_shared<MessagesPost>();
    post->session = std::move(request.session);
    post->body = std::move(request.body);
    return post;
  }

  HttpAnswer events(const HttpRequest& request) {
    if (!request.query.contains("from")) return of_cluster("events");
    // Numbers of events are each node's own: who follows them follows one node.
    const auto from = number(request, "from", 0);
    return from ? of_cluster("events_here", std::to_string(*from)) : bad_number(request);
  }

  caf::actor_system& system_;
  GatewayOptions options_;
  std::mutex teller_mutex_;
  Teller teller_;
  std::atomic<std::uint64_t> unanswered_{0};
};

struct GatewayState {
  static inline const char* name = "gateway";
  std::shared_ptr<HttpServer> server;
  std::shared_ptr<const Router> router;
  std::shared_ptr<PointAnswers> points;   // may be null
  std::shared_ptr<AccessGuard> guard;     // may be null
  std::shared_ptr<AccessLog> access_log;  // may be null
};

GatewayActor::behavior_type gateway(GatewayActor::stateful_pointer<GatewayState> self,
                                    const std::shared_ptr<HttpServer>& server,
                                    const std::shared_ptr<const Router>& router, const GatewayOptions& options) {
  self->state.server = server;
  self->state.router = router;
  self->state.points = options.points;
  self->state.guard = options.guard;
  self->state.access_log = options.access_log;
  return {
      [self](status_atom) {
        const HttpServer& http = *self->state.server;
        nlohmann::json body = {{"port", http.port()},
                               {"requests", http.requests()},
                               {"refused_bodies", http.refused_bodies()},
                               {"waits_for_thread", http.waits_for_thread()},
                               {"dropped", http.dropped()},
                               {"late", http.late()},
                               {"long_heads", http.long_heads()},
                               {"unanswered", self->state.router->unanswered()}};
        if (const AccessGuard* const guard = self->state.guard.get(); guard != nullptr) {
          const AccessGuard::Counters access = guard->counters();
          body["access"] = {{"open", guard->open()},
                            {"signed", access.signed_requests},
                            {"refused_nothing", access.refused_nothing},
                            {"refused_malformed", access.refused_malformed},
                            {"refused_key", access.refused_key},
                            {"refused_signature", access.refused_signature},
                            {"refused_token", access.refused_token},
                            {"refused_body", access.refused_body}};
        }
        if (const AccessLog* const log = self->state.access_log.get(); log != nullptr)
          body["state_reads"] = {{"logged", log->added()}, {"lost", log->lost()}};
        if (const PointAnswers* const points = self->state.points.get(); points != nullptr) {
          const storage::LeaseTable::Counters leases = points->leases();
          body["point_reads_refused"] = points->refused();
          body["leases"] = {
              {"held", leases.held}, {"taken", leases.taken}, {"refused", leases.refused}, {"expired", leases.expired}};
        }
        return ActorStatus{GatewayState::name, body.dump()};
      },
  };
}

}  // namespace

Result<Gateway> spawn_gateway(caf::actor_system& system, const GatewayOptions& options) {
  const HttpServerOptions http = options.http;
  auto router = std::make_shared<Router>(system, options);
  HttpHandlers handlers;
  handlers.admit = [router](const RequestHead& head) { return router->admit(head); };
  handlers.check_body = [router](const Admission& admission, std::string_view body) {
    return router->check_body(admission, body);
  };
  handlers.answer = [router](HttpRequest&& request) { return router->answer(std::move(request)); };
  handlers.stream = [router](const HttpRequest& request) { return router->stream(request); };
  auto server = std::make_shared<HttpServer>(http, std::move(handlers));
  GRADTAP_TRY(server->start());
  return Gateway{[router](HttpRequest&& request) { return router->here(std::move(request)); },
                 system.spawn(gateway, server, std::shared_ptr<const Router>(router), options), server};
}

}  // namespace gradtap::actors
