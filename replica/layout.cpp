#include "replica/layout.h"

#include <algorithm>

#include <fmt/format.h>

#include "common/sha256.h"

namespace gradtap::replica {

Result<Layout> Layout::create(std::vector<std::vector<LayoutEntry>> buckets, const Schema& schema) {
  std::vector<bool> seen(schema.parameters.size(), false);
  Layout layout;
  for (std::size_t b = 0; b < buckets.size(); ++b) {
    std::vector<std::uint64_t> offsets{0};
    for (std::size_t e = 0; e < buckets[b].size(); ++e) {
      const LayoutEntry& entry = buckets[b][e];
      const std::string where = fmt::format("layout.buckets[{}][{}]", b, e);
      if (entry.parameter >= schema.parameters.size())
        return fail(ErrorCode::kLayoutInvalid, "a layout names a parameter that does not exist", where,
                    fmt::format("below {}", schema.parameters.size()), fmt::format("{}", entry.parameter));
      const ParameterSpec& parameter = schema.parameters[entry.parameter];
      if (!parameter.has_gradient())
        return fail(ErrorCode::kLayoutInvalid, "a layout names a parameter that has no gradient", where, {},
                    parameter.name);
      if (seen[entry.parameter])
        return fail(ErrorCode::kLayoutInvalid, "a layout names a parameter twice", where, {}, parameter.name);
      if (entry.numel != parameter.numel)
        return fail(ErrorCode::kLayoutInvalid, "a layout gives a parameter another size", where,
                    fmt::format("{}", parameter.numel), fmt::format("{}", entry.numel));
      seen[entry.parameter] = true;
      offsets.push_back(offsets.back() + entry.numel);
    }
    if (offsets.back() == 0)
      return fail(ErrorCode::kLayoutInvalid, "a bucket is empty", fmt::format("layout.buckets[{}]", b));
    layout.offsets_.push_back(std::move(offsets));
  }
  for (std::size_t p = 0; p < seen.size(); ++p) {
    const ParameterSpec& parameter = schema.parameters[p];
    if (parameter.has_gradient() && parameter.numel > 0 && !seen[p])
      return fail(ErrorCode::kLayoutInvalid, "a parameter with a gradient is in no bucket", "layout.buckets", {},
                  parameter.name);
  }
  layout.buckets_ = std::move(buckets);
  layout.id_ = sha256(std::string_view(layout.canonical_json()));
  return layout;
}

Status Layout::check_id(const LayoutId& announced) const {
  if (announced == id_) return {};
  return fail(ErrorCode::kLayoutInvalid, "the announced layout id is not the id of the announced layout", "layout_id",
              to_hex(id_), to_hex(announced));
}

BucketPosition Layout::locate(std::size_t index, std::uint64_t offset) const {
  const std::vector<std::uint64_t>& starts = offsets_[index];
  // The last entry that starts at or before the offset: entries without elements are passed over.
  const auto after = std::upper_bound(starts.begin(), starts.end() - 1, offset);
  const auto entry = static_cast<std::size_t>(after - starts.begin()) - 1;
  return {buckets_[index][entry].parameter, offset - starts[entry]};
}

std::string Layout::canonical_json() const {
  std::string text = "{\"buckets\":[";
  for (std::size_t b = 0; b < buckets_.size(); ++b) {
    text += b == 0 ? "[" : ",[";
    for (std::size_t e = 0; e < buckets_[b].size(); ++e)
      text += fmt::format("{}[{},{}]", e == 0 ? "" : ",", buckets_[b][e].parameter, buckets_[b][e].numel);
    text += "]";
  }
  return text + "],\"dtype\":\"float32\"}";
}

}  // namespace gradtap::replica
