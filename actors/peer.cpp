// The peer actor: what this node answers to other nodes' actors.
#include <utility>

#include "actors/membership.h"
#include "common/log.h"

namespace gradtap::actors {

namespace {

constexpr std::size_t kQuestionBytesMax = 256;
constexpr std::chrono::milliseconds kUploadDeadline{60'000};

struct PeerState {
  static inline const char* name = "peer";
  PeerOptions options;
  std::uint64_t malformed = 0;
};

using PeerPointer = PeerActor::stateful_pointer<PeerState>;

std::string error_text(const std::string& what) {
  return http_error({ErrorCode::kNodeBusy, what, {}, {}, {}, "ask again"}).body;
}

caf::result<std::string> answer(PeerPointer self, const std::string& what, const std::string& argument) {
  const WiringPtr wiring = self->state.options.wiring();
  auto promise = self->make_response_promise<std::string>();
  const auto deliver = [promise](const HttpAnswer& got) mutable { promise.deliver(got.body); };
  const auto give_up = [promise, what](const caf::error&) mutable {
    promise.deliver(error_text("no answer in time to " + what));
  };
  if (what == "upload" && wiring && wiring->publisher)
    self->request(wiring->publisher, kUploadDeadline, upload_atom_v, argument).then(deliver, give_up);
  else if (wiring && wiring->admin && what.size() <= kQuestionBytesMax && argument.size() <= kQuestionBytesMax)
    self->request(wiring->admin, self->state.options.deadlines.peer(), ask_atom_v, what, argument)
        .then(deliver, give_up);
  else
    promise.deliver(error_text("nobody here answers " + what.substr(0, 32)));
  return promise;
}

PeerActor::behavior_type peer(PeerPointer self, const PeerOptions& options) {
  self->state.options = options;
  return {
      [self](hello_atom, const std::string& theirs) {
        if (const WiringPtr wiring = self->state.options.wiring(); wiring && wiring->membership)
          self->send(wiring->membership, hello_atom_v, theirs);
        return self->state.options.hello();
      },
      [self](report_atom, const std::string& text) {
        const WiringPtr wiring = self->state.options.wiring();
        if (!wiring || !wiring->coordinator || !wiring->plan) return;
        auto parsed = decode_report(text);
        if (!parsed) {
          if (self->state.malformed++ == 0) log_warn("a peer's report was refused", {{"error", parsed.error().text()}});
          return;
        }
        if (parsed->lineage != wiring->plan->lineage) return;
        self->send(wiring->coordinator, report_atom_v,
                   PeerReportPtr(std::make_shared<const PeerReport>(std::move(parsed->report))));
      },
      [self](ask_atom, const std::string& what, const std::string& argument) { return answer(self, what, argument); },
  };
}

}  // namespace

PeerActor spawn_peer(caf::actor_system& system, PeerOptions options) {
  return system.spawn(peer, std::move(options));
}

}  // namespace gradtap::actors
