#include "apps/commands/point_reader.h"

#include <algorithm>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "apps/commands/node_client.h"
#include "recovery/point_choice.h"
#include "recovery/point_json.h"
#include "storage/directory_store.h"
#include "storage/lineage_registry.h"

namespace gradtap::commands {

namespace {

constexpr unsigned kVerifyTimeoutMs = 3'600'000;  // a node reads a whole point before it answers
constexpr std::size_t kTriesMax = 100;            // damaged points that an export passes over

Result<LineageId> lineage_number(std::uint64_t lineage) {
  if (lineage >= 1 && lineage <= ~LineageId{0}) return static_cast<LineageId>(lineage);
  return fail(ErrorCode::kOutOfRange, "no lineage has this number", "--lineage", "1 to 4294967295",
              std::to_string(lineage));
}

class DirectoryReader final : public PointReader {
 public:
  explicit DirectoryReader(std::shared_ptr<const storage::DirectoryStore> store) : store_(std::move(store)) {}

  Result<std::string> job_or_only(const std::string& name) const override {
    if (!name.empty()) return name;
    const auto jobs = storage::list_jobs(*store_);
    if (!jobs) return std::unexpected(jobs.error());
    if (jobs->size() == 1) return jobs->front();
    return fail(ErrorCode::kJobUnknown, "the store has not exactly one job", store_->describe(), "one job",
                std::to_string(jobs->size()), "name it with --job");
  }

  Result<nlohmann::json> points(const PointQuestion& question) const override {
    const auto listing = storage::list_points(*store_, question.job);
    if (!listing) return std::unexpected(listing.error());
    std::optional<LineageId> lineage;
    if (question.lineage) {
      const auto number = lineage_number(*question.lineage);
      if (!number) return std::unexpected(number.error());
      lineage = *number;
    }
    return recovery::points_json(*listing, lineage);
  }

  Result<nlohmann::json> point(const std::string& job, std::uint64_t lineage, std::uint64_t step) const override {
    const auto number = lineage_number(lineage);
    if (!number) return std::unexpected(number.error());
    const auto point = storage::read_point(*store_, job, *number, step);
    if (!point) return std::unexpected(point.error());
    return recovery::point_json(point->record, point->digest);
  }

  Result<nlohmann::json> lineages(const std::string& job) const override {
    const auto listing = storage::list_points(*store_, job);
    if (!listing) return std::unexpected(listing.error());
    return recovery::lineages_json(*listing);
  }

  Result<nlohmann::json> verify(const std::string& job, std::uint64_t lineage, std::uint64_t step,
                                const std::function<void(std::uint64_t, std::uint64_t)>& progress) const override {
    const auto number = lineage_number(lineage);
    if (!number) return std::unexpected(number.error());
    storage::VerifyOptions options;
    options.progress = progress;
    const auto report = recovery::verify_whole_point(store_, job, *number, step, options);
    if (!report) return std::unexpected(report.error());
    return recovery::verify_json(*report);
  }

  Result<Taken> state(const PointQuestion& question, bool optimizer, const std::string& format,
                      const recovery::RebuildLimits& limits, const PointOutput& out) const override {
    const auto query = query_of(question);
    if (!query) return std::unexpected(query.error());
    const auto known = recovery::state_format_of(format);
    if (!known) return std::unexpected(known.error());
    auto state = recovery::prepare_point_state(store_, *query, {optimizer, *known, {}, limits});
    if (!state) return std::unexpected(state.error());
    if (!state->stream([&](const char* data, std::size_t count) { return out.write({data, count}); }))
      return fail(ErrorCode::kObjectStore, "the export ended early", store_->describe(), {}, {},
                  "the lines above say why");
    return taken(question.job, state->chosen);
  }

  Result<Taken> side(const PointQuestion& question, std::uint32_t rank, const PointOutput& out) const override {
    const auto query = query_of(question);
    if (!query) return std::unexpected(query.error());
    const auto side = recovery::read_point_side(store_, *query, rank);
    if (!side) return std::unexpected(side.error());
    if (!out.write(side->bytes)) return fail(ErrorCode::kFileUnwritable, "the side state could not be written");
    return taken(question.job, side->chosen);
  }

 private:
  static Result<recovery::PointQuery> query_of(const PointQuestion& question) {
    recovery::PointQuery query{question.job, {}, question.step};
    if (question.lineage) {
      const auto number = lineage_number(*question.lineage);
      if (!number) return std::unexpected(number.error());
      query.lineage = *number;
    }
    return query;
  }

  static Taken taken(const std::string& job, const recovery::ChosenPoint& chosen) {
    return {{"job", job},
            {"lineage", chosen.point.record->canonical.lineage},
            {"step", chosen.point.record->canonical.step},
            {"passed_over", recovery::passed_over_json(chosen.passed_over)}};
  }

