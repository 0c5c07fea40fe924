#include "actors/side_channel.h"

#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "actors/message_batch.h"
#include "actors/recovery.h"
#include "actors/side_channel_state.h"
#include "common/sha256.h"
#include "replica/json_fields.h"
#include "replica/schema_json.h"
#include "storage/key.h"

namespace gradtap::actors {

namespace side {

using nlohmann::json;

namespace {

constexpr std::size_t kLayoutsWantedMax = 64;
constexpr std::size_t kBlobBytesMax = std::size_t{64} << 20;

}  // namespace

std::string_view attach_state_name(AttachState state) {
  switch (state) {
    case AttachState::kUnattached:
      return "unattached";
    case AttachState::kOpening:
      return "opening";
    case AttachState::kProbing:
      return "probe_pending";
    case AttachState::kBaseline:
      return "baseline_pending";
    case AttachState::kFlushing:
      return "baseline_flushing";
    case AttachState::kTracking:
      return "tracking";
    case AttachState::kRefused:
      return "refused";
  }
  return "unattached";
}

HttpAnswer busy_answer(const std::string& what) {
  return http_error({ErrorCode::kNodeBusy, what, {}, {}, {}, "try again"});
}

void note(SideChannelPointer self, LogLevel level, std::string_view text, std::vector<LogField> fields) {
  fields.emplace_back("job", self->state.options.job_name);
  fields.emplace_back("lineage", self->state.attached.lineage());
  self->state.options.events->add(level, text, std::move(fields));
}

HttpAnswer refuse(SideChannelPointer self, const Error& error) {
  SideChannelState& state = self->state;
  ++state.refused;
  note(self, LogLevel::kError, "attach refused", {{"error", error.text()}});
  state.attached.state = AttachState::kRefused;
  state.attached.refusal = error;
  state.attached.probe.reset();
  state.attached.baseline.reset();
  return http_error(error);
}

// Counts who has stored a batch.
struct Spread {
  std::size_t open = 0;
  std::size_t stored_elsewhere = 0;
  bool stored_here = false;
  bool delivered = false;
  Outcome failure;
  std::function<void(const Outcome&)> done;
};

void spread(SideChannelPointer self, std::vector<storage::SideEntry> entries,
            std::function<void(const Outcome&)> done) {
  SideChannelState& state = self->state;
  auto batch = std::make_shared<SideEntries>();
  batch->entries = std::move(entries);
  const SideEntriesPtr shared = std::move(batch);
  auto counting = std::make_shared<Spread>();
  counting->done = std::move(done);
  const ClusterState* cluster = state.options.cluster.get();
  const std::size_t copies = cluster == nullptr ? 1 : std::min<std::size_t>(2, cluster->replicas());
  const auto settle = [counting, cluster, copies] {
    if (counting->delivered) return;
    // A member that is down asks for what it missed when it comes back; until then fewer copies are all there can be.
    const std::size_t wanted = cluster == nullptr ? 0 : std::min(copies - 1, cluster->live_peers().size());
    if (counting->stored_here && counting->stored_elsewhere >= wanted) {
      counting->delivered = true;
      counting->done({});
    } else if (counting->open == 0) {
      counting->delivered = true;
      counting->done(counting->failure);
    }
  };
  ++counting->open;
  self->request(state.options.keeper, kKeeperDeadline, side_atom_v, shared)
      .then(
          [counting, settle](const Outcome& outcome) {
            --counting->open;
            counting->stored_here = outcome.ok;
            if (!outcome.ok) counting->failure = outcome;
            settle();
          },
          [counting, settle](const caf::error&) {
            --counting->open;
            counting->failure = {false,
                                 {ErrorCode::kNodeBusy, "the store did not answer in time", {}, {}, {}, "try again"}};
            settle();
          });
  if (!state.wiring) return;
  for (const ReplicatorActor& replicator : state.wiring->replicators) {
    if (!replicator) continue;
    ++counting->open;
    self->request(replicator, kKeeperDeadline, side_atom_v, shared)
        .then(
            [counting, settle](const Outcome& outcome) {
              --counting->open;
              if (outcome.ok)
                ++counting->stored_elsewhere;
              else if (counting->stored_here || counting->failure.ok)
                counting->failure = outcome;
              settle();
            },
            [counting, settle](const caf::error&) {
              --counting->open;
              if (counting->failure.ok)
                counting->failure = {false,
                                     {ErrorCode::kNodeBusy, "a peer did not answer in time", {}, {}, {}, "try again"}};
              settle();
            });
  }
}

std::optional<HttpAnswer> refuse_session(SideChannelPointer self, const Session* session, const std::string& id) {
  SideChannelState& state = self->state;
  if (session == nullptr)
    return http_error({ErrorCode::kSessionUnknown, "no such session", id, {}, {}, "restart the job to attach again"});
  if (session->lineage < state.attached.lineage()) {
    ++state.superseded;
    return http_error({ErrorCode::kLineageSuperseded, "a newer run of this job has attached", id, {}, {}, {}});
  }
  if (session->run_nonce != state.attached.run_nonce)
    return busy_answer("this node has just become the home and knows of no complete attach of this run");
  return std::nullopt;
}

void store_and_answer(SideChannelPointer self, caf::typed_response_promise<HttpAnswer> promise, const Session* session,
                      std::vector<storage::SideEntry> entries, std::function<HttpAnswer()> answer,
                      std::function<void()> on_failure) {
  entries.push_back(
      {session_key(job_id(self->state.options.job_name), session->lineage, session->rank), encode_session(*session)});
  spread(
      self, std::move(entries),
      [self, promise, answer = std::move(answer), on_failure = std::move(on_failure)](const Outcome& outcome) mutable {
        if (outcome.ok) {
          promise.deliver(answer());
          return;
        }
        ++self->state.store_failures;
        on_failure();
        promise.deliver(http_error(outcome.error, 503));
      });
}

namespace {

HttpAnswer messages_answer(const SideChannelState& state, const Session& session) {
  json requests = json::array();
  if (session.rank == 0)
    for (const std::string& layout : state.layouts_wanted)
      requests.push_back({{"id", "layout-" + layout.substr(0, 16)}, {"kind", "layout"}, {"layout_id", layout}});
  json answer = {{"received_seq", session.received_seq},
                 {"durable_seq", session.received_seq},
                 {"requests", requests},
                 {"P", state.options.publish_interval_steps}};
  // Members come and go while the job trains: the client learns whom it may turn to.
  if (state.options.cluster && !state.options.cluster->alone()) {
    json gateways = json::array();
    for (const schema::EpochMember& member : state.options.cluster->epoch()->record.members)
      if (member.state == schema::MemberState::kIn) gateways.push_back(member.http);
    answer["gateways"] = std::move(gateways);
  }
  return {200, answer.dump()};
}

caf::result<HttpAnswer> post(SideChannelPointer self, const MessagesPost& request) {
  SideChannelState& state = self->state;
  ++state.posts;
  Session* session = state.sessions->find(request.session);
  if (auto refused = refuse_session(self, session, request.session)) return *refused;
  if (state.attached.state == AttachState::kRefused) return http_error(*state.attached.refusal, 409);
  if (!state.attached.plan) return busy_answer("the attach is not complete");
  if (!state.busy.insert(request.session).second) return busy_answer("another post of this session is being stored");
  auto lines = read_message_batch(request.body, *session, job_id(state.options.job_name), state.attached.schema(),
                                  state.options.limits);
  // Everything is tried on a copy: what cannot be stored was not received.
  auto next = std::make_shared<Session>(*session);
  Status done{};
  auto fresh = std::make_shared<std::vector<BatchedMessage>>();
  if (!lines) {
    done = std::unexpected(lines.error());
  } else {
    for (BatchedMessage& line : *lines) {
      const auto verdict = state.sessions->accept(*next, line.seq, line.digest);
      if (!verdict) {
        done = std::unexpected(verdict.error());
        break;
      }
      if (*verdict == SeqVerdict::kDuplicate) continue;
      if (done = state.sessions->declare_dropped(*next, line.dropped_seqs); !done) break;
      fresh->push_back(std::move(line));
    }
  }
  if (!done) {
    ++state.refused;
    const ErrorCode code = done.error().code;
    if (code == ErrorCode::kLimitReached || code == ErrorCode::kRequestTooLarge) ++state.refused_limit;
    state.busy.erase(request.session);
    return http_error(done.error(), done.error().code == ErrorCode::kRequestMalformed ? 422 : 0);
  }
  std::vector<storage::SideEntry> entries;
  for (BatchedMessage& line : *fresh)
    if (line.entry) entries.push_back(std::move(*line.entry));
  auto promise = self->make_response_promise<HttpAnswer>();
  store_and_answer(
      self, promise, next.get(), std::move(entries),
      [self, next, fresh] {
        SideChannelState& s = self->state;
        s.busy.erase(next->id);
        Session* live = s.sessions->find(next->id);
        if (live == nullptr) return busy_answer("the session ended");
        *live = *next;
        s.messages += fresh->size();
        for (const BatchedMessage& line : *fresh) {
          if (line.layout) {
            s.layouts_wanted.erase(to_hex(line.layout->id()));
            if (s.coordinator) self->send(s.coordinator, layout_atom_v, line.layout);
          }
          if (line.step && live->rank == 0) count_step(self, line.step->step);
          if (line.step && s.coordinator) self->send(s.coordinator, step_atom_v, line.step);
          if (line.notice && s.coordinator)
            self->send(s.coordinator, notice_atom_v,
                       ClientNoticePtr(std::make_shared<const ClientNotice>(*line.notice)));
        }
        return messages_answer(s, *live);
      },
      [self, id = next->id] { self->state.busy.erase(id); });
  return promise;
}

HttpAnswer detach(SideChannelPointer self, const MessagesPost& request) {
  SideChannelState& state = self->state;
  const Session* session = state.sessions->find(request.session);
  if (session == nullptr)
    return http_error({ErrorCode::kSessionUnknown, "no such session", request.session, {}, {}, {}});
  auto body = replica::parse_json_object(request.body, "detach");
  if (!body) return http_error(body.error());
  auto reason = replica::json_text(*body, "reason", "detach");
  if (!reason) return http_error(reason.error());
  if (session->rank == 0 && session->run_nonce == state.attached.run_nonce && state.coordinator) {
    note(self, LogLevel::kInfo, "the client detached", {{"reason", *reason}});
    self->send(state.coordinator, notice_atom_v,
               ClientNoticePtr(std::make_shared<const ClientNotice>(ClientNotice{{}, true, *reason})));
  }
  return HttpAnswer{};
}

// -- blobs ---------------------------------------------------------------------------------------------------------

caf::result<HttpAnswer> take_blob(SideChannelPointer self, const BlobUpload& upload) {
  SideChannelState& state = self->state;
  const Session* session = state.sessions->find(upload.session);
  if (auto refused = refuse_session(self, session, upload.session)) return *refused;
  if (upload.body.size() > kBlobBytesMax)
    return http_error({ErrorCode::kRequestTooLarge, "the blob is too large", "blobs", std::to_string(kBlobBytesMax),
                       std::to_string(upload.body.size()), "keep large objects out of the side state"});
  const Sha256 digest = sha256(upload.body);
  if (to_hex(digest) != upload.digest)
    return http_error({ErrorCode::kRequestMalformed, "the blob is not what its name says", "blobs", upload.digest,
                       to_hex(digest), "send it again"},
                      422);
  std::vector<storage::SideEntry> entries;
  entries.push_back(
      {storage::side_key(storage::SideKind::kBlob, job_id(state.options.job_name), session->lineage, 0, session->rank) +
           std::string(digest.begin(), digest.end()),
       {upload.body.begin(), upload.body.end()}});
  auto promise = self->make_response_promise<HttpAnswer>();
  ++state.blobs;
  state.blob_bytes += upload.body.size();
  spread(self, std::move(entries), [self, promise](const Outcome& outcome) mutable {
    if (!outcome.ok) ++self->state.store_failures;
    promise.deliver(outcome.ok ? HttpAnswer{} : http_error(outcome.error, 503));
  });
  return promise;
}

// -- home ----------------------------------------------------------------------------------------------------------

HttpAnswer not_home(SideChannelPointer self) {
  ++self->state.not_home;
  return http_error({ErrorCode::kNodeBusy, "another node is the home of the job", {}, {}, {}, "try the next gateway"},
                    503);
}

// What the last home stored is here: go on from it. An attach that did not come to its end begins again.
void take_over(SideChannelPointer self) {
  SideChannelState& state = self->state;
  const JobId job = job_id(state.options.job_name);
  const auto lineages = state.options.store->lineages(job);
  if (!lineages)
    return note(self, LogLevel::kError, "the lineages cannot be read", {{"error", lineages.error().text()}});
  state.attached = Attached{};
  state.coordinator = state.wiring ? state.wiring->coordinator : CoordinatorActor();
  // Sessions of older lineages are known too: their clients are told that they are superseded.
  for (const schema::LineageRecord& record : *lineages) {
    auto sessions = read_sessions(*state.options.store, job, record.lineage, record.world);
    if (!sessions) {
      note(self, LogLevel::kError, "sessions cannot be read", {{"error", sessions.error().text()}});
      continue;
    }
    for (Session& session : *sessions) state.sessions->restore(std::move(session));
  }
  const JobPlanPtr plan = state.wiring ? state.wiring->plan : nullptr;
  if (!plan) return;
  for (const schema::LineageRecord& record : *lineages) {
    if (record.lineage != plan->lineage) continue;
    state.attached.record = record;
    // Until every shard has its base version somewhere, the baseline may have been lost with the last home.
    if (state.base_durable != record.lineage) return;
    state.attached.run_nonce = record.run_nonce;
    state.attached.plan = plan;
    state.attached.state = AttachState::kTracking;
  }
}

void on_home(SideChannelPointer self, bool home) {
  SideChannelState& state = self->state;
  if (home && !state.home) take_over(self);
  state.home = home;
}

// A session that went on at the last home.
void merge_session(SideChannelState& state, Session theirs) {
  Session* ours = state.sessions->find(theirs.id);
  if (ours == nullptr)
    state.sessions->restore(std::move(theirs));
  else if (theirs.received_seq > ours->received_seq)
    *ours = std::move(theirs);
}

}  // namespace

namespace {

// Why the newest attach is not in force: what it was refused for before or after its lineage was opened.
std::string refusal_text(const SideChannelState& state) {
  if (state.attached.refusal) return state.attached.refusal->text();
  if (state.attached.state == AttachState::kUnattached && state.admission.refusal)
    return state.admission.refusal->text();
  return {};
}

json admission_status(const Admission& admission) {
  return {{"verdict", admission.verdict},
          {"fits", admission.fits},
          {"step_time_s", admission.job.step_time_s},
          {"measuring_step_time", admission.measuring},
          {"refusal", admission.refusal ? admission.refusal->text() : std::string()}};
}

SideChannelActor::behavior_type side_channel(SideChannelPointer self, const SideChannelOptions& options) {
  SideChannelState& initial = self->state;
  initial.options = options;
  initial.started_ns = options.clock->monotonic_ns();
  initial.sessions = std::make_unique<SessionTable>(*initial.options.random);
  return {
      [self](attach_atom, const MessagesPostPtr& request) -> caf::result<HttpAnswer> {
        if (!self->state.home) return not_home(self);
        return attach(self, request->body);
      },
      [self](attached_atom, const std::string& session) {
        return self->state.home ? attach_progress(self, session) : not_home(self);
      },
      [self](chunk_atom, const ChunkUploadPtr& upload) -> caf::result<HttpAnswer> {
        if (!self->state.home) return not_home(self);
        return take_chunk(self, *upload);
      },
      [self](post_atom, const MessagesPostPtr& request) -> caf::result<HttpAnswer> {
        if (!self->state.home) return not_home(self);
        return post(self, *request);
      },
      [self](blob_atom, const BlobUploadPtr& upload) -> caf::result<HttpAnswer> {
        if (!self->state.home) return not_home(self);
        return take_blob(self, *upload);
      },
      [self](detach_atom, const MessagesPostPtr& request) {
        return self->state.home ? detach(self, *request) : not_home(self);
      },
      [self](home_atom, bool home) { on_home(self, home); },
      [self](side_atom, const SideEntriesPtr& entries) {
        for (const storage::SideEntry& entry : entries->entries)
          if (auto session = decode_session(entry.bytes)) merge_session(self->state, std::move(*session));
      },
      [self](wire_atom, const WiringPtr& wiring) {
        self->state.wiring = wiring;
        self->state.coordinator = wiring->coordinator;
      },
      [self](ask_atom, const std::string& layout) {
        if (self->state.layouts_wanted.size() < kLayoutsWantedMax) self->state.layouts_wanted.insert(layout);
      },
      [self](durable_atom, std::uint64_t base_step) {
        SideChannelState& state = self->state;
        if (state.wiring && state.wiring->plan) state.base_durable = state.wiring->plan->lineage;
        if (state.options.on_base_durable) state.options.on_base_durable();
        if (state.home && state.attached.state == AttachState::kUnattached) take_over(self);
        if (state.attached.state != AttachState::kFlushing) return;
        state.attached.state = AttachState::kTracking;
        note(self, LogLevel::kInfo, "tracking: the baseline is durable", {{"step", base_step}});
      },
      [self](flush_atom, std::uint64_t shards) { self->state.shards_flushed = shards; },
      [self](status_atom) {
        const SideChannelState& state = self->state;
        json ranks = json::array();
        for (const auto& [id, session] : state.sessions->sessions())
          if (session.run_nonce == state.attached.run_nonce)
            ranks.push_back(
                {{"rank", session.rank}, {"received_seq", session.received_seq}, {"duplicates", session.duplicates}});
        const json body = {{"home", state.home},
                           {"blobs", state.blobs},
                           {"blob_bytes", state.blob_bytes},
                           {"not_home", state.not_home},
                           {"state", attach_state_name(state.attached.state)},
                           {"refusal", refusal_text(state)},
                           {"admission", admission_status(state.admission)},
                           {"chunks", state.attached.baseline ? state.attached.baseline->chunks() : 0},
                           {"chunks_total", state.attached.baseline ? state.attached.baseline->total() : 0},
                           {"lineage", state.attached.lineage()},
                           {"sessions", state.sessions->size()},
                           {"ranks", ranks},
                           {"posts", state.posts},
                           {"messages", state.messages},
                           {"refused", state.refused},
                           {"refused_limit", state.refused_limit},
                           {"superseded", state.superseded},
                           {"store_failures", state.store_failures}};
        return ActorStatus{SideChannelState::name, body.dump()};
      },
  };
}

}  // namespace

}  // namespace side

SideChannelActor spawn_side_channel(caf::actor_system& system, SideChannelOptions options) {
  return system.spawn(side::side_channel, std::move(options));
}

std::string session_key(const JobId& job, LineageId lineage, std::uint32_t rank) {
  return storage::side_key(storage::SideKind::kOther, job, lineage, 0, rank) + "session";
}

std::vector<std::uint8_t> encode_session(const Session& session) {
  const std::string text = nlohmann::json{
      {"session", session.id},
      {"run_nonce", session.run_nonce},
      {"rank", session.rank},
      {"lineage", session.lineage},
      {"received_seq",
       session.received_seq}}.dump();
  return {text.begin(), text.end()};
}

Result<Session> decode_session(ByteSpan bytes) {
  using replica::json_text;
  using replica::json_uint;
  constexpr std::uint64_t kSeqMax = std::uint64_t{1} << 62;
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  GRADTAP_LET(body, replica::parse_json_object(text, "session"));
  Session session;
  GRADTAP_LET(id, json_text(body, "session", "session"));
  GRADTAP_LET(nonce, json_text(body, "run_nonce", "session"));
  GRADTAP_LET(rank, json_uint(body, "rank", "session", 65'535));
  GRADTAP_LET(lineage, json_uint(body, "lineage", "session", ~std::uint32_t{0}));
  GRADTAP_LET(received, json_uint(body, "received_seq", "session", kSeqMax));
  session.id = id;
  session.run_nonce = nonce;
  session.rank = static_cast<std::uint32_t>(rank);
  session.lineage = static_cast<LineageId>(lineage);
  session.received_seq = received;
  return session;
}

}  // namespace gradtap::actors
