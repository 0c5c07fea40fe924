#include "recovery/point_choice.h"

#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "common/sha256.h"
#include "recovery/rebuild_shard.h"
#include "replica/safetensors.h"

namespace gradtap::recovery {

namespace {

constexpr std::size_t kTriesMax = 1000;  // damaged points that one call passes over

// Not the point's fault: another point would not be nearer to the truth.
bool store_failed(ErrorCode code) {
  return code == ErrorCode::kObjectStore || code == ErrorCode::kLimitReached || code == ErrorCode::kOutOfRange;
}

}  // namespace

Result<ChosenPoint> choose_readable(const ObjectStorePtr& store, const PointQuery& query,
                                    const std::function<Status(const OpenPoint&)>& use) {
  storage::PointListOptions options;
  const auto listing = storage::list_points(*store, query.job, options);
  if (!listing) return std::unexpected(listing.error());
  storage::PointWish wish;
  wish.lineage = query.lineage;
  wish.step = query.step;
  for (std::size_t tries = 0; tries < kTriesMax; ++tries) {
    auto choice = storage::choose_point(*listing, wish);
    if (!choice) return std::unexpected(choice.error());
    storage::StoredPoint stored;
    stored.record = *choice->point.record;
    stored.digest = choice->point.record_digest;
    auto point = open_point(store, stored);
    Status done = point ? Status{} : std::unexpected(point.error());
    if (done && use) done = use(*point);
    if (done) return ChosenPoint{std::move(*point), std::move(choice->passed_over)};
    if (query.step || store_failed(done.error().code)) return std::unexpected(done.error());
    wish.refused.push_back({choice->point.lineage, choice->point.step, done.error().text()});
  }
  return fail(ErrorCode::kLimitReached, "too many damaged recovery points", query.job,
              fmt::format("at most {}", kTriesMax), {}, "name a point with --step");
}

Result<ChosenState> prepare_point_state(const ObjectStorePtr& store, const PointQuery& query,
                                        const StateChoice& choice) {
  StateStream stream;
  auto chosen = choose_readable(store, query, [&](const OpenPoint& point) -> Status {
    StateChoice wanted = choice;
    if (choice.format == StateFormat::kTorch) {
      auto side = read_side_state(point);
      if (!side) return std::unexpected(side.error());
      for (schema::SideBlob& blob : side->ranks.front().blobs)
        if (blob.name == "optimizer" || blob.name == "buffers" || blob.name == "frozen")
          wanted.side.emplace(blob.name, std::move(blob.bytes));
    }
    auto prepared = prepare_state(point.source, point.plan, point.record->canonical.step, wanted);
    if (!prepared) return std::unexpected(prepared.error());
    stream = std::move(*prepared);
    return {};
  });
  if (!chosen) return std::unexpected(chosen.error());
  return ChosenState{std::move(*chosen), std::move(stream)};
}

Result<std::string> side_safetensors(const OpenPoint& point, const schema::SideRank& rank) {
  std::vector<replica::TensorDeclaration> tensors;
  nlohmann::json digests = nlohmann::json::object();
  for (const schema::SideBlob& blob : rank.blobs) {
    tensors.push_back({blob.name, "U8", {blob.bytes.size()}});
    digests[blob.name] = to_hex(sha256(ByteSpan(blob.bytes)));
  }
  const schema::PointCanonical& canonical = point.record->canonical;
  std::map<std::string, std::string, std::less<>> metadata;
  metadata["job"] = canonical.job_name;
  metadata["lineage"] = std::to_string(canonical.lineage);
  metadata["step"] = std::to_string(canonical.step);
  metadata["rank"] = std::to_string(rank.rank);
  metadata["message"] = std::string(rank.message.begin(), rank.message.end());
  metadata["digests"] = digests.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  metadata["side_digest"] = to_hex(schema::side_digest(rank));
  std::string out;
  GRADTAP_TRY(replica::write_safetensors(
      tensors, metadata,
      [&](std::size_t index, const replica::ByteSink& sink) { return sink(ByteSpan(rank.blobs[index].bytes)); },
      [&](ByteSpan part) -> Status {
        out.append(reinterpret_cast<const char*>(part.data()), part.size());
        return {};
      }));
  return out;
}

Result<ChosenSide> read_point_side(const ObjectStorePtr& store, const PointQuery& query, std::uint32_t rank) {
  std::string bytes;
  auto chosen = choose_readable(store, query, [&](const OpenPoint& point) -> Status {
    if (rank >= point.record->canonical.world)
      return fail(ErrorCode::kOutOfRange, "the job has no such rank", "rank",
                  fmt::format("below {}", point.record->canonical.world), std::to_string(rank));
    const auto side = read_side_state(point);
    if (!side) return std::unexpected(side.error());
    auto file = side_safetensors(point, side->ranks[rank]);
    if (!file) return std::unexpected(file.error());
    bytes = std::move(*file);
    return {};
  });
  if (!chosen) return std::unexpected(chosen.error());
  return ChosenSide{std::move(*chosen), std::move(bytes)};
}

Result<storage::VerifyReport> verify_whole_point(const ObjectStorePtr& store, std::string_view job, LineageId lineage,
                                                 StepNumber step, const storage::VerifyOptions& options) {
  auto report = storage::verify_point(*store, job, lineage, step, options);
  if (!report || !report->whole()) return report;
  const auto note = [&](const Error& error) {
    storage::Finding finding;
    finding.code = error.code;
    finding.key = storage::point_key(job, lineage, step);
    finding.what = error.where.empty() ? error.what : error.what + " at " + error.where;
    finding.expected = error.expected;
    finding.actual = error.actual;
    report->findings.push_back(std::move(finding));
  };
  const auto point = open_point(store, job, lineage, step);
  if (!point) {
    note(point.error());
    return report;
  }
  if (const auto side = read_side_state(*point); !side) note(side.error());
  for (const replica::ShardRange& range : point->plan->shards.shards())
    if (const auto shard = rebuild_shard(*point->source, *point->plan, range.id, step); !shard) note(shard.error());
  return report;
}

}  // namespace gradtap::recovery
