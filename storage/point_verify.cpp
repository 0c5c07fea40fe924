#include "storage/point_verify.h"

#include <algorithm>

#include <fmt/format.h>

#include "storage/lineage_registry.h"

namespace gradtap::storage {
namespace {

Finding finding_of(const Error& error, const std::string& key) {
  return {error.code, key, std::nullopt, error.what, error.expected, error.actual.empty() ? error.where : error.actual};
}

class Verification {
 public:
  Verification(const ObjectStore& store, std::string_view job, LineageId lineage, StepNumber step,
               const VerifyOptions& options)
      : store_(store), job_(job), options_(options) {
    report_.lineage = lineage;
    report_.step = step;
  }

  Result<VerifyReport> run() {
    const std::string key = point_key(job_, report_.lineage, report_.step);
    check_claim();
    const auto bytes = store_.get(key, schema::kPointRecordBytesMax);
    const auto point = read_point(store_, job_, report_.lineage, report_.step);
    if (bytes) report_.bytes += bytes->size();
    if (!point) {
      Finding finding = finding_of(point.error(), key);
      if (bytes && point.error().code != ErrorCode::kObjectForeign) {
        finding.offset = 0;  // one checksum spans the record
        finding.actual += fmt::format("; SHA-256 {} ({} bytes)", to_hex(sha256(*bytes)), bytes->size());
      }
      // A record that cannot be read may still be known to its successor: what it should be.
      GRADTAP_TRY(compare_with_neighbours(key, bytes ? sha256(*bytes) : Sha256{}, finding));
      report_.findings.push_back(std::move(finding));
      return report_;
    }
    report_.record_digest = point->digest;
    Finding other{ErrorCode::kObjectForeign, key, std::nullopt, {}, {}, {}};
    GRADTAP_TRY(compare_with_neighbours(key, point->digest, other));
    if (!other.expected.empty()) report_.findings.push_back(std::move(other));
    check_objects(point->record);
    return report_;
  }

 private:
  void check_claim() {
    const std::string key = lineage_claim_key(job_, report_.lineage);
    const auto claim = read_claim(store_, job_, report_.lineage);
    if (claim) {
      claim_ = *claim;
      return;
    }
    Finding finding = finding_of(claim.error(), key);
    if (const auto bytes = store_.get(key, schema::kClaimBytesMax)) {
      finding.offset = 0;
      finding.actual += fmt::format("; SHA-256 {} ({} bytes)", to_hex(sha256(*bytes)), bytes->size());
    }
    report_.findings.push_back(std::move(finding));
  }

  // Later points and child lineages hold the SHA-256 of this record: two witnesses stored apart from it.
  Status compare_with_neighbours(const std::string& key, const Sha256& actual, Finding& finding) {
    const auto differs = [&](const Sha256& expected, const std::string& witness) {
      if (expected == Sha256{} || expected == actual) return;
      finding.what = finding.what.empty() ? fmt::format("record is not the one that {} names", witness) : finding.what;
      finding.expected = "SHA-256 " + to_hex(expected) + " (" + witness + ")";
      if (finding.actual.empty()) finding.actual = "SHA-256 " + to_hex(actual);
    };
    const auto keys = store_.list(points_prefix(job_, report_.lineage));
    if (!keys) return std::unexpected<Error>(keys.error());
    const auto next = std::upper_bound(keys->begin(), keys->end(), key);
    if (next != keys->end()) {
      const auto parsed = parse_key(*next);
      if (parsed && parsed->kind == KeyKind::kPoint)
        if (const auto later = read_point(store_, job_, parsed->lineage, parsed->step);
            later && later->record.previous_step == report_.step)
          differs(later->record.previous_record, *next);
    }
    const auto lineages = list_lineages(store_, job_);
    if (!lineages) return std::unexpected<Error>(lineages.error());
    for (const LineageEntry& entry : *lineages)
      if (entry.claim && entry.claim->parent_lineage == report_.lineage && entry.claim->parent_step == report_.step)
        differs(entry.claim->parent_record, lineage_claim_key(job_, entry.lineage));
    return {};
  }

  void check_objects(const schema::PointRecord& record) {
    check_against_claim(record);
    const auto objects = objects_of(record);
    for (const PointObject& object : objects) {
      auto findings = verify_object(store_, *object.ref, options_.read_bytes, report_.bytes);
      const bool whole = findings.empty();
      std::move(findings.begin(), findings.end(), std::back_inserter(report_.findings));
      if (whole) check_content(record, object);
      ++report_.objects;
      if (options_.progress) options_.progress(report_.objects, objects.size());
    }
  }

  void check_against_claim(const schema::PointRecord& record) {
    const schema::PointCanonical& own = record.canonical;
    if (!claim_ || (claim_->parent_lineage == own.parent_lineage && claim_->parent_step == own.parent_step &&
                    claim_->parent_record == own.parent_record))
      return;
    report_.findings.push_back(
        {ErrorCode::kObjectForeign, point_key(job_, report_.lineage, report_.step), std::nullopt,
         "record names another parent than the lineage claim",
         fmt::format("lineage {} step {} record {}", claim_->parent_lineage, claim_->parent_step,
                     to_hex(claim_->parent_record)),
         fmt::format("lineage {} step {} record {}", own.parent_lineage, own.parent_step, to_hex(own.parent_record))});
  }

