#include "actors/side_channel.h"

#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "actors/baseline_loader.h"
#include "actors/message_batch.h"
#include "common/sha256.h"
#include "replica/json_fields.h"
#include "replica/probe.h"
#include "replica/schema_json.h"
#include "replica/step_message.h"

namespace gradtap::actors {

namespace {

using nlohmann::json;
using replica::json_field;
using replica::json_text;
using replica::json_uint;

constexpr std::chrono::milliseconds kKeeperDeadline{3500};
constexpr std::uint64_t kSeqMax = std::uint64_t{1} << 62;
constexpr std::size_t kLayoutsWantedMax = 64;

enum class AttachState : std::uint8_t { kUnattached, kOpening, kProbing, kBaseline, kFlushing, kTracking, kRefused };

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

// The lineage in force and how far its attach is.
struct Attached {
  AttachState state = AttachState::kUnattached;
  std::string run_nonce;
  JobPlan draft;    // until the recipe is known
  JobPlanPtr plan;  // from then on
  schema::LineageRecord record;
  std::unique_ptr<replica::ProbeUpload> probe;
  std::unique_ptr<BaselineLoader> baseline;
  LayoutPtr first_layout;
  std::optional<Error> refusal;
  [[nodiscard]] LineageId lineage() const { return record.lineage; }
  [[nodiscard]] const replica::Schema& schema() const { return plan ? plan->schema : draft.schema; }
};

struct SideChannelState {
  explicit SideChannelState() = default;
  static inline const char* name = "side_channel";
  SideChannelOptions options;
  std::unique_ptr<SessionTable> sessions;
  Attached attached;
  CoordinatorActor coordinator;
  std::set<std::string> busy;            // sessions with a post in flight
  std::set<std::string> layouts_wanted;  // hex ids
  std::uint64_t shards_flushed = 0;      // of the baseline
  // counters
  std::uint64_t posts = 0;
  std::uint64_t messages = 0;
  std::uint64_t refused = 0;
  std::uint64_t superseded = 0;
  std::uint64_t store_failures = 0;
};

using SideChannelPointer = SideChannelActor::stateful_pointer<SideChannelState>;

HttpAnswer busy_answer(const std::string& what) {
  return http_error({ErrorCode::kNodeBusy, what, {}, {}, {}, "try again"});
}

std::vector<std::uint8_t> to_bytes(std::string_view text) {
  return {text.begin(), text.end()};
}

bool is_nonce(std::string_view text) {
  std::array<std::uint8_t, 16> ignored{};
  return from_hex(text, ignored.data(), ignored.size());
}

json attach_answer(const SideChannelState& state, const Session& session) {
  json wants = json::array();
  if (session.rank == 0 && session.run_nonce == state.attached.run_nonce) {
    if (state.attached.state == AttachState::kProbing) wants.push_back({{"id", "probe"}, {"kind", "probe"}});
    if (state.attached.state == AttachState::kProbing || state.attached.state == AttachState::kBaseline)
      wants.push_back({{"id", "baseline"}, {"kind", "all"}});
  }
  return {{"session", session.id},
          {"lineage", session.lineage},
          {"next_seq", session.received_seq + 1},
          {"durable_seq", session.received_seq},
          {"P", state.options.publish_interval_steps},
          {"wants", wants},
          {"state", attach_state_name(state.attached.state)}};
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

// Stores a session, then answers with what `answer` makes of it.
void store_and_answer(SideChannelPointer self, caf::typed_response_promise<HttpAnswer> promise, Session* session,
                      std::vector<storage::SideEntry> entries, std::function<HttpAnswer()> answer,
                      std::function<void()> on_failure) {
  const SideChannelState& state = self->state;
  auto batch = std::make_shared<SideEntries>();
  batch->entries = std::move(entries);
  batch->entries.push_back(
      {session_key(job_id(state.options.job_name), session->lineage, session->rank), encode_session(*session)});
  self->request(state.options.keeper, kKeeperDeadline, side_atom_v, SideEntriesPtr(std::move(batch)))
      .then(
          [self, promise, answer, on_failure](const Outcome& outcome) mutable {
            if (outcome.ok) {
              promise.deliver(answer());
              return;
            }
            ++self->state.store_failures;
            on_failure();
            promise.deliver(http_error(outcome.error, 503));
          },
          [self, promise, on_failure](const caf::error&) mutable {
            ++self->state.store_failures;
            on_failure();
            promise.deliver(busy_answer("the store did not answer in time"));
          });
}

// -- attach --------------------------------------------------------------------------------------------------------

void answer_attach(SideChannelPointer self, caf::typed_response_promise<HttpAnswer> promise, std::uint32_t rank) {
  SideChannelState& state = self->state;
  auto session = state.sessions->open(state.attached.run_nonce, rank, state.attached.lineage());
  if (!session) {
    promise.deliver(http_error(session.error()));
    return;
  }
  Session* const opened = *session;
  store_and_answer(
      self, std::move(promise), opened, {},
      [self, id = opened->id] {
        const Session* found = self->state.sessions->find(id);
        return HttpAnswer{200, attach_answer(self->state, *found).dump()};
      },
      [] {});
}

void open_lineage(SideChannelPointer self, caf::typed_response_promise<HttpAnswer> promise, JobPlan draft,
                  LayoutPtr layout, const std::string& nonce, const std::string& body) {
  SideChannelState& state = self->state;
  auto record = std::make_shared<schema::LineageRecord>();
  record->job = draft.job;
  record->job_name = draft.job_name;
  record->run_nonce = nonce;
  record->base_step = draft.base_step;
  record->world = draft.world;
  record->sequence = draft.sequence_at_attach;
  record->schema_json = to_bytes(body);
  record->optimizer_class = std::string(replica::optimizer_class_name(draft.schema.optimizer.type));
  for (const replica::StateKind kind : draft.schema.optimizer.kinds)
    record->kinds.emplace_back(replica::state_kind_name(kind));
  record->shard_elements = draft.shard_elements;
  record->shard_count = static_cast<std::uint32_t>(draft.shards.shards().size());
  record->endpoints = state.options.endpoints;
  record->created_wall_ms = state.options.clock->wall_ms();
  record->layout_id = layout->id();
  const AttachState before = state.attached.state;
  state.attached.state = AttachState::kOpening;
  self->request(state.options.keeper, kKeeperDeadline, lineage_atom_v, LineageRecordPtr(record))
      .then(
          [self, promise, record, layout, nonce, before,
           draft = std::make_shared<JobPlan>(std::move(draft))](const LineageAnswer& answer) mutable {
            SideChannelState& s = self->state;
            s.attached.state = before;
            if (!answer.outcome.ok) {
              promise.deliver(http_error(answer.outcome.error, 503));
              return;
            }
            if (answer.lineage.superseded) {
              ++s.superseded;
              promise.deliver(http_error({ErrorCode::kLineageSuperseded,
                                          "a newer run of this job has attached",
                                          nonce,
                                          {},
                                          {},
                                          "stop this run, or let it train untapped"}));
              return;
            }
            s.attached = Attached{};
            s.coordinator = nullptr;
            s.attached.run_nonce = nonce;
            s.attached.record = *record;
            s.attached.record.lineage = answer.lineage.id;
            s.attached.draft = std::move(*draft);
            s.attached.draft.lineage = answer.lineage.id;
            s.attached.first_layout = layout;
            s.attached.probe = std::make_unique<replica::ProbeUpload>(s.attached.draft.schema.optimizer,
                                                                      !s.attached.draft.recorded_probe);
            s.attached.state = AttachState::kProbing;
            s.layouts_wanted.clear();
            note(self, LogLevel::kInfo, "attach",
                 {{"parameters", s.attached.draft.schema.parameters.size()},
                  {"elements", s.attached.draft.schema.elements()},
                  {"shards", s.attached.draft.shards.shards().size()}});
            answer_attach(self, std::move(promise), 0);
          },
          [self, promise, before](const caf::error&) mutable {
            self->state.attached.state = before;
            promise.deliver(busy_answer("the store did not answer in time"));
          });
}

struct AttachHead {
  std::string run_nonce;
  std::uint32_t rank = 0;
};

Result<AttachHead> read_head(const json& body, const SideChannelOptions& options) {
  const std::string where = "attach";
  GRADTAP_LET(protocol, json_uint(body, "protocol", where, 1U << 16));
  if (protocol != 1)
    return fail(ErrorCode::kAttachRefused, "the client speaks another protocol", "attach.protocol", "1",
                std::to_string(protocol), "install the trainer package of this node's version");
  GRADTAP_LET(job, json_text(body, "job", where));
  if (job != options.job_name)
    return fail(ErrorCode::kJobUnknown, "the body names another job than the path", "attach.job", options.job_name,
                job);
  GRADTAP_LET(nonce, json_text(body, "run_nonce", where));
  if (!is_nonce(nonce)) return fail(ErrorCode::kBadText, "run_nonce is not 32 hex digits", "attach.run_nonce");
  GRADTAP_LET(rank, json_uint(body, "rank", where, 65'535));
  GRADTAP_LET(world, json_uint(body, "world", where, 65'536));
  if (world != options.endpoints.size())
    return fail(ErrorCode::kAttachRefused, "the job has another number of ranks than the job file has endpoints",
                "attach.world", std::to_string(options.endpoints.size()), std::to_string(world),
                "list every rank's address in job.endpoints, in rank order");
  if (rank >= world)
    return fail(ErrorCode::kOutOfRange, "the rank is outside the world", "attach.rank",
                "0.." + std::to_string(world - 1), std::to_string(rank));
  GRADTAP_LET(group, json_uint(body, "group", where, 1U << 20));
  if (group != 0)
    return fail(ErrorCode::kUnsupported, "more than one group is not supported", "attach.group", "0",
                std::to_string(group), "attach the default process group's DDP module only");
  return AttachHead{nonce, static_cast<std::uint32_t>(rank)};
}

caf::result<HttpAnswer> attach(SideChannelPointer self, const std::string& text) {
  SideChannelState& state = self->state;
  auto promise = self->make_response_promise<HttpAnswer>();
  auto body = replica::parse_json_object(text, "attach");
  if (!body) {
    promise.deliver(http_error(body.error()));
    return promise;
  }
  const auto head = read_head(*body, state.options);
  if (!head) {
    promise.deliver(http_error(head.error()));
    return promise;
  }
  if (state.attached.state == AttachState::kOpening) {
    promise.deliver(busy_answer("another attach is being opened"));
    return promise;
  }
  if (head->run_nonce == state.attached.run_nonce) {
    if (state.attached.state == AttachState::kRefused)
      promise.deliver(http_error(*state.attached.refusal));
    else
      answer_attach(self, promise, head->rank);
    return promise;
  }
  if (head->rank != 0) {
    promise.deliver(busy_answer("rank 0 of this run has not attached yet"));
    return promise;
  }
  auto plan = plan_from_attach(text, state.options.job_name, static_cast<std::uint32_t>(state.options.endpoints.size()),
                               state.options.shard_elements);
  if (!plan) {
    ++state.refused;
    note(self, LogLevel::kError, "attach refused", {{"error", plan.error().text()}});
    promise.deliver(http_error(plan.error()));
    return promise;
  }
  const auto layout_field = replica::json_object(*body, "layout", "attach");
  auto layout = layout_field ? replica::parse_layout(**layout_field, plan->schema)
                             : Result<replica::Layout>(std::unexpected(layout_field.error()));
  if (!layout) {
    ++state.refused;
    promise.deliver(http_error(layout.error()));
    return promise;
  }
  open_lineage(self, promise, std::move(*plan), std::make_shared<const replica::Layout>(std::move(*layout)),
               head->run_nonce, text);
  return promise;
}

HttpAnswer attach_progress(SideChannelPointer self, const std::string& id) {
  const SideChannelState& state = self->state;
  const Session* session = self->state.sessions->find(id);
  if (session == nullptr || session->run_nonce != state.attached.run_nonce)
    return http_error({ErrorCode::kSessionUnknown, "no such session", id, {}, {}, "attach again"});
  json body = {{"state", attach_state_name(state.attached.state)}, {"lineage", state.attached.lineage()}};
  if (state.attached.state == AttachState::kRefused) {
    const json error = json::parse(http_error(*state.attached.refusal).body, nullptr, false);
    body["error"] = error.value("error", json::object());
  }
  if (state.attached.state == AttachState::kFlushing) {
    body["shards_durable"] = state.shards_flushed;
    body["shards"] = state.attached.plan->shards.shards().size();
  }
  if (state.attached.baseline) {
    body["chunks"] = state.attached.baseline->chunks();
    body["chunks_total"] = state.attached.baseline->total();
  }
  return {200, body.dump(-1, ' ', false, json::error_handler_t::replace)};
}

// -- chunks --------------------------------------------------------------------------------------------------------

void launch(SideChannelPointer self, std::vector<std::shared_ptr<replica::Shard>> shards, bool durable) {
  SideChannelState& state = self->state;
  state.coordinator = state.options.launch(SideChannelActor(self), state.attached.plan, std::move(shards), durable);
}

caf::result<HttpAnswer> finish_probe(SideChannelPointer self) {
  SideChannelState& state = self->state;
  auto promise = self->make_response_promise<HttpAnswer>();
  auto data = state.attached.probe->finish();
  if (!data) {
    promise.deliver(refuse(self, data.error()));
    return promise;
  }
  const auto recipe = replica::match_recipe(*data);
  if (!recipe) {
    promise.deliver(refuse(self, recipe.error()));
    return promise;
  }
  state.attached.probe.reset();
  state.attached.draft.recipe = *recipe;
  state.attached.record.recipe_id = replica::recipe_name(*recipe);
  state.attached.plan = std::make_shared<const JobPlan>(std::move(state.attached.draft));
  auto loader = BaselineLoader::create(state.attached.plan);
  if (!loader) {
    promise.deliver(refuse(self, loader.error()));
    return promise;
  }
  state.attached.baseline = std::move(*loader);
  state.attached.state = AttachState::kBaseline;
  note(self, LogLevel::kInfo, "numerics probe matched", {{"recipe", state.attached.record.recipe_id}});
  auto record = std::make_shared<const schema::LineageRecord>(state.attached.record);
  self->request(state.options.keeper, kKeeperDeadline, record_atom_v, LineageRecordPtr(record))
      .then(
          [self, promise](const Outcome& outcome) mutable {
            promise.deliver(outcome.ok ? HttpAnswer{} : refuse(self, outcome.error));
          },
          [self, promise](const caf::error&) mutable {
            promise.deliver(refuse(self, {ErrorCode::kTimeout,
                                          "the store did not answer in time",
                                          "lineage record",
                                          {},
                                          {},
                                          "see the node's log, then attach again"}));
          });
  return promise;
}

caf::result<HttpAnswer> take_chunk(SideChannelPointer self, const ChunkUpload& upload) {
  SideChannelState& state = self->state;
  const Session* session = state.sessions->find(upload.session);
  if (session == nullptr)
    return http_error({ErrorCode::kSessionUnknown, "no such session", upload.session, {}, {}, "attach again"});
  if (session->run_nonce != state.attached.run_nonce)
    return http_error(
        {ErrorCode::kLineageSuperseded, "a newer run of this job has attached", upload.session, {}, {}, {}});
  if (session->rank != 0)
    return http_error({ErrorCode::kRequestMalformed,
                       "only rank 0 uploads",
                       "rank " + std::to_string(session->rank),
                       "rank 0",
                       {},
                       {}});
  const ByteSpan body(reinterpret_cast<const std::uint8_t*>(upload.body.data()), upload.body.size());
  if (upload.id == "probe") {
    // What was already taken is acknowledged again: the client did not hear the first answer.
    if (state.attached.state != AttachState::kProbing) return HttpAnswer{};
    if (const Status done = state.attached.probe->add_chunk(body); !done) return refuse(self, done.error());
    if (!state.attached.probe->complete()) return HttpAnswer{};
    // A recorded probe has no fixed set of cases: its first chunk is all of it.
    return finish_probe(self);
  }
  if (upload.id == "baseline") {
    if (state.attached.state == AttachState::kProbing) return busy_answer("the numerics probe comes first");
    if (state.attached.state != AttachState::kBaseline) return HttpAnswer{};
    if (const Status done = state.attached.baseline->add_chunk(upload.number, body); !done)
      return refuse(self, done.error());
    if (!state.attached.baseline->complete()) return HttpAnswer{};
    auto shards = state.attached.baseline->finish();
    if (!shards) return refuse(self, shards.error());
    state.attached.baseline.reset();
    state.attached.state = AttachState::kFlushing;
    state.shards_flushed = 0;
    launch(self, std::move(*shards), false);
    self->send(state.coordinator, layout_atom_v, state.attached.first_layout);
    return HttpAnswer{};
  }
  return http_error(
      {ErrorCode::kRequestMalformed, "no such request is open", upload.id, "probe or baseline", upload.id, {}}, 404);
}

// -- messages ------------------------------------------------------------------------------------------------------

HttpAnswer messages_answer(const SideChannelState& state, const Session& session) {
  json requests = json::array();
  if (session.rank == 0)
    for (const std::string& layout : state.layouts_wanted)
      requests.push_back({{"id", "layout-" + layout.substr(0, 16)}, {"kind", "layout"}, {"layout_id", layout}});
  return {200, json{{"received_seq", session.received_seq},
                    {"durable_seq", session.received_seq},
                    {"requests", requests},
                    {"P", state.options.publish_interval_steps}}
                   .dump()};
}

caf::result<HttpAnswer> post(SideChannelPointer self, const MessagesPost& request) {
  SideChannelState& state = self->state;
  ++state.posts;
  Session* session = state.sessions->find(request.session);
  if (session == nullptr)
    return http_error(
        {ErrorCode::kSessionUnknown, "no such session", request.session, {}, {}, "restart the job to attach again"});
  if (session->run_nonce != state.attached.run_nonce) {
    ++state.superseded;
    return http_error(
        {ErrorCode::kLineageSuperseded, "a newer run of this job has attached", request.session, {}, {}, {}});
  }
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
  auto reason = json_text(*body, "reason", "detach");
  if (!reason) return http_error(reason.error());
  if (session->rank == 0 && session->run_nonce == state.attached.run_nonce && state.coordinator) {
    note(self, LogLevel::kInfo, "the client detached", {{"reason", *reason}});
    self->send(state.coordinator, notice_atom_v,
               ClientNoticePtr(std::make_shared<const ClientNotice>(ClientNotice{{}, true, *reason})));
  }
  return HttpAnswer{};
}

// -- recovery ------------------------------------------------------------------------------------------------------

void resume(SideChannelPointer self, RecoveredJob recovered) {
  SideChannelState& state = self->state;
  state.attached.run_nonce = recovered.record.run_nonce;
  state.attached.record = std::move(recovered.record);
  state.attached.plan = recovered.plan;
  state.attached.state = AttachState::kTracking;
  for (Session& session : recovered.sessions) state.sessions->restore(std::move(session));
  launch(self, std::move(recovered.shards), true);
  for (const LayoutPtr& layout : recovered.layouts) self->send(state.coordinator, layout_atom_v, layout);
  for (const StepMessagePtr& message : recovered.messages) self->send(state.coordinator, step_atom_v, message);
}

SideChannelActor::behavior_type side_channel(SideChannelPointer self, const SideChannelOptions& options) {
  SideChannelState& initial = self->state;
  initial.options = options;
  initial.sessions = std::make_unique<SessionTable>(*initial.options.random);
  if (initial.options.recovered) {
    resume(self, std::move(*initial.options.recovered));
    initial.options.recovered.reset();
  }
  return {
      [self](attach_atom, const MessagesPostPtr& request) { return attach(self, request->body); },
      [self](attached_atom, const std::string& session) { return attach_progress(self, session); },
      [self](chunk_atom, const ChunkUploadPtr& upload) { return take_chunk(self, *upload); },
      [self](post_atom, const MessagesPostPtr& request) { return post(self, *request); },
      [self](detach_atom, const MessagesPostPtr& request) { return detach(self, *request); },
      [self](ask_atom, const std::string& layout) {
        if (self->state.layouts_wanted.size() < kLayoutsWantedMax) self->state.layouts_wanted.insert(layout);
      },
      [self](durable_atom, std::uint64_t base_step) {
        SideChannelState& state = self->state;
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
        const json body = {{"state", attach_state_name(state.attached.state)},
                           {"refusal", state.attached.refusal ? state.attached.refusal->text() : std::string()},
                           {"chunks", state.attached.baseline ? state.attached.baseline->chunks() : 0},
                           {"chunks_total", state.attached.baseline ? state.attached.baseline->total() : 0},
                           {"lineage", state.attached.lineage()},
                           {"sessions", state.sessions->size()},
                           {"ranks", ranks},
                           {"posts", state.posts},
                           {"messages", state.messages},
                           {"refused", state.refused},
                           {"superseded", state.superseded},
                           {"store_failures", state.store_failures}};
        return ActorStatus{SideChannelState::name, body.dump()};
      },
  };
}

}  // namespace

SideChannelActor spawn_side_channel(caf::actor_system& system, SideChannelOptions options) {
  return system.spawn(side_channel, std::move(options));
}

std::string session_key(const JobId& job, LineageId lineage, std::uint32_t rank) {
  return storage::side_key(storage::SideKind::kOther, job, lineage, 0, rank) + "session";
}

std::vector<std::uint8_t> encode_session(const Session& session) {
  return to_bytes(json{{"session", session.id},
                       {"run_nonce", session.run_nonce},
                       {"rank", session.rank},
                       {"lineage", session.lineage},
                       {"received_seq", session.received_seq}}
                      .dump());
}

Result<Session> decode_session(ByteSpan bytes) {
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
