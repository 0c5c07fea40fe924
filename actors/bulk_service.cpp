#include "actors/bulk_service.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "actors/side_batch.h"
#include "common/number_text.h"
#include "recovery/full_version.h"
#include "storage/key.h"

namespace gradtap::actors {

namespace {

using link::BulkKind;
using link::BulkRequest;
using link::ChunkSource;
using link::MemorySource;
using Source = Result<std::unique_ptr<ChunkSource>>;

constexpr std::chrono::milliseconds kFeedDeadline{5000};
constexpr std::size_t kScanBytesMax = std::size_t{512} << 20;

std::unexpected<Error> unavailable(const BulkRequest& request) {
  return fail(ErrorCode::kStepUnavailable, "this node does not have it",
              fmt::format("lineage {} shard {} step {}", request.lineage, request.shard, request.step));
}

// Bytes in memory, and what of the node's memory they take until they are sent.
class LeasedSource final : public ChunkSource {
 public:
  LeasedSource(MemoryLease lease, std::vector<std::uint8_t> bytes, std::string meta, std::size_t chunk_bytes)
      : lease_(std::move(lease)), bytes_(std::move(bytes), std::move(meta), chunk_bytes) {}
  [[nodiscard]] std::uint64_t chunks() const override { return bytes_.chunks(); }
  [[nodiscard]] Result<std::vector<std::uint8_t>> chunk(std::uint64_t index) override { return bytes_.chunk(index); }
  [[nodiscard]] std::string meta() const override { return bytes_.meta(); }
  [[nodiscard]] std::string identity() const override { return bytes_.identity(); }

