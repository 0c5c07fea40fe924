#include "schema/record_codec.h"

#include <schema/record.capnp.h>

#include "schema/sealed_message.h"

namespace gradtap::schema {

using namespace sealed_message;

std::vector<std::uint8_t> encode(const LineageRecord& record) {
  capnp::MallocMessageBuilder message;
  auto root = message.initRoot<wire::Lineage>();
  root.setJob(data(record.job));
  root.setJobName(text(record.job_name));
  root.setLineage(record.lineage);
  root.setRunNonce(text(record.run_nonce));
  root.setParentLineage(record.parent_lineage);
  root.setParentStep(record.parent_step);
  root.setBaseStep(record.base_step);
  root.setWorld(record.world);
  root.setGroup(record.group);
  root.setSequence(record.sequence);
  root.setSchemaJson(data(record.schema_json));
  root.setOptimizerClass(text(record.optimizer_class));
  fill(root.initKinds(static_cast<unsigned>(record.kinds.size())), record.kinds);
  root.setRecipeId(text(record.recipe_id));
  fill(root.initTransforms(static_cast<unsigned>(record.transforms.size())), record.transforms);
  root.setShardElements(record.shard_elements);
  root.setShardCount(record.shard_count);
  fill(root.initEndpoints(static_cast<unsigned>(record.endpoints.size())), record.endpoints);
  root.setCreatedWallMs(record.created_wall_ms);
  root.setLayoutId(data(record.layout_id));
  return sealed(RecordType::kLineage, message);
}

std::vector<std::uint8_t> encode(const StepRecord& record) {
  capnp::MallocMessageBuilder message;
  auto root = message.initRoot<wire::Step>();
  root.setLineage(record.lineage);
  root.setStep(record.step);
  root.setRank(record.rank);
  root.setSeq(record.seq);
  root.setLayoutId(data(record.layout_id));
  root.setIntervalFrom(record.interval_from);
  root.setIntervalTo(record.interval_to);
  root.setVerdict(static_cast<wire::Verdict>(record.verdict));
  root.setJson(data(record.json));
  return sealed(RecordType::kStep, message);
}

std::vector<std::uint8_t> encode(const MarkRecord& record) {
  capnp::MallocMessageBuilder message;
  auto root = message.initRoot<wire::Mark>();
  root.setJob(data(record.job));
  root.setLineage(record.lineage);
  root.setShard(record.shard);
  root.setVersion(record.version);
  root.setFull(record.full);
  root.setLogFrom(record.log_from);
  root.setLogTo(record.log_to);
  root.setSchemaId(data(record.schema_id));
  root.setEpoch(record.epoch);
  root.setStateDigest(data(record.state_digest));
  return sealed(RecordType::kMark, message);
}

Result<LineageRecord> decode_lineage(ByteSpan bytes) {
  return decoded<wire::Lineage, LineageRecord>(
      RecordType::kLineage, bytes, kRecordBytesMax,
      [](wire::Lineage::Reader root, LineageRecord& record) -> std::string_view {
        if (!copy_exact(root.getJob(), record.job)) return "job";
        record.job_name = str(root.getJobName());
        record.lineage = root.getLineage();
        if (record.lineage == 0) return "lineage";
        record.run_nonce = str(root.getRunNonce());
        record.parent_lineage = root.getParentLineage();
        record.parent_step = root.getParentStep();
        record.base_step = root.getBaseStep();
        record.world = root.getWorld();
        record.group = root.getGroup();
        record.sequence = root.getSequence();
        record.schema_json = bytes_of(root.getSchemaJson());
        record.optimizer_class = str(root.getOptimizerClass());
        record.kinds = strings(root.getKinds());
        record.recipe_id = str(root.getRecipeId());
        record.transforms = strings(root.getTransforms());
        record.shard_elements = root.getShardElements();
        record.shard_count = root.getShardCount();
        record.endpoints = strings(root.getEndpoints());
        record.created_wall_ms = root.getCreatedWallMs();
        if (!copy_exact(root.getLayoutId(), record.layout_id)) return "layoutId";
        return {};
      });
}

Result<StepRecord> decode_step(ByteSpan bytes) {
  return decoded<wire::Step, StepRecord>(
      RecordType::kStep, bytes, kRecordBytesMax, [](wire::Step::Reader root, StepRecord& record) -> std::string_view {
        record.lineage = root.getLineage();
        record.step = root.getStep();
        record.rank = root.getRank();
        record.seq = root.getSeq();
        if (!copy_exact(root.getLayoutId(), record.layout_id)) return "layoutId";
        record.interval_from = root.getIntervalFrom();
        record.interval_to = root.getIntervalTo();
        if (record.interval_to < record.interval_from) return "interval";
        if (static_cast<std::uint16_t>(root.getVerdict()) > static_cast<std::uint16_t>(Verdict::kAmbiguous))
          return "verdict";
        record.verdict = static_cast<Verdict>(root.getVerdict());
        record.json = bytes_of(root.getJson());
        return {};
      });
}

Result<MarkRecord> decode_mark(ByteSpan bytes) {
  return decoded<wire::Mark, MarkRecord>(
      RecordType::kMark, bytes, kRecordBytesMax, [](wire::Mark::Reader root, MarkRecord& record) -> std::string_view {
        if (!copy_exact(root.getJob(), record.job)) return "job";
        record.lineage = root.getLineage();
        if (record.lineage == 0) return "lineage";
        record.shard = root.getShard();
        record.version = root.getVersion();
        record.full = root.getFull();
        if (record.full > record.version) return "full";
        record.log_from = root.getLogFrom();
        record.log_to = root.getLogTo();
        if (record.log_to != record.version || record.log_from == 0 || record.log_from - 1 > record.log_to)
          return "log";
        if (!copy_exact(root.getSchemaId(), record.schema_id)) return "schemaId";
        record.epoch = root.getEpoch();
        if (!copy_exact(root.getStateDigest(), record.state_digest)) return "stateDigest";
        return {};
      });
}

}  // namespace gradtap::schema
