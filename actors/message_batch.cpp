#include "actors/message_batch.h"

#include <string>
#include <utility>

#include "common/sha256.h"
#include "replica/json_fields.h"
#include "replica/schema_json.h"
#include "replica/step_message.h"

namespace gradtap::actors {

namespace {

using replica::Json;
using replica::json_text;
using replica::json_uint;

constexpr std::uint64_t kSeqMax = std::uint64_t{1} << 62;

std::vector<std::uint8_t> to_bytes(std::string_view text) {
  return {text.begin(), text.end()};
}

Result<std::vector<std::uint64_t>> numbers(const Json& message, const char* field) {
  std::vector<std::uint64_t> list;
  if (!message.contains(field)) return list;
  GRADTAP_LET(array, replica::json_array(message, field, "message", 65'536));
  for (const Json& value : *array) {
    GRADTAP_LET(number, replica::json_uint_value(value, std::string("message.") + field, kSeqMax));
    list.push_back(number);
  }
  return list;
}

Result<BatchedMessage> read_message(std::string_view text, const Session& session, const JobId& job,
                                    const replica::Schema& schema) {
  GRADTAP_LET(message, replica::parse_json_object(text, "message"));
  BatchedMessage line;
  line.digest = sha256(text);
  GRADTAP_LET(kind, json_text(message, "kind", "message"));
  GRADTAP_LET(seq, json_uint(message, "seq", "message", kSeqMax));
  GRADTAP_LET(rank, json_uint(message, "rank", "message", 65'535));
  line.seq = seq;
  if (rank != session.rank)
    return fail(ErrorCode::kOutOfRange, "the message names another rank than its session", "message.rank",
                std::to_string(session.rank), std::to_string(rank));
  if (kind == "step") {
    GRADTAP_LET(step, replica::parse_step_message(message, schema));
    schema::StepRecord record;
    record.lineage = session.lineage;
    record.step = step.step;
    record.rank = session.rank;
    record.seq = seq;
    record.layout_id = step.layout_id;
    record.interval_from = step.interval_begin;
    record.interval_to = step.interval_end;
    record.verdict = static_cast<schema::Verdict>(step.scalars.verdict);
    record.json = to_bytes(text);
    line.entry = storage::SideEntry{
        storage::side_key(storage::SideKind::kStepMessage, job, session.lineage, step.step, session.rank),
        schema::encode(record)};
    if (session.rank == 0) line.step = std::make_shared<const replica::StepMessage>(std::move(step));
  } else if (kind == "layout") {
    GRADTAP_LET(body, replica::json_object(message, "layout", "message"));
    GRADTAP_LET(layout, replica::parse_layout(*body, schema));
    line.entry = storage::SideEntry{storage::side_key(storage::SideKind::kLayout, job, session.lineage) +
                                        std::string(layout.id().begin(), layout.id().end()),
                                    to_bytes(layout.canonical_json())};  // nothing else of the body, however deep it is
    line.layout = std::make_shared<const replica::Layout>(std::move(layout));
  } else if (kind == "dropped") {
    GRADTAP_LET(steps, numbers(message, "steps"));
    GRADTAP_LET(seqs, numbers(message, "seqs"));
    line.dropped_seqs = std::move(seqs);
    if (session.rank == 0) line.notice = ClientNotice{std::move(steps), false, {}};
  } else if (kind != "reply") {
    return fail(ErrorCode::kRequestMalformed, "the message is of an unknown kind", "message.kind",
                "step, layout, dropped or reply", kind);
  }
  return line;
}

}  // namespace

Result<std::vector<BatchedMessage>> read_message_batch(std::string_view body, const Session& session, const JobId& job,
                                                       const replica::Schema& schema, const MessageLimits& limits) {
  if (body.size() > limits.batch_bytes_max)
    return fail(ErrorCode::kRequestTooLarge, "the batch is too large", "messages",
                std::to_string(limits.batch_bytes_max), std::to_string(body.size()), "send fewer messages");
  std::vector<BatchedMessage> lines;
  while (!body.empty()) {
    const std::size_t end = body.find('\n');
    const std::string_view text = body.substr(0, end);
    body.remove_prefix(end == std::string_view::npos ? body.size() : end + 1);
    if (text.empty()) continue;
    if (lines.size() == limits.batch_lines_max)
      return fail(ErrorCode::kRequestTooLarge, "the batch has too many messages", "messages",
                  std::to_string(limits.batch_lines_max), {}, "send fewer messages");
    GRADTAP_LET(line, read_message(text, session, job, schema));
    lines.push_back(std::move(line));
  }
  return lines;
}

}  // namespace gradtap::actors
