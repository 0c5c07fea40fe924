#include "actors/point_answers.h"

#include <optional>
#include <utility>

#include "common/json_text.h"
#include "common/number_text.h"
#include "recovery/point_json.h"

namespace gradtap::actors {

namespace {

HttpAnswer json_answer(const nlohmann::json& body) {
  return {200, body.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace)};
}

struct PointName {
  LineageId lineage = 0;
  StepNumber step = 0;
};

// points/L/S...
Result<PointName> name_of(const HttpRequest& request, const std::vector<std::string_view>& parts) {
  const auto lineage = parse_integer<LineageId>(parts[1]);
  const auto step = parse_integer<StepNumber>(parts[2]);
  if (!lineage || !step)
    return fail(ErrorCode::kBadNumber, "a lineage or a step is not a number", request.path, "points/LINEAGE/STEP");
  return PointName{*lineage, *step};
}

Result<std::uint64_t> number(const HttpRequest& request, const std::string& key, std::uint64_t absent) {
  const auto it = request.query.find(key);
  if (it == request.query.end()) return absent;
  if (const auto value = parse_integer<std::uint64_t>(it->second)) return *value;
  return fail(ErrorCode::kBadNumber, "a number of the request is not one", request.path + "?" + key,
              "a decimal integer", it->second);
}

constexpr std::size_t kLeaseBodyMax = 4096;

Result<std::string> holder_of(const HttpRequest& request) {
  if (request.body.size() <= kLeaseBodyMax) {
    const auto body = parse_json_text(request.body);
    if (body.is_object())
      if (const auto holder = body.find("holder"); holder != body.end() && holder->is_string())
        return holder->get<std::string>();
  }
  return fail(ErrorCode::kRequestMalformed, "a lease is asked for without saying by whom", request.path,
              R"({"holder": text}, 4096 bytes at most)");
}

HttpAnswer nothing_here(const HttpRequest& request) {
  return http_error({ErrorCode::kRequestMalformed,
                     "there is nothing at this path",
                     request.method + " " + request.path,
                     "points, points/L/S, points/L/S/state, points/L/S/side, points/L/S/verify, points/L/S/lease or "
                     "lineages",
                     {},
                     {}},
                    404);
}

}  // namespace

// One of a bounded number of places; given back when the last holder ends.
class PointAnswers::Turn {
 public:
  Turn(PointAnswers& owner, unsigned& used, MemoryLease memory)
      : owner_(owner), used_(used), memory_(std::move(memory)) {}
  ~Turn() {
    {
      const std::lock_guard lock(owner_.mutex_);
      --used_;
    }
    owner_.free_.notify_all();
  }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;

 private:
  PointAnswers& owner_;
  unsigned& used_;
  const MemoryLease memory_;
};

Result<std::shared_ptr<PointAnswers::Turn>> PointAnswers::take_turn(unsigned& used, unsigned most) {
  GRADTAP_LET(memory, options_.memory->lease(MemoryAccount::kPoints, options_.read_bytes ? options_.read_bytes() : 0,
                                             "a recovery point that is read"));
  std::unique_lock lock(mutex_);
  if (!free_.wait_for(lock, options_.turn_wait, [&] { return used < most; })) {
    ++refused_;
    return fail(ErrorCode::kNodeBusy, "the node reads as many recovery points as it may", options_.job,
                std::to_string(most) + " at once", {}, "try again, or ask another node");
  }
  ++used;
  lock.unlock();
  return std::make_shared<Turn>(*this, used, std::move(memory));
}

std::uint64_t PointAnswers::refused() const {
  const std::lock_guard lock(mutex_);
  return refused_;
}

storage::LeaseTable::Counters PointAnswers::leases() const {
  return options_.leases ? options_.leases->counters() : storage::LeaseTable::Counters{};
}