  std::shared_ptr<const storage::DirectoryStore> store_;
};

class NodeReader final : public PointReader {
 public:
  NodeReader(const std::string& endpoint, const NodeAccess& access)
      : client_(endpoint, access, 30'000), patient_(endpoint, access, kVerifyTimeoutMs) {}

  Result<std::string> job_or_only(const std::string& name) const override { return client_.job_or_only(name); }

  Result<nlohmann::json> points(const PointQuestion& question) const override {
    return client_.get(question.lineage ? fmt::format("/v1/jobs/{}/points?lineage={}", question.job, *question.lineage)
                                        : fmt::format("/v1/jobs/{}/points", question.job));
  }

  Result<nlohmann::json> point(const std::string& job, std::uint64_t lineage, std::uint64_t step) const override {
    return client_.get(fmt::format("/v1/jobs/{}/points/{}/{}", job, lineage, step));
  }

  Result<nlohmann::json> lineages(const std::string& job) const override {
    return client_.get(fmt::format("/v1/jobs/{}/lineages", job));
  }

  Result<nlohmann::json> verify(const std::string& job, std::uint64_t lineage, std::uint64_t step,
                                const std::function<void(std::uint64_t, std::uint64_t)>&) const override {
    return patient_.get(fmt::format("/v1/jobs/{}/points/{}/{}/verify", job, lineage, step));
  }

  Result<Taken> state(const PointQuestion& question, bool optimizer, const std::string& format,
                      const recovery::RebuildLimits&, const PointOutput& out) const override {
    return download(question, fmt::format("state?optimizer={}&format={}", optimizer ? 1 : 0, format), out);
  }

  Result<Taken> side(const PointQuestion& question, std::uint32_t rank, const PointOutput& out) const override {
    return download(question, fmt::format("side?rank={}", rank), out);
  }

 private:
  struct Name {
    std::uint64_t lineage = 0;
    std::uint64_t step = 0;
  };

  static std::optional<Name> name_of(const nlohmann::json& entry) {
    if (!entry.is_object() || !entry.contains("lineage") || !entry["lineage"].is_number_unsigned() ||
        !entry.contains("step") || !entry["step"].is_number_unsigned())
      return std::nullopt;
    return Name{entry["lineage"].get<std::uint64_t>(), entry["step"].get<std::uint64_t>()};
  }

  // What to try, in order; what the node passes over by itself goes to `passed_over`.
  Result<std::vector<Name>> candidates(const PointQuestion& question, nlohmann::json& passed_over) const {
    if (question.lineage && question.step) return std::vector<Name>{{*question.lineage, *question.step}};
    const auto listing = points(question);
    if (!listing) return std::unexpected(listing.error());
    std::vector<Name> names;
    for (const auto& entry : listing->value("restorable", nlohmann::json::array()))
      if (const auto name = name_of(entry); name && (!question.step || name->step == *question.step))
        names.push_back(*name);
    passed_over = listing->value("passed_over", nlohmann::json::array());
    if (question.step && names.size() > 1) names.resize(1);
    if (!names.empty()) return names;
    return fail(ErrorCode::kPointNone, "there is no valid recovery point", "job " + question.job,
                question.step ? fmt::format("a valid point of step {}", *question.step) : "a valid point",
                passed_over.dump(), "see gradtap points list");
  }

  Result<Taken> download(const PointQuestion& question, const std::string& what, const PointOutput& out) const {
    nlohmann::json passed_over = nlohmann::json::array();
    const auto names = candidates(question, passed_over);
    if (!names) return std::unexpected(names.error());
    std::optional<Error> last;
    for (std::size_t i = 0; i < std::min(names->size(), kTriesMax); ++i) {
      const Name& name = (*names)[i];
      bool begun = false;
      const auto done =
          client_.download(fmt::format("/v1/jobs/{}/points/{}/{}/{}", question.job, name.lineage, name.step, what),
                           [&](std::string_view part) {
                             begun = true;
                             return out.write(part);
                           });
      if (done)
        return Taken{{"job", question.job},
                     {"lineage", name.lineage},
                     {"step", name.step},
                     {"passed_over", std::move(passed_over)}};
      last = done.error();
      // Only what the node says of a point is a reason to take an older one.
      if (begun || question.step || !is_damage(last->code)) break;
      passed_over.push_back({{"lineage", name.lineage}, {"step", name.step}, {"reason", last->text()}});
      if (!out.restart()) break;
    }
    return std::unexpected(*last);
  }

  static bool is_damage(ErrorCode code) {
    switch (code) {
      case ErrorCode::kPeerUnreachable:
      case ErrorCode::kNodeBusy:
      case ErrorCode::kTimeout:
      case ErrorCode::kObjectStore:
      case ErrorCode::kJobUnknown:
      case ErrorCode::kOutOfRange:
      case ErrorCode::kLimitReached:
      case ErrorCode::kRequestMalformed:
      case ErrorCode::kUnauthorized:
      case ErrorCode::kForbidden:
      case ErrorCode::kFileUnreadable:
      case ErrorCode::kBadText:
        return false;
      default:
        return true;
    }
  }

  NodeClient client_;
  NodeClient patient_;
};

}  // namespace

Result<std::unique_ptr<PointReader>> PointReader::open(const std::string& source, const NodeAccess& access) {
  if (source.find("://") != std::string::npos) return std::make_unique<NodeReader>(source, access);
  storage::DirectoryStoreOptions options;
  options.path = source;
  options.read_only = true;
  auto store = storage::DirectoryStore::open(options);
  if (!store) return std::unexpected(store.error());
  return std::make_unique<DirectoryReader>(std::shared_ptr<const storage::DirectoryStore>(std::move(*store)));
}

}  // namespace gradtap::commands
