#include "schema/point_codec.h"

#include <schema/point.capnp.h>

#include "common/sha256.h"
#include "schema/sealed_message.h"

namespace gradtap::schema {
namespace {

using namespace sealed_message;

Result<std::vector<std::uint8_t>> sealed_within(RecordType type, capnp::MessageBuilder& message, std::size_t bytes_max,
                                                const char* what, const char* remedy) {
  std::vector<std::uint8_t> bytes = sealed(type, message);
  if (bytes.size() > bytes_max)
    return fail(ErrorCode::kLimitReached, fmt::format("{} is too large", what), {},
                fmt::format("at most {} bytes", bytes_max), fmt::format("{} bytes", bytes.size()), remedy);
  return bytes;
}

bool is_zero(const Sha256& digest) {
  return digest == Sha256{};
}

void write(wire::ObjectRef::Builder to, const ObjectRef& from) {
  to.setKey(text(from.key));
  to.setBytes(from.bytes);
  to.setSha256(data(from.sha256));
}

bool read(wire::ObjectRef::Reader from, ObjectRef& to) {
  to.key = str(from.getKey());
  to.bytes = from.getBytes();
  return !to.key.empty() && copy_exact(from.getSha256(), to.sha256);
}

template <class Builder>
void write_steps(Builder list, const std::vector<StepObject>& from) {
  for (unsigned i = 0; i < from.size(); ++i) {
    list[i].setStep(from[i].step);
    write(list[i].initObject(), from[i].object);
  }
}

// Objects of first + 1 .. last, each once and in order.
bool read_steps(capnp::List<wire::StepObject>::Reader from, StepNumber first, StepNumber last,
                std::vector<StepObject>& to) {
  if (from.size() != last - first) return false;
  for (auto entry : from) {
    StepObject object;
    object.step = entry.getStep();
    if (object.step != first + to.size() + 1 || !read(entry.getObject(), object.object)) return false;
    to.push_back(std::move(object));
  }
  return true;
}

void write(wire::PointCanonical::Builder to, const PointCanonical& from) {
  to.setFormat(from.format);
  to.setJob(data(from.job));
  to.setJobName(text(from.job_name));
  to.setLineage(from.lineage);
  to.setParentLineage(from.parent_lineage);
  to.setParentStep(from.parent_step);
  to.setParentRecord(data(from.parent_record));
  to.setStep(from.step);
  to.setStateRoot(data(from.state_root));
  auto shards = to.initShards(static_cast<unsigned>(from.shards.size()));
  for (unsigned i = 0; i < from.shards.size(); ++i) {
    shards[i].setShard(from.shards[i].shard);
    shards[i].setDigest(data(from.shards[i].digest));
  }
  auto ranks = to.initRanks(static_cast<unsigned>(from.ranks.size()));
  for (unsigned i = 0; i < from.ranks.size(); ++i) {
    ranks[i].setRank(from.ranks[i].rank);
    ranks[i].setDigest(data(from.ranks[i].digest));
  }
  to.setSchemaId(data(from.schema_id));
  to.setLayoutId(data(from.layout_id));
  to.setLayoutJson(data(from.layout_json));
  to.setStepMessage(data(from.step_message));
  to.setVerdict(static_cast<wire::Verdict>(from.verdict));
  to.setWorld(from.world);
  to.setRecipeId(text(from.recipe_id));
  to.setOptimizerClass(text(from.optimizer_class));
  to.setQualifiedBy(text(from.qualified_by));
}

std::string_view read(wire::PointCanonical::Reader from, PointCanonical& to) {
  to.format = from.getFormat();
  if (to.format == 0 || to.format > kPointFormat) return "canonical.format";
  if (!copy_exact(from.getJob(), to.job)) return "job";
  to.job_name = str(from.getJobName());
  if (job_id(to.job_name) != to.job) return "jobName";
  to.lineage = from.getLineage();
  if (to.lineage == 0) return "lineage";
  to.parent_lineage = from.getParentLineage();
  if (to.parent_lineage >= to.lineage) return "parentLineage";
  to.parent_step = from.getParentStep();
  if (!copy_exact(from.getParentRecord(), to.parent_record)) return "parentRecord";
  to.step = from.getStep();
  if (!copy_exact(from.getStateRoot(), to.state_root)) return "stateRoot";
  for (auto entry : from.getShards()) {
    ShardDigest shard;
    shard.shard = entry.getShard();
    if (shard.shard != to.shards.size() || !copy_exact(entry.getDigest(), shard.digest)) return "shards";
    to.shards.push_back(shard);
  }
  if (to.shards.empty()) return "shards";
  to.world = from.getWorld();
  for (auto entry : from.getRanks()) {
    RankDigest rank;
    rank.rank = entry.getRank();
    if (rank.rank != to.ranks.size() || !copy_exact(entry.getDigest(), rank.digest)) return "ranks";
    to.ranks.push_back(rank);
  }
  if (to.world == 0 || to.ranks.size() != to.world) return "ranks";
  if (!copy_exact(from.getSchemaId(), to.schema_id)) return "schemaId";
  if (!copy_exact(from.getLayoutId(), to.layout_id)) return "layoutId";
  to.layout_json = bytes_of(from.getLayoutJson());
  if (to.layout_json.empty() != is_zero(to.layout_id)) return "layoutJson";
  if (!copy_exact(from.getStepMessage(), to.step_message)) return "stepMessage";
  if (static_cast<std::uint16_t>(from.getVerdict()) > static_cast<std::uint16_t>(Verdict::kAmbiguous)) return "verdict";
  to.verdict = static_cast<Verdict>(from.getVerdict());
  to.recipe_id = str(from.getRecipeId());
  to.optimizer_class = str(from.getOptimizerClass());
  to.qualified_by = str(from.getQualifiedBy());
  return {};
}

std::string_view read(wire::Point::Reader from, PointRecord& to) {
  if (const std::string_view wrong = read(from.getCanonical(), to.canonical); !wrong.empty()) return wrong;
  StepNumber lowest = to.canonical.step;
  for (auto entry : from.getShards()) {
    ShardObjects shard;
    shard.shard = entry.getShard();
    if (shard.shard != to.shards.size()) return "objects.shard";
    shard.base_step = entry.getBaseStep();
    if (shard.base_step > to.canonical.step) return "objects.baseStep";
    lowest = std::min(lowest, shard.base_step);
    if (!read(entry.getBase(), shard.base)) return "objects.base";
    if (!read_steps(entry.getLogs(), shard.base_step, to.canonical.step, shard.logs)) return "objects.logs";
    to.shards.push_back(std::move(shard));
  }
  if (to.shards.size() != to.canonical.shards.size()) return "objects.shards";
  if (!read_steps(from.getSteps(), lowest, to.canonical.step, to.steps)) return "objects.steps";
  if (!read(from.getSide(), to.side)) return "objects.side";
  if (!read(from.getMeta(), to.meta)) return "objects.meta";
  to.previous_step = from.getPreviousStep();
  if (!copy_exact(from.getPreviousRecord(), to.previous_record)) return "previousRecord";
  if (!is_zero(to.previous_record) && to.previous_step >= to.canonical.step) return "previousStep";
  to.publisher = str(from.getPublisher());
  to.created_wall_ms = from.getCreatedWallMs();
  to.training = from.getTraining();
  to.verified = from.getVerified();
  to.durable = from.getDurable();
  to.published = from.getPublished();
  to.software = str(from.getSoftware());
  return {};
}

}  // namespace

Result<std::vector<std::uint8_t>> encode(const LineageClaim& claim) {
  capnp::MallocMessageBuilder message;
  auto root = message.initRoot<wire::LineageClaim>();
  root.setJob(data(claim.job));
  root.setJobName(text(claim.job_name));
  root.setLineage(claim.lineage);
  root.setRunNonce(text(claim.run_nonce));
  root.setParentLineage(claim.parent_lineage);
  root.setParentStep(claim.parent_step);
  root.setParentRecord(data(claim.parent_record));
  root.setBaseStep(claim.base_step);
  root.setNode(text(claim.node));
  root.setCreatedWallMs(claim.created_wall_ms);
  return sealed_within(RecordType::kLineageClaim, message, kClaimBytesMax, "lineage claim", "use shorter names");
}

Result<std::vector<std::uint8_t>> encode(const PointRecord& record) {
  capnp::MallocMessageBuilder message;
  auto root = message.initRoot<wire::Point>();
  write(root.initCanonical(), record.canonical);
  auto shards = root.initShards(static_cast<unsigned>(record.shards.size()));
  for (unsigned i = 0; i < record.shards.size(); ++i) {
    const ShardObjects& from = record.shards[i];
    shards[i].setShard(from.shard);
    shards[i].setBaseStep(from.base_step);
    write(shards[i].initBase(), from.base);
    write_steps(shards[i].initLogs(static_cast<unsigned>(from.logs.size())), from.logs);
  }
  write_steps(root.initSteps(static_cast<unsigned>(record.steps.size())), record.steps);
  write(root.initSide(), record.side);
  write(root.initMeta(), record.meta);
  root.setPreviousStep(record.previous_step);
  root.setPreviousRecord(data(record.previous_record));
  root.setPublisher(text(record.publisher));
  root.setCreatedWallMs(record.created_wall_ms);
  root.setTraining(record.training);
  root.setVerified(record.verified);
  root.setDurable(record.durable);
  root.setPublished(record.published);
  root.setSoftware(text(record.software));
  return sealed_within(RecordType::kPoint, message, kPointRecordBytesMax, "recovery point record",
                       "lower store.full_every_steps, so that a point needs fewer log objects");
}

Result<std::vector<std::uint8_t>> encode(const SideState& side) {
  capnp::MallocMessageBuilder message;
  auto root = message.initRoot<wire::SideState>();
  root.setLineage(side.lineage);
  root.setStep(side.step);
  auto ranks = root.initRanks(static_cast<unsigned>(side.ranks.size()));
  for (unsigned i = 0; i < side.ranks.size(); ++i) {
    const SideRank& from = side.ranks[i];
    ranks[i].setRank(from.rank);
    ranks[i].setMessage(data(from.message));
    auto blobs = ranks[i].initBlobs(static_cast<unsigned>(from.blobs.size()));
    for (unsigned k = 0; k < from.blobs.size(); ++k) {
      blobs[k].setName(text(from.blobs[k].name));
      blobs[k].setBytes(data(from.blobs[k].bytes));
    }
  }
  return sealed_within(RecordType::kSideState, message, kSideStateBytesMax, "side state of a step",
                       "keep large objects out of the side state");
}

Result<LineageClaim> decode_claim(ByteSpan bytes) {
  return decoded<wire::LineageClaim, LineageClaim>(
      RecordType::kLineageClaim, bytes, kClaimBytesMax,
      [](wire::LineageClaim::Reader root, LineageClaim& claim) -> std::string_view {
        if (!copy_exact(root.getJob(), claim.job)) return "job";
        claim.job_name = str(root.getJobName());
        if (job_id(claim.job_name) != claim.job) return "jobName";
        claim.lineage = root.getLineage();
        if (claim.lineage == 0) return "lineage";
        claim.run_nonce = str(root.getRunNonce());
        claim.parent_lineage = root.getParentLineage();
        if (claim.parent_lineage >= claim.lineage) return "parentLineage";
        claim.parent_step = root.getParentStep();
        if (!copy_exact(root.getParentRecord(), claim.parent_record)) return "parentRecord";
        claim.base_step = root.getBaseStep();
        claim.node = str(root.getNode());
        claim.created_wall_ms = root.getCreatedWallMs();
        return {};
      });
}

Result<PointRecord> decode_point(ByteSpan bytes) {
  return decoded<wire::Point, PointRecord>(
      RecordType::kPoint, bytes, kPointRecordBytesMax,
      [](wire::Point::Reader root, PointRecord& record) -> std::string_view { return read(root, record); });
}

Result<SideState> decode_side_state(ByteSpan bytes) {
  return decoded<wire::SideState, SideState>(RecordType::kSideState, bytes, kSideStateBytesMax,
                                             [](wire::SideState::Reader root, SideState& side) -> std::string_view {
                                               side.lineage = root.getLineage();
                                               if (side.lineage == 0) return "lineage";
                                               side.step = root.getStep();
                                               for (auto entry : root.getRanks()) {
                                                 SideRank rank;
                                                 rank.rank = entry.getRank();
                                                 if (!side.ranks.empty() && rank.rank <= side.ranks.back().rank)
                                                   return "ranks";
                                                 rank.message = bytes_of(entry.getMessage());
                                                 for (auto named : entry.getBlobs()) {
                                                   SideBlob blob{str(named.getName()), bytes_of(named.getBytes())};
                                                   if (!rank.blobs.empty() && blob.name <= rank.blobs.back().name)
                                                     return "blobs";
                                                   rank.blobs.push_back(std::move(blob));
                                                 }
                                                 side.ranks.push_back(std::move(rank));
                                               }
                                               return {};
                                             });
}

Sha256 side_digest(const SideRank& rank) {
  Sha256Stream stream;
  const auto number = [&stream](std::uint64_t value) { stream.add(&value, sizeof value); };  // little-endian hosts only
  constexpr std::string_view kDomain = "gradtap side state 1";
  stream.add(kDomain.data(), kDomain.size());
  number(rank.rank);
  number(rank.message.size());
  stream.add(rank.message.data(), rank.message.size());
  number(rank.blobs.size());
  for (const SideBlob& blob : rank.blobs) {
    number(blob.name.size());
    stream.add(blob.name.data(), blob.name.size());
    number(blob.bytes.size());
    stream.add(blob.bytes.data(), blob.bytes.size());
  }
  return stream.finish();
}

}  // namespace gradtap::schema