  void wrong(const PointObject& object, ErrorCode code, std::string what, std::string expected, std::string actual) {
    report_.findings.push_back(
        {code, object.ref->key, std::nullopt, std::move(what), std::move(expected), std::move(actual)});
  }

  // The bytes are those that the record names; are they what they should be?
  void check_content(const schema::PointRecord& record, const PointObject& object) {
    if (object.kind == KeyKind::kLog || object.kind == KeyKind::kFull) return;
    const auto loaded = read_object(store_, *object.ref, options_.small_bytes_max);
    if (!loaded) {
      const Error& error = loaded.error();
      return wrong(object, error.code, error.what, error.expected, error.actual);
    }
    if (object.kind == KeyKind::kStep) return check_step(record, object, loaded->payload());
    if (object.kind == KeyKind::kSide) return check_side(record, object, loaded->payload());
    const auto meta = schema::decode_lineage(loaded->payload());
    if (!meta)
      return wrong(object, ErrorCode::kObjectCorrupt, "lineage record does not decode", meta.error().expected,
                   meta.error().text());
    if (meta->job != record.canonical.job || meta->lineage != record.canonical.lineage ||
        meta->world != record.canonical.world)
      wrong(object, ErrorCode::kObjectForeign, "lineage record is another one than the point's",
            fmt::format("lineage {}, {} ranks", record.canonical.lineage, record.canonical.world),
            fmt::format("lineage {}, {} ranks", meta->lineage, meta->world));
  }

  void check_step(const schema::PointRecord& record, const PointObject& object, ByteSpan payload) {
    const auto step = schema::decode_step(payload);
    if (!step)
      return wrong(object, ErrorCode::kObjectCorrupt, "step message does not decode", step.error().expected,
                   step.error().text());
    if (step->lineage != record.canonical.lineage || step->step != object.step || step->rank != 0)
      return wrong(object, ErrorCode::kObjectForeign, "step message is another one than the point's",
                   fmt::format("lineage {} step {} rank 0", record.canonical.lineage, object.step),
                   fmt::format("lineage {} step {} rank {}", step->lineage, step->step, step->rank));
    const Sha256 digest = sha256(step->json);
    if (object.step == record.canonical.step && digest != record.canonical.step_message)
      wrong(object, ErrorCode::kDigestMismatch, "step message differs from the record's digest",
            "SHA-256 " + to_hex(record.canonical.step_message), "SHA-256 " + to_hex(digest));
  }

  void check_side(const schema::PointRecord& record, const PointObject& object, ByteSpan payload) {
    const auto side = schema::decode_side_state(payload);
    if (!side)
      return wrong(object, ErrorCode::kObjectCorrupt, "side state does not decode", side.error().expected,
                   side.error().text());
    if (side->lineage != record.canonical.lineage || side->step != record.canonical.step ||
        side->ranks.size() != record.canonical.ranks.size())
      return wrong(object, ErrorCode::kObjectForeign, "side state is another one than the point's",
                   fmt::format("lineage {} step {}, {} ranks", record.canonical.lineage, record.canonical.step,
                               record.canonical.ranks.size()),
                   fmt::format("lineage {} step {}, {} ranks", side->lineage, side->step, side->ranks.size()));
    for (std::size_t i = 0; i < side->ranks.size(); ++i) {
      const schema::RankDigest& expected = record.canonical.ranks[i];
      const Sha256 digest = schema::side_digest(side->ranks[i]);
      if (side->ranks[i].rank != expected.rank || digest != expected.digest)
        wrong(object, ErrorCode::kDigestMismatch, fmt::format("side state of rank {} differs from the record", i),
              "SHA-256 " + to_hex(expected.digest), "SHA-256 " + to_hex(digest));
    }
  }

  const ObjectStore& store_;
  const std::string job_;
  const VerifyOptions& options_;
  std::optional<schema::LineageClaim> claim_;
  VerifyReport report_;
};

}  // namespace

std::vector<Finding> verify_object(const ObjectStore& store, const schema::ObjectRef& ref, std::uint64_t read_bytes,
                                   std::uint64_t& bytes_read) {
  const auto length = store.length(ref.key);
  if (!length) {
    Finding finding = finding_of(length.error(), ref.key);
    finding.expected = fmt::format("{} bytes, SHA-256 {}", ref.bytes, to_hex(ref.sha256));
    return {std::move(finding)};
  }
  ObjectCheck check(ref);
  for (std::uint64_t offset = 0; offset < *length;) {
    const auto piece = store.read(ref.key, offset, std::min(read_bytes, *length - offset));
    if (!piece || piece->empty()) {
      Finding finding = piece ? Finding{ErrorCode::kObjectCorrupt, ref.key, offset, "object became shorter", {}, {}}
                              : finding_of(piece.error(), ref.key);
      finding.offset = offset;
      finding.expected = fmt::format("{} bytes, SHA-256 {}", ref.bytes, to_hex(ref.sha256));
      return {std::move(finding)};
    }
    check.add(*piece);
    offset += piece->size();
    bytes_read += piece->size();
  }
  return check.finish();
}

Result<VerifyReport> verify_point(const ObjectStore& store, std::string_view job, LineageId lineage, StepNumber step,
                                  const VerifyOptions& options) {
  return Verification(store, job, lineage, step, options).run();
}

}  // namespace gradtap::storage
