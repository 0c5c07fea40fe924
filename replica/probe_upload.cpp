#include <algorithm>
#include <cstring>
#include <iterator>

#include <fmt/format.h>

#include "common/number_text.h"
#include "replica/probe.h"
#include "replica/schema_json.h"

namespace gradtap::replica {
namespace {

constexpr std::size_t kMaxCases = 64;
constexpr std::uint64_t kMaxCaseElements = 1ULL << 20;
constexpr std::uint64_t kMaxProbeBytes = 64ULL << 20;

std::unexpected<Error> bad_upload(std::string what, std::string where, std::string expected = {},
                                  std::string actual = {}) {
  return fail(ErrorCode::kSchemaInvalid, std::move(what), std::move(where), std::move(expected), std::move(actual),
              "upload the probe again");
}

Result<std::size_t> case_of(const std::string& name) {
  const std::size_t colon = name.find(':');
  const auto value = parse_integer<std::size_t>(std::string_view(name).substr(0, colon));
  if (colon == std::string::npos || !value || *value >= kMaxCases)
    return bad_upload("a probe tensor's name is not {case}:{kind}:{when}", "probe", "0:param:in", name.substr(0, 64));
  return *value;
}

bool equal_bytes(const std::vector<float>& values, ByteSpan data) {
  return values.size() * 4 == data.size() &&
         (data.empty() || std::memcmp(values.data(), data.data(), data.size()) == 0);
}

}  // namespace

Status ProbeUpload::read_metadata(const Safetensors& file) {
  const auto groups_text = file.metadata.find("groups");
  const auto class_text = file.metadata.find("class");
  if (groups_text == file.metadata.end() || class_text == file.metadata.end())
    return bad_upload("the probe's metadata lacks groups or class", "probe.__metadata__");
  if (class_text->second != optimizer_class_name(optimizer_.type))
    return bad_upload("the probe ran another optimizer than the job", "probe.__metadata__.class",
                      std::string(optimizer_class_name(optimizer_.type)), class_text->second.substr(0, 64));
  const Json groups = Json::parse(groups_text->second, nullptr, false);
  if (groups.is_discarded()) return bad_upload("the probe's groups are not JSON", "probe.__metadata__.groups");
  GRADTAP_LET(hyper, parse_groups(groups, optimizer_.type, "probe.groups"));
  if (hyper.size() != kProbeSteps)
    return bad_upload("the probe has a wrong number of steps", "probe.__metadata__.groups",
                      fmt::format("{}", kProbeSteps), fmt::format("{}", hyper.size()));
  // The probe must run what the job runs: a recipe found with other flags says nothing.
  const GroupHyper& job = optimizer_.groups[0];
  for (const GroupHyper& step : hyper)
    if (step.fused.value_or(false) != job.fused.value_or(false) ||
        step.foreach.value_or(false) != job.foreach.value_or(false))
      return bad_upload("the probe ran with other fused or foreach flags than the job", "probe.__metadata__.groups");
  hyper_ = std::move(hyper);
  return {};
}

Status ProbeUpload::add_chunk(ByteSpan chunk) {
  GRADTAP_LET(file, read_safetensors(chunk));
  if (hyper_.empty() || file.metadata.contains("groups")) GRADTAP_TRY(read_metadata(file));
  std::uint64_t held = 0;
  for (const auto& [name, part] : parts_) held += part.values.size() * 4;
  for (const auto& [name, view] : file.tensors) {
    GRADTAP_LET(probe_case, case_of(name));
    const std::uint64_t count = view.data.size() / 4;
    held += view.data.size();
    if (view.dtype != "F32" || count > kMaxCaseElements || held > kMaxProbeBytes)
      return bad_upload("a probe tensor is not float32, or too large", name);
    if (const auto known = parts_.find(name); known != parts_.end()) {
      if (!equal_bytes(known->second.values, view.data))
        return bad_upload("a probe tensor came twice, with other bytes", name);
      continue;
    }
    Part part{view.shape, std::vector<float>(count)};
    if (count > 0) std::memcpy(part.values.data(), view.data.data(), view.data.size());
    parts_.emplace(name, std::move(part));
    if (cases_.size() <= probe_case) cases_.resize(probe_case + 1, false);
    cases_[probe_case] = true;
  }
  return {};
}

const ProbeUpload::Part* ProbeUpload::part(std::size_t probe_case, std::string_view kind,
                                           const std::string& when) const {
  const auto found = parts_.find(fmt::format("{}:{}:{}", probe_case, kind, when));
  return found == parts_.end() ? nullptr : &found->second;
}

bool ProbeUpload::complete() const {
  if (!standard_) return !parts_.empty();
  for (std::size_t c = 0; c < std::size(kProbeSizes); ++c) {
    if (part(c, "param", "in") == nullptr) return false;
    for (std::size_t s = 1; s <= kProbeSteps; ++s) {
      if (part(c, "grad", fmt::format("grad{}", s)) == nullptr) return false;
      if (part(c, "param", fmt::format("out{}", s)) == nullptr) return false;
    }
  }
  return true;
}

Result<ProbeCase> ProbeUpload::read_case(std::size_t probe_case) const {
  ProbeCase result;
  result.name = fmt::format("{}", probe_case);
  const Part* const start = part(probe_case, "param", "in");
  if (start == nullptr) return bad_upload("a probe tensor is missing", fmt::format("probe {}:param:in", probe_case));
  result.param = start->values;
  const std::size_t size = result.param.size();
  if (standard_ && (probe_case >= std::size(kProbeSizes) || size != kProbeSizes[probe_case]))
    return bad_upload("a probe case has another size than the protocol's", fmt::format("probe {}", probe_case));
  for (std::size_t s = 1; s <= kProbeSteps; ++s) {
    const Part* const gradient = part(probe_case, "grad", fmt::format("grad{}", s));
    const Part* const after = part(probe_case, "param", fmt::format("out{}", s));
    if (gradient == nullptr || after == nullptr || gradient->values.size() != size || after->values.size() != size)
      return bad_upload("a probe step is missing or has another size", fmt::format("probe {}, step {}", probe_case, s));
    ProbeStep step{gradient->values, after->values, {}};
    for (const StateKind kind : optimizer_.kinds) {
      const Part* const state = part(probe_case, state_kind_name(kind), fmt::format("out{}", s));
      if (state != nullptr && state->values.size() != size)
        return bad_upload("a probe state has another size", fmt::format("probe {}, step {}", probe_case, s));
      if (state == nullptr && standard_)
        return bad_upload("a probe state is missing",
                          fmt::format("probe {}:{}:out{}", probe_case, state_kind_name(kind), s));
      step.state_after.push_back(state == nullptr ? std::vector<float>{} : state->values);
    }
    result.steps.push_back(std::move(step));
  }
  return result;
}

Result<ProbeData> ProbeUpload::finish() const {
  if (!complete()) return bad_upload("the probe is not complete", "probe");
  ProbeData data{optimizer_.type, optimizer_.kinds, hyper_, {}};
  for (std::size_t c = 0; c < cases_.size(); ++c) {
    if (!cases_[c]) continue;
    GRADTAP_LET(probe_case, read_case(c));
    data.cases.push_back(std::move(probe_case));
  }
  return data;
}

}  // namespace gradtap::replica