// POST points/L/S/lease takes one, POST points/L/S/lease/ID renews it, DELETE releases it.
HttpAnswer PointAnswers::lease(const HttpRequest& request, const std::vector<std::string_view>& parts) {
  const bool take = request.method == "POST" && parts.size() == 4;
  const bool renew = request.method == "POST" && parts.size() == 5;
  const bool release = request.method == "DELETE" && parts.size() == 5;
  if ((!take && !renew && !release) || !options_.leases) return nothing_here(request);
  const auto name = name_of(request, parts);
  if (!name) return http_error(name.error());
  storage::LeaseTable& table = *options_.leases;
  if (take) {
    const auto holder = holder_of(request);
    if (!holder) return http_error(holder.error());
    const auto id = table.take(name->lineage, name->step, *holder);
    // Another node may have room.
    if (!id) return http_error(id.error(), id.error().code == ErrorCode::kLimitReached ? 429 : 0);
    return json_answer({{"lease", *id}, {"renew_s", table.renew_s()}});
  }
  const Status done =
      renew ? table.renew(name->lineage, name->step, parts[4]) : table.release(name->lineage, name->step, parts[4]);
  if (!done) return http_error(done.error());
  if (!renew) return {};
  return json_answer({{"lease", parts[4]}, {"renew_s", table.renew_s()}});
}

HttpAnswer PointAnswers::answer(const HttpRequest& request, const std::vector<std::string_view>& parts) {
  if (parts[0] == "points" && parts.size() >= 4 && parts[3] == "lease") return lease(request, parts);
  if (request.method != "GET") return nothing_here(request);
  if (parts.size() == 1) {
    const auto lineage = number(request, "lineage", 0);
    if (!lineage) return http_error(lineage.error());
    const auto listing = storage::list_points(*options_.store, options_.job);
    if (!listing) return http_error(listing.error());
    if (parts[0] == "lineages") return json_answer(recovery::lineages_json(*listing));
    std::optional<LineageId> wanted;
    if (*lineage > 0 && *lineage <= ~LineageId{0}) wanted = static_cast<LineageId>(*lineage);
    return json_answer(recovery::points_json(*listing, wanted));
  }
  if (parts[0] == "points" && (parts.size() == 3 || (parts.size() == 4 && parts[3] == "verify"))) {
    const auto name = name_of(request, parts);
    if (!name) return http_error(name.error());
    if (parts.size() == 3) {
      const auto point = storage::read_point(*options_.store, options_.job, name->lineage, name->step);
      if (!point) return http_error(point.error());
      return json_answer(recovery::point_json(point->record, point->digest));
    }
    const auto turn = take_turn(verifications_, 1);
    if (!turn) return http_error(turn.error());
    const auto report = recovery::verify_whole_point(options_.store, options_.job, name->lineage, name->step);
    if (!report) return http_error(report.error());
    return json_answer(recovery::verify_json(*report));
  }
  return nothing_here(request);
}

Result<std::function<bool(const ByteSink&)>> PointAnswers::stream(const HttpRequest& request,
                                                                  const std::vector<std::string_view>& parts) {
  if (parts.size() != 4) return fail(ErrorCode::kRequestMalformed, "there is nothing at this path", request.path);
  const auto name = name_of(request, parts);
  if (!name) return std::unexpected(name.error());
  auto turn = take_turn(streams_, options_.streams_max);
  if (!turn) return std::unexpected(turn.error());
  const recovery::PointQuery query{options_.job, name->lineage, name->step};
  if (parts[3] == "side") {
    const auto rank = number(request, "rank", 0);
    if (!rank) return std::unexpected(rank.error());
    if (*rank > ~std::uint32_t{0}) return fail(ErrorCode::kOutOfRange, "the job has no such rank", request.path);
    auto side = recovery::read_point_side(options_.store, query, static_cast<std::uint32_t>(*rank));
    if (!side) return std::unexpected(side.error());
    return [bytes = std::make_shared<const std::string>(std::move(side->bytes)), turn = *turn](const ByteSink& sink) {
      return sink(bytes->data(), bytes->size());
    };
  }
  const auto optimizer = number(request, "optimizer", 0);
  if (!optimizer) return std::unexpected(optimizer.error());
  recovery::StateChoice choice;
  choice.optimizer = *optimizer != 0;
  if (const auto format = request.query.find("format"); format != request.query.end()) {
    const auto known = recovery::state_format_of(format->second);
    if (!known) return std::unexpected(known.error());
    choice.format = *known;
  }
  auto state = recovery::prepare_point_state(options_.store, query, choice);
  if (!state) return std::unexpected(state.error());
  return [stream = std::move(state->stream), turn = *turn](const ByteSink& sink) { return stream(sink); };
}

}  // namespace gradtap::actors
