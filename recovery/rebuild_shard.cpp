#include "recovery/rebuild_shard.h"

#include <optional>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "recovery/full_version.h"
#include "replica/schema_json.h"

namespace gradtap::recovery {

Result<StepMessagePtr> read_message(const JobPlan& plan, ByteSpan bytes) {
  auto record = schema::decode_step(bytes);
  if (!record) return std::unexpected(record.error());
  const std::string text(record->json.begin(), record->json.end());
  GRADTAP_LET(body, replica::parse_json_object(text, "stored step message"));
  GRADTAP_LET(message, replica::parse_step_message(body, plan.schema));
  return std::make_shared<const replica::StepMessage>(std::move(message));
}

namespace {

Result<StepMessagePtr> message_of(const storage::ShardStore& store, const JobPlan& plan, StepNumber step) {
  auto bytes = store.get_side(storage::side_key(storage::SideKind::kStepMessage, plan.job, plan.lineage, step, 0));
  if (!bytes) return std::unexpected(bytes.error());
  return read_message(plan, *bytes);
}

Status check_digest(const storage::ShardStore& store, const JobPlan& plan, const replica::Shard& shard,
                    StepNumber step) {
  const auto expected = store.state_digest(plan.job, plan.lineage, shard.range().id, step);
  if (!expected) return std::unexpected(expected.error());
  const Sha256 actual = shard.digest().sha;
  if (actual == *expected) return {};
  return fail(ErrorCode::kDigestMismatch, "a rebuilt shard is not what was stored",
              fmt::format("lineage {} shard {} step {}", plan.lineage, shard.range().id, step), to_hex(*expected),
              to_hex(actual), "keep the data directory and look at the disk: stored bytes have changed");
}

}  // namespace

Result<replica::Shard> rebuild_shard(const storage::ShardStore& store, const JobPlan& plan, ShardId shard_id,
                                     StepNumber step) {
  const auto fulls = store.full_steps(plan.job, plan.lineage, shard_id);
  if (!fulls) return std::unexpected(fulls.error());
  std::optional<StepNumber> full;
  for (const StepNumber candidate : *fulls)
    if (candidate <= step && (!full || candidate > *full)) full = candidate;
  if (!full)
    return fail(ErrorCode::kStepUnavailable, "no full version at or before the step is kept",
                fmt::format("shard {} step {}", shard_id, step), {}, {},
                "ask for a newer step, or raise store.keep_fulls");
  GRADTAP_LET(shard, read_full_version(store, plan, shard_id, *full));
  GRADTAP_TRY(check_digest(store, plan, shard, *full));
  const replica::ShardRange& range = plan.shards.shards()[shard_id];
  for (StepNumber next = *full + 1; next <= step; ++next) {
    GRADTAP_LET(message, message_of(store, plan, next));
    GRADTAP_LET(log, store.read_log(plan.job, plan.lineage, shard_id, next));
    const bool skipped = message->scalars.verdict == replica::Verdict::kSkipped;
    if (!skipped && log.size() != range.elements * sizeof(float))
      return fail(ErrorCode::kStoreCorrupt, "a log record has a wrong length",
                  fmt::format("shard {} step {}", shard_id, next), std::to_string(range.elements * sizeof(float)),
                  std::to_string(log.size()));
    std::vector<const float*> pieces(range.pieces.size(), nullptr);
    if (!skipped) pieces = replica::contiguous_pieces(range, reinterpret_cast<const float*>(log.data()));
    GRADTAP_TRY(shard.apply(message->scalars, replica::GradientView{pieces}));
  }
  if (step > *full) GRADTAP_TRY(check_digest(store, plan, shard, step));
  return std::move(shard);
}

}  // namespace gradtap::recovery