 private:
  const MemoryLease lease_;
  MemorySource bytes_;
};

Source memory(const BulkServiceOptions& options, MemoryLease lease, std::vector<std::uint8_t> bytes,
              std::string meta = {}) {
  return std::make_unique<LeasedSource>(std::move(lease), std::move(bytes), std::move(meta), options.chunk_bytes);
}

Result<MemoryLease> lease_for(const BulkServiceOptions& options, std::uint64_t bytes, std::string_view what) {
  return options.memory->lease(MemoryAccount::kPeers, bytes, what);
}

Source gradient(const BulkServiceOptions& options, const BulkRequest& request) {
  // The mark says whether a log is one: a chunk without it may be half a commit.
  const auto digest = options.store->state_digest(request.job, request.lineage, request.shard, request.step);
  if (digest) {
    const auto bytes = options.store->log_bytes(request.job, request.lineage, request.shard, request.step);
    if (bytes) {
      GRADTAP_LET(lease, lease_for(options, *bytes, "a gradient that a peer asks for"));
      auto log = options.store->read_log(request.job, request.lineage, request.shard, request.step);
      if (log) return memory(options, std::move(lease), std::move(*log), to_hex(*digest));
    }
  }
  const std::uint64_t kept_bytes = options.retention->gradient_bytes(request.lineage, request.shard);
  if (kept_bytes == 0) return unavailable(request);
  GRADTAP_LET(lease, lease_for(options, kept_bytes, "a gradient that a peer asks for"));
  if (auto kept = options.retention->gradient(request.lineage, request.shard, request.step))
    return memory(options, std::move(lease), std::move(*kept));
  return unavailable(request);
}

std::string version_meta(StepNumber step, const Sha256& digest, const nlohmann::json& kinds) {
  return nlohmann::json{{"step", step}, {"digest", to_hex(digest)}, {"kinds", kinds}}.dump();
}

// The newest full version at or after the step asked for (request.argument).
Source full_version(const BulkServiceOptions& options, const BulkRequest& request) {
  nlohmann::json list = nlohmann::json::array();
  std::vector<std::uint8_t> bytes;
  const auto steps = options.store->full_steps(request.job, request.lineage, request.shard);
  if (steps && !steps->empty() && steps->back() >= request.argument) {
    const StepNumber step = steps->back();
    const auto parts = options.store->full_parts(request.job, request.lineage, request.shard, step);
    if (!parts) return std::unexpected(parts.error());
    const auto digest = options.store->state_digest(request.job, request.lineage, request.shard, step);
    if (!digest) return std::unexpected(digest.error());
    std::uint64_t whole = 0;
    std::uint64_t largest = 0;
    for (const storage::FullPartInfo& part : *parts) {
      whole += part.bytes;
      largest = std::max(largest, part.bytes);
    }
    GRADTAP_LET(lease, lease_for(options, whole, "a full version that a peer asks for"));
    const auto reading = lease_for(options, largest, "a part of a full version");
    if (!reading) return std::unexpected(reading.error());
    bytes.reserve(whole);
    for (const storage::FullPartInfo& part : *parts) {
      const auto read = options.store->read_full(request.job, request.lineage, request.shard, step, part.kind);
      if (!read) return std::unexpected(read.error());
      list.push_back({part.kind, read->size()});
      bytes.insert(bytes.end(), read->begin(), read->end());
    }
    return memory(options, std::move(lease), std::move(bytes), version_meta(step, *digest, list));
  }
  if (const HeldVersion held = options.baseline->get(request.lineage, request.shard);
      (held.full || held.shard) && held.step >= request.argument) {
    std::uint64_t copied = 0;
    if (held.shard)
      for (std::size_t kind = 0; kind < held.shard->kind_count(); ++kind) copied += held.shard->full_kind(kind).size();
    const auto copying = lease_for(options, copied, "a copy of the baseline that a peer asks for");
    if (!copying) return std::unexpected(copying.error());
    const auto full = held.full ? held.full : std::make_shared<const recovery::FullVersion>(*held.shard);
    std::uint64_t whole = 0;
    for (const storage::FullPart& part : full->parts())
      for (const ByteSpan& span : part.bytes) whole += span.size();
    GRADTAP_LET(lease, lease_for(options, whole, "the baseline that a peer asks for"));
    bytes.reserve(whole);
    for (const storage::FullPart& part : full->parts()) {
      const std::size_t before = bytes.size();
      for (const ByteSpan& span : part.bytes) bytes.insert(bytes.end(), span.begin(), span.end());
      list.push_back({part.kind, bytes.size() - before});
    }
    return memory(options, std::move(lease), std::move(bytes), version_meta(held.step, held.digest, list));
  }
  if (options.want_full) options.want_full(request.lineage, request.shard, request.argument);
  return unavailable(request);
}

// Everything of the newest launched lineage that a member may lack: its record first, steps after request.step only.
Source side_scan(const BulkServiceOptions& options, const BulkRequest& request) {
  const auto lineages = options.store->lineages(request.job);
  if (!lineages) return std::unexpected(lineages.error());
  std::vector<storage::SideEntry> entries;
  std::size_t total = 0;
  GRADTAP_LET(lease, lease_for(options, 0, "side entries that a peer asks for"));
  bool room = true;
  const auto take = [&](std::string_view key, ByteSpan bytes) {
    const auto parsed = storage::parse_side_key(key);
    if (!parsed) return true;
    if (parsed->kind == storage::SideKind::kStepMessage && parsed->step <= request.step) return true;
    total += bytes.size();
    // Once as an entry, once in the batch.
    room = room && lease.grow(2 * (bytes.size() + key.size()));
    if (total > kScanBytesMax || !room) return false;
    entries.push_back({std::string(key), {bytes.begin(), bytes.end()}});
    return true;
  };
  for (auto record = lineages->rbegin(); record != lineages->rend(); ++record) {
    if (record->recipe_id.empty()) continue;
    const LineageId lineage = record->lineage;
    GRADTAP_TRY(options.store->scan_side(storage::side_key(storage::SideKind::kLineage, request.job, lineage), take));
    for (const storage::SideKind kind :
         {storage::SideKind::kAttach, storage::SideKind::kLayout, storage::SideKind::kBlob,
          storage::SideKind::kStepMessage, storage::SideKind::kOther})
      GRADTAP_TRY(options.store->scan_side(storage::side_prefix(kind, request.job, lineage), take));
    break;
  }
  if (total > kScanBytesMax)
    return fail(ErrorCode::kLimitReached, "too many side entries for one answer", "side scan",
                std::to_string(kScanBytesMax), {}, "let the node copy its shards from its co-owner: empty its store");
  if (!room)
    return fail(ErrorCode::kMemoryExhausted, "no memory is left for the side entries that a peer asks for",
                "limits.memory_bytes", fmt::format("{} bytes or more", lease.bytes()), {}, "it asks again");
  return memory(options, std::move(lease), encode_side_batch(entries));
}

Source side_put(const BulkServiceOptions& options, const BulkRequest& request) {
  auto entries = decode_side_batch(request.body);
  if (!entries) return std::unexpected(entries.error());
  auto batch = std::make_shared<SideEntries>();
  batch->entries = std::move(*entries);
  Outcome outcome;
  caf::scoped_actor waiter{*options.system};
  waiter->request(options.feed, kFeedDeadline, side_atom_v, SideEntriesPtr(std::move(batch)))
      .receive([&](const Outcome& got) { outcome = got; },
               [&](const caf::error& error) {
                 outcome = {false,
                            {ErrorCode::kTimeout,
                             "side entries were not stored in time",
                             {},
                             {},
                             options.system->render(error),
                             {}}};
               });
  if (!outcome.ok) return std::unexpected(outcome.error);
  return memory(options, {}, {});
}

Source http(const BulkServiceOptions& options, BulkRequest&& request) {
  // "METHOD path", the session; a path carries no line break (the link's peer is a member, and hostile all the same).
  HttpRequest inner;
  const std::size_t space = request.text.find(' ');
  const std::size_t line = request.text.find('\n');
  if (space == std::string::npos || line == std::string::npos || space > line)
    return fail(ErrorCode::kRequestMalformed, "a forwarded request is not one", "text", "METHOD path, session");
  inner.method = request.text.substr(0, space);
  inner.path = request.text.substr(space + 1, line - space - 1);
  inner.session = request.text.substr(line + 1);
  inner.body.assign(request.body.begin(), request.body.end());
  const HttpAnswer answer = options.side_channel(std::move(inner));
  return memory(options, {}, {answer.body.begin(), answer.body.end()}, std::to_string(answer.status));
}

}  // namespace

link::BulkHandler bulk_service(BulkServiceOptions options) {
  return [options = std::move(options)](const std::string&, BulkRequest&& request) -> Source {
    if (request.job != job_id(options.job_name))
      return fail(ErrorCode::kJobUnknown, "this node does not protect that job", to_hex(request.job));
    switch (request.kind) {
      case BulkKind::kGradient:
        return gradient(options, request);
      case BulkKind::kFullVersion:
        return full_version(options, request);
      case BulkKind::kSideScan:
        return side_scan(options, request);
      case BulkKind::kSidePut:
        return side_put(options, request);
      case BulkKind::kHttp:
        return http(options, std::move(request));
      default:
        break;
    }
    return fail(ErrorCode::kRequestMalformed, "a bulk request of a kind that this node does not answer", "kind", {},
                std::to_string(static_cast<unsigned>(request.kind)), "see that all nodes run the same version");
  };
}

link::BulkRequest forwarded(HttpRequest&& request) {
  BulkRequest out;
  out.kind = BulkKind::kHttp;
  out.text = fmt::format("{} {}\n{}", request.method, request.path, request.session);
  out.body.assign(request.body.begin(), request.body.end());
  return out;
}

HttpAnswer forwarded_answer(const std::string& meta, const std::vector<std::uint8_t>& bytes) {
  const auto status = parse_integer<int>(meta);
  if (!status || *status < 100 || *status > 599)
    return http_error({ErrorCode::kPeerUnreachable, "the home's answer is not one", meta, {}, {}, {}}, 503);
  return {*status, {bytes.begin(), bytes.end()}};
}

}  // namespace gradtap::actors
