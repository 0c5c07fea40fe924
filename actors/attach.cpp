// The side channel's attach: opening a lineage, the numerics probe, the baseline.
#include <array>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "actors/side_channel_state.h"
#include "common/sha256.h"
#include "replica/json_fields.h"
#include "replica/schema_json.h"
#include "storage/key.h"

namespace gradtap::actors::side {

namespace {

using nlohmann::json;
using replica::json_text;
using replica::json_uint;

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

// The point that a restarted trainer came from.
struct Parent {
  LineageId lineage = 0;
  StepNumber step = 0;
};

Result<Parent> read_parent(const json& body, StepNumber base_step) {
  Parent parent;
  const auto given = body.find("resume_from");
  if (given == body.end() || given->is_null()) return parent;
  const std::string where = "attach.resume_from";
  if (!given->is_object()) return fail(ErrorCode::kRequestMalformed, "resume_from is no object", where);
  GRADTAP_LET(lineage, json_uint(*given, "lineage", where, ~std::uint32_t{0}));
  GRADTAP_LET(step, json_uint(*given, "step", where, std::uint64_t{1} << 62));
  if (lineage == 0 || step != base_step)
    return fail(ErrorCode::kOutOfRange, "the run resumes from another step than its baseline is of", where,
                "step " + std::to_string(base_step),
                "lineage " + std::to_string(lineage) + " step " + std::to_string(step));
  parent.lineage = static_cast<LineageId>(lineage);
  parent.step = step;
  return parent;
}

void open_lineage(SideChannelPointer self, caf::typed_response_promise<HttpAnswer> promise, JobPlan draft,
                  LayoutPtr layout, const std::string& nonce, const std::string& body, const Parent& parent) {
  SideChannelState& state = self->state;
  auto record = std::make_shared<schema::LineageRecord>();
  record->job = draft.job;
  record->job_name = draft.job_name;
  record->run_nonce = nonce;
  record->base_step = draft.base_step;
  record->parent_lineage = parent.lineage;
  record->parent_step = parent.step;
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

// What the trainer says that a step takes; 0: it does not say.
Result<std::uint64_t> read_step_time(const json& body) {
  const auto given = body.find("step_time_ms");
  if (given == body.end() || given->is_null()) return 0;
  return json_uint(body, "step_time_ms", "attach", 86'400'000);
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

}  // namespace

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
  if (state.attached.state == AttachState::kOpening || state.admission.asking) {
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
  const auto parent = read_parent(*body, plan->base_step);
  if (!parent) {
    ++state.refused;
    promise.deliver(http_error(parent.error()));
    return promise;
  }
  const auto step_time_ms = read_step_time(*body);
  if (!step_time_ms) {
    ++state.refused;
    promise.deliver(http_error(step_time_ms.error()));
    return promise;
  }
  auto draft = std::make_shared<JobPlan>(std::move(*plan));
  admit(self, *draft, *step_time_ms,
        [self, promise, draft, layout = std::make_shared<const replica::Layout>(std::move(*layout)),
         nonce = head->run_nonce, text, parent = *parent](const Status& admitted) mutable {
          if (admitted) return open_lineage(self, promise, std::move(*draft), layout, nonce, text, parent);
          if (admitted.error().code != ErrorCode::kNodeBusy) {
            ++self->state.refused;
            note(self, LogLevel::kError, "attach refused", {{"error", admitted.error().text()}});
          }
          promise.deliver(http_error(admitted.error()));
        });
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

namespace {

// The baseline is here: owners start everywhere, and every member learns the lineage and its first layout.
void launch(SideChannelPointer self, std::vector<std::shared_ptr<replica::Shard>> shards) {
  SideChannelState& state = self->state;
  const LayoutPtr& layout = state.attached.first_layout;
  state.coordinator = state.options.launch(state.attached.plan, std::move(shards));
  self->send(state.coordinator, layout_atom_v, layout);
  const schema::LineageRecord& record = state.attached.record;
  std::vector<storage::SideEntry> entries;
  entries.push_back(
      {storage::side_key(storage::SideKind::kLineage, record.job, record.lineage), schema::encode(record)});
  entries.push_back({storage::side_key(storage::SideKind::kLayout, record.job, record.lineage) +
                         std::string(layout->id().begin(), layout->id().end()),
                     to_bytes(layout->canonical_json())});
  spread(self, std::move(entries), [self](const Outcome& outcome) {
    if (!outcome.ok)
      note(self, LogLevel::kWarn, "the lineage is not known everywhere", {{"error", outcome.error.text()}});
  });
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
  auto loader = BaselineLoader::create(state.attached.plan, state.options.memory);
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

}  // namespace

caf::result<HttpAnswer> take_chunk(SideChannelPointer self, const ChunkUpload& upload) {
  SideChannelState& state = self->state;
  const Session* session = state.sessions->find(upload.session);
  // An attach that began at another home begins again: its probe and baseline went with that home.
  if (session == nullptr ||
      (session->run_nonce != state.attached.run_nonce && session->lineage >= state.attached.lineage()))
    return http_error({ErrorCode::kSessionUnknown, "no such session", upload.session, {}, {}, "attach again"});
  if (auto refused = refuse_session(self, session, upload.session)) return *refused;
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
    launch(self, std::move(*shards));
    return HttpAnswer{};
  }
  return http_error(
      {ErrorCode::kRequestMalformed, "no such request is open", upload.id, "probe or baseline", upload.id, {}}, 404);
}

}  // namespace gradtap::actors::side
