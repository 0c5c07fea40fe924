#include "recovery/rebuild_shard.h"

#include <optional>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "recovery/full_version.h"
#include "recovery/store_source.h"
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

Result<StepMessagePtr> message_of(const ShardSource& source, const JobPlan& plan, StepNumber step) {
  auto bytes = source.step_message(step);
  if (!bytes) return std::unexpected(bytes.error());
  GRADTAP_LET(message, read_message(plan, *bytes));
  if (message->step != step)
    return fail(ErrorCode::kStoreCorrupt, "a stored step message is of another step", fmt::format("step {}", step),
                std::to_string(step), std::to_string(message->step));
  return message;
}

// The digest, or nothing where none need be kept and none is.
Result<std::optional<Sha256>> check_digest(const ShardSource& source, const JobPlan& plan, const replica::Shard& shard,
                                           StepNumber step, bool required) {
  const auto expected = source.state_digest(shard.range().id, step);
  if (!expected) return std::unexpected(expected.error());
  const std::string where = fmt::format("lineage {} shard {} step {}", plan.lineage, shard.range().id, step);
  if (!*expected) {
    if (!required) return std::optional<Sha256>{};
    return fail(ErrorCode::kStepUnavailable, "no digest of this step is kept", where, {}, {}, "ask for another step");
  }
  const Sha256 actual = shard.digest().sha;
  if (actual == **expected) return std::optional<Sha256>(actual);
  return fail(ErrorCode::kDigestMismatch, "a rebuilt shard is not what was stored", where, to_hex(**expected),
              to_hex(actual), "keep the stored files and look at the disk: stored bytes have changed");
}

}  // namespace

Result<RebuiltShard> rebuild_with_digest(const ShardSource& source, const JobPlan& plan, ShardId shard_id,
                                         StepNumber step) {
  if (shard_id >= plan.shards.shards().size())
    return fail(ErrorCode::kOutOfRange, "the state has no such shard", fmt::format("shard {}", shard_id),
                fmt::format("below {}", plan.shards.shards().size()));
  const auto fulls = source.full_steps(shard_id);
  if (!fulls) return std::unexpected(fulls.error());
  std::optional<StepNumber> full;
  for (const StepNumber candidate : *fulls)
    if (candidate <= step && (!full || candidate > *full)) full = candidate;
  if (!full)
    return fail(ErrorCode::kStepUnavailable, "no full version at or before the step is kept",
                fmt::format("shard {} step {}", shard_id, step), {}, {},
                "ask for a newer step, or raise store.keep_fulls");
  GRADTAP_LET(shard, read_full_version(source, plan, shard_id, *full));
  auto digest = check_digest(source, plan, shard, *full, step == *full);
  if (!digest) return std::unexpected(digest.error());
  const replica::ShardRange& range = plan.shards.shards()[shard_id];
  for (StepNumber next = *full + 1; next <= step; ++next) {
    GRADTAP_LET(message, message_of(source, plan, next));
    GRADTAP_LET(log, source.log(shard_id, next));
    const bool skipped = message->scalars.verdict == replica::Verdict::kSkipped;
    if (!skipped && log.bytes.size() != range.elements * sizeof(float))
      return fail(ErrorCode::kStoreCorrupt, "a log record has a wrong length",
                  fmt::format("shard {} step {}", shard_id, next), std::to_string(range.elements * sizeof(float)),
                  std::to_string(log.bytes.size()));
    std::vector<const float*> pieces(range.pieces.size(), nullptr);
    if (!skipped) pieces = replica::contiguous_pieces(range, reinterpret_cast<const float*>(log.bytes.data()));
    GRADTAP_TRY(shard.apply(message->scalars, replica::GradientView{pieces}));
  }
  if (step > *full) {
    digest = check_digest(source, plan, shard, step, true);
    if (!digest) return std::unexpected(digest.error());
  }
  return RebuiltShard{std::move(shard), **digest};
}

Result<replica::Shard> rebuild_shard(const ShardSource& source, const JobPlan& plan, ShardId shard, StepNumber step) {
  auto rebuilt = rebuild_with_digest(source, plan, shard, step);
  if (!rebuilt) return std::unexpected(rebuilt.error());
  return std::move(rebuilt->shard);
}

Result<replica::Shard> rebuild_shard(const storage::ShardStore& store, const JobPlan& plan, ShardId shard,
                                     StepNumber step) {
  // The source lives no longer than the call: it need not own the store.
  const StoreSource source(std::shared_ptr<const storage::ShardStore>(std::shared_ptr<void>(), &store), plan.job,
                           plan.lineage);
  return rebuild_shard(source, plan, shard, step);
}

}  // namespace gradtap::recovery
