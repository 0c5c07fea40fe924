#include "apps/commands/points_command.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <thread>

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <unistd.h>

#include "apps/commands/commands.h"
#include "apps/commands/meminfo.h"
#include "apps/commands/output_file.h"
#include "apps/commands/point_reader.h"
#include "common/answer_fields.h"

namespace gradtap::commands {

namespace {

using namespace answer_fields;
using nlohmann::json;

constexpr std::size_t kDigestShown = 16;

std::string dump(const json& document) {
  return document.dump(1, ' ', false, json::error_handler_t::replace);
}

std::string time_of(std::uint64_t wall_ms) {
  if (wall_ms == 0 || wall_ms / 1000 > 253'402'300'799) return "-";
  return fmt::format("{:%Y-%m-%d %H:%M:%S}", fmt::gmtime(static_cast<std::time_t>(wall_ms / 1000)));
}

// 1: the answer is no; 2: it could not be asked.
int refused(const Error& error) {
  std::fputs((error.text() + "\n").c_str(), stderr);
  switch (error.code) {
    case ErrorCode::kPointNone:
    case ErrorCode::kObjectMissing:
    case ErrorCode::kObjectCorrupt:
    case ErrorCode::kObjectForeign:
    case ErrorCode::kDigestMismatch:
    case ErrorCode::kStoreCorrupt:
    case ErrorCode::kStoreFormat:
    case ErrorCode::kStepUnavailable:
    case ErrorCode::kStateIncomplete:
      return 1;
    default:
      return 2;
  }
}

void print_passed_over(const json& passed_over) {
  for (const json& passed : passed_over) {
    if (!passed.is_object()) continue;
    if (passed.contains("step"))
      fmt::print(stderr, "not taken: lineage {} step {}: {}\n", number(passed, "lineage"), number(passed, "step"),
                 text(passed, "reason"));
    else
      fmt::print(stderr, "not taken: lineage {}: {}\n", number(passed, "lineage"), text(passed, "reason"));
  }
}

struct Asked {
  std::unique_ptr<PointReader> reader;
  PointQuestion question;
};

Result<Asked> ask(const PointOptions& options) {
  auto reader = PointReader::open(options.source, options.access);
  if (!reader) return std::unexpected(reader.error());
  auto job = (*reader)->job_or_only(options.job);
  if (!job) return std::unexpected(job.error());
  return Asked{std::move(*reader), {std::move(*job), options.lineage, options.step}};
}

// The points to try, newest first: the one that was asked for, or what a restore takes.
Result<std::vector<std::pair<std::uint64_t, std::uint64_t>>> wanted(const Asked& asked, bool all) {
  std::vector<std::pair<std::uint64_t, std::uint64_t>> names;
  const PointQuestion& question = asked.question;
  if (question.lineage && question.step) {
    names.emplace_back(*question.lineage, *question.step);
    return names;
  }
  const auto listing = asked.reader->points(question);
  if (!listing) return std::unexpected(listing.error());
  if (!all) print_passed_over(list(*listing, "passed_over"));
  for (const json& entry : list(*listing, all || question.step ? "points" : "restorable")) {
    if (!entry.is_object()) continue;
    const std::uint64_t lineage = number(entry, "lineage");
    const std::uint64_t step = number(entry, "step");
    if ((!question.lineage || !all || lineage == *question.lineage) && (!question.step || step == *question.step))
      names.emplace_back(lineage, step);
  }
  if (question.step && !all && names.size() > 1) names.resize(1);
  if (names.empty())
    return fail(ErrorCode::kPointNone, "there is no recovery point", "job " + question.job,
                question.step ? fmt::format("a point of step {}", *question.step) : "a point", {},
                "see gradtap points list");
  return names;
}

void print_report(const json& report) {
  const json findings = list(report, "findings");
  for (const json& finding : findings) {
    if (!finding.is_object()) continue;
    fmt::print("  {} {}: {}", text(finding, "name"), text(finding, "key"), text(finding, "what"));
    if (const auto it = finding.find("offset"); it != finding.end() && it->is_number_unsigned())
      fmt::print(" at offset {}", it->get<std::uint64_t>());
    if (!text(finding, "expected").empty()) fmt::print(", expected {}", text(finding, "expected"));
    if (!text(finding, "actual").empty()) fmt::print(", found {}", text(finding, "actual"));
    fmt::print("\n");
  }
  fmt::print("lineage {} step {}: {}: {} objects, {} bytes read, {} findings\n", number(report, "lineage"),
             number(report, "step"), report.value("whole", false) ? "whole" : "DAMAGED", number(report, "objects"),
             number(report, "bytes"), findings.size());
}

int write_taken(const PointOptions& options, const std::string& file, const char* what,
                const std::function<Result<Taken>(const Asked&, const PointOutput&)>& read) {
  const auto asked = ask(options);
  if (!asked) return refused(asked.error());
  auto out = OutputFile::create(file);
  if (!out) return unusable(out.error());
  const auto taken =
      read(*asked, {[&](std::string_view part) { return out->write(part); }, [&] { return out->rewind(); }});
  if (!out->good()) return unusable(out->error());
  if (!taken) return refused(taken.error());
  const std::uint64_t bytes = out->bytes();
  if (const Status done = out->commit(); !done) return unusable(done.error());
  print_passed_over(list(*taken, "passed_over"));
  if (options.json) {
    json document = *taken;
    document["file"] = file;
    document["bytes"] = bytes;
    fmt::print("{}\n", dump(document));
  } else {
    fmt::print("{} of job {} lineage {} step {}: {} bytes in {}\n", what, text(*taken, "job"),
               number(*taken, "lineage"), number(*taken, "step"), bytes, file);
  }
  return 0;
}

}  // namespace

int points_list(const PointOptions& options) {
  const auto asked = ask(options);
  if (!asked) return refused(asked.error());
  const auto listing = asked->reader->points(asked->question);
  if (!listing) return refused(listing.error());
  const json restorable = list(*listing, "restorable");
  if (options.json) {
    fmt::print("{}\n", dump(*listing));
    return restorable.empty() ? 1 : 0;
  }
  fmt::print("{:>7} {:>10} {:>5}  {:<19}  {:<5}  {:<16}  {}\n", "lineage", "step", "world", "created (UTC)", "valid",
             "root", "note");
  for (const json& point : list(*listing, "points")) {
    if (!point.is_object()) continue;
    std::string note = text(point, "reason");
    if (note.empty() && point.value("superseded", false)) note = "of a superseded lineage";
    fmt::print("{:>7} {:>10} {:>5}  {:<19}  {:<5}  {:<16}  {}\n", number(point, "lineage"), number(point, "step"),
               number(point, "world"), time_of(number(point, "wall_ms")), point.value("valid", false) ? "yes" : "NO",
               text(point, "root").substr(0, kDigestShown), note);
  }
  std::fflush(stdout);
  print_passed_over(list(*listing, "passed_over"));
  if (restorable.empty()) {
    fmt::print("verdict: NO VALID POINT: a restore of job {} would start from nothing\n", asked->question.job);
    return 1;
  }
  fmt::print("verdict: a restore of job {} takes lineage {} step {}\n", asked->question.job,
             number(restorable[0], "lineage"), number(restorable[0], "step"));
  return 0;
}

int points_show(const PointOptions& options) {
  const auto asked = ask(options);
  if (!asked) return refused(asked.error());
  const auto names = wanted(*asked, false);
  if (!names) return refused(names.error());
  const auto point = asked->reader->point(asked->question.job, names->front().first, names->front().second);
  if (!point) return refused(point.error());
  if (options.json) {
    fmt::print("{}\n", dump(*point));
    return 0;
  }
  fmt::print("job {}  lineage {}  step {}  world {}\n", text(*point, "job"), number(*point, "lineage"),
             number(*point, "step"), number(*point, "world"));
  if (const auto parent = point->find("parent"); parent != point->end() && parent->is_object())
    fmt::print("  restored from lineage {} step {}\n", number(*parent, "lineage"), number(*parent, "step"));
  fmt::print("  created {} UTC by {} ({})\n", time_of(number(*point, "wall_ms")), text(*point, "publisher"),
             text(*point, "software"));
  fmt::print("  training {}  verified {}  durable {}  published before {}\n", number(*point, "training"),
             number(*point, "verified"), number(*point, "durable"), number(*point, "published"));
  fmt::print("  optimizer {}  recipe {}  verdict {}  qualified by {}\n", text(*point, "optimizer"),
             text(*point, "recipe"), text(*point, "verdict"), text(*point, "qualified_by"));
  fmt::print("  root    {}\n  record  {}\n", text(*point, "root"), text(*point, "record_digest"));
  const bool layout = point->contains("layout") && (*point)["layout"].is_object();
  fmt::print("  layout of the next step {}\n", layout ? text(*point, "layout_id") : "not known");
  std::uint64_t bytes = 0;
  for (const json& shard : list(*point, "shards")) {
    if (!shard.is_object()) continue;
    std::uint64_t own = shard.contains("base") ? number(shard["base"], "bytes") : 0;
    for (const json& log : list(shard, "logs")) own += number(log, "bytes");
    bytes += own;
    fmt::print("  shard {:>4}  full {:>8}  logs {:>4}  bytes {:>12}  digest {}\n", number(shard, "shard"),
               number(shard, "base_step"), list(shard, "logs").size(), own,
               text(shard, "digest").substr(0, kDigestShown));
  }
  for (const json& rank : list(*point, "ranks"))
    if (rank.is_object())
      fmt::print("  rank {:>5}  side state {}\n", number(rank, "rank"), text(rank, "digest").substr(0, kDigestShown));
  fmt::print("  {} bytes of full versions and logs\n", bytes);
  return 0;
}

int points_verify(const PointOptions& options, bool all) {
  const auto asked = ask(options);
  if (!asked) return refused(asked.error());
  const auto names = wanted(*asked, all);
  if (!names) return refused(names.error());
  const bool progress = !options.json && isatty(STDERR_FILENO) != 0;
  json reports = json::array();
  std::size_t damaged = 0;
  std::optional<std::pair<std::uint64_t, std::uint64_t>> whole;
  for (const auto& [lineage, step] : *names) {
    const auto report =
        asked->reader->verify(asked->question.job, lineage, step, [&](std::uint64_t done, std::uint64_t objects) {
          if (progress) fmt::print(stderr, "\r{} of {} objects ", done, objects);
        });
    if (progress) fmt::print(stderr, "\r");
    if (!report) return refused(report.error());
    if (!options.json) print_report(*report);
    reports.push_back(*report);
    if (report->value("whole", false)) {
      if (!whole) whole.emplace(lineage, step);
      if (!all) break;
    } else {
      ++damaged;
      if (asked->question.step) break;
    }
  }
  if (options.json) {
    json document = {{"job", asked->question.job}, {"reports", std::move(reports)}, {"newest_whole", nullptr}};
    if (whole) document["newest_whole"] = {{"lineage", whole->first}, {"step", whole->second}};
    fmt::print("{}\n", dump(document));
  } else if (damaged == 0) {
    fmt::print("verdict: whole: every byte read back, every shard rebuilt\n");
  } else if (whole) {
    fmt::print("verdict: DAMAGED: {} point(s); the newest whole one is lineage {} step {}\n", damaged, whole->first,
               whole->second);
  } else {
    fmt::print("verdict: DAMAGED: no point that was read is whole\n");
  }
  return damaged == 0 ? 0 : 1;
}

int points_side(const PointOptions& options, std::uint32_t rank, const std::string& file) {
  return write_taken(options, file, "side state", [&](const Asked& asked, const PointOutput& out) {
    return asked.reader->side(asked.question, rank, out);
  });
}

int export_point(const PointOptions& options, const ExportOptions& wanted) {
  recovery::RebuildLimits limits;
  limits.threads =
      wanted.threads > 0 ? wanted.threads : std::clamp(std::thread::hardware_concurrency(), 1U, kExportThreadsDefault);
  limits.kept_bytes = wanted.memory_mb > 0 ? wanted.memory_mb << 20 : meminfo("MemAvailable") * 1024 / 4;
  return write_taken(options, wanted.file, "state", [&](const Asked& asked, const PointOutput& out) {
    return asked.reader->state(asked.question, wanted.optimizer, wanted.format, limits, out);
  });
}

int lineages(const PointOptions& options) {
  const auto asked = ask(options);
  if (!asked) return refused(asked.error());
  const auto answer = asked->reader->lineages(asked->question.job);
  if (!answer) return refused(answer.error());
  if (options.json) {
    fmt::print("{}\n", dump(*answer));
    return 0;
  }
  fmt::print("{:>7}  {:<11} {:<22} {:>9} {:>7} {:>7} {:>10}  {:<19}  {}\n", "lineage", "state", "restored from",
             "base_step", "points", "valid", "newest", "since (UTC)", "run");
  for (const json& lineage : list(*answer, "lineages")) {
    if (!lineage.is_object()) continue;
    std::string parent = "-";
    if (const auto it = lineage.find("parent"); it != lineage.end() && it->is_object())
      parent = fmt::format("lineage {} step {}", number(*it, "lineage"), number(*it, "step"));
    const auto newest = lineage.find("newest_point");
    fmt::print("{:>7}  {:<11} {:<22} {:>9} {:>7} {:>7} {:>10}  {:<19}  {}\n", number(lineage, "lineage"),
               lineage.value("superseded", false) ? "superseded" : "newest", parent, number(lineage, "base_step"),
               number(lineage, "points"), number(lineage, "valid_points"),
               newest != lineage.end() && newest->is_number_unsigned() ? std::to_string(newest->get<std::uint64_t>())
                                                                       : std::string("-"),
               time_of(number(lineage, "wall_ms")), text(lineage, "run_nonce").substr(0, kDigestShown));
    if (const auto problem = lineage.find("problem"); problem != lineage.end() && problem->is_object())
      fmt::print("         its claim cannot be read: {} {}\n", text(*problem, "what"), text(*problem, "where"));
  }
  return 0;
}

}  // namespace gradtap::commands
