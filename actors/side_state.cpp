#include "actors/side_state.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "common/sha256.h"
#include "replica/json_fields.h"
#include "schema/record_codec.h"
#include "storage/key.h"

namespace gradtap::actors {

namespace {

using nlohmann::json;

std::unexpected<Error> missing(StepNumber step, std::uint32_t rank, const std::string& what) {
  return fail(ErrorCode::kSideStateMissing, what, fmt::format("step {} rank {}", step, rank), {}, {},
              "look at that rank's log");
}

std::unexpected<Error> awaited(StepNumber step, std::uint32_t rank, const std::string& what) {
  return fail(ErrorCode::kSideStateMissing, what, fmt::format("step {} rank {}", step, rank), kMayCome, {},
              "look at that rank's log");
}

std::optional<std::vector<std::uint8_t>> decode_base64(const std::string& text) {
  static constexpr std::string_view kAlphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  if (text.size() % 4 != 0) return std::nullopt;
  std::vector<std::uint8_t> out;
  out.reserve(text.size() / 4 * 3);
  for (std::size_t i = 0; i < text.size(); i += 4) {
    std::uint32_t word = 0;
    unsigned padding = 0;
    for (std::size_t j = 0; j < 4; ++j) {
      const char c = text[i + j];
      if (c == '=') {
        if (i + 4 != text.size() || j < 2) return std::nullopt;
        ++padding;
        word <<= 6;
        continue;
      }
      const std::size_t value = kAlphabet.find(c);
      if (value == std::string_view::npos || padding > 0) return std::nullopt;
      word = word << 6 | static_cast<std::uint32_t>(value);
    }
    for (unsigned j = 0; j + padding < 3; ++j) out.push_back(static_cast<std::uint8_t>(word >> (16 - 8 * j)));
  }
  return out;
}

Result<std::vector<schema::SideBlob>> read_blobs(const storage::ShardStore& store, const recovery::JobPlan& plan,
                                                 const json& message, StepNumber step, std::uint32_t rank) {
  std::vector<schema::SideBlob> blobs;
  if (const auto absent = message.find("blobs_missing"); absent != message.end() && absent->is_array())
    for (const json& name : *absent)
      return missing(
          step, rank,
          "the client could not send " + (name.is_string() ? name.get<std::string>() : std::string("a blob")));
  const auto entries = message.find("blobs");
  if (entries == message.end() || !entries->is_object()) return missing(step, rank, "its message names no side state");
  for (const auto& [name, entry] : entries->items()) {
    if (!entry.is_object() || !entry.contains("digest") || !entry["digest"].is_string())
      return missing(step, rank, "the blob " + name + " has no digest");
    const auto& hex = entry["digest"].get_ref<const std::string&>();
    Sha256 digest{};
    if (!from_hex(hex, digest.data(), digest.size())) return missing(step, rank, "the blob " + name + " has no digest");
    schema::SideBlob blob{name, {}};
    if (const auto given = entry.find("inline"); given != entry.end() && given->is_string()) {
      auto bytes = decode_base64(given->get_ref<const std::string&>());
      if (!bytes) return missing(step, rank, "the blob " + name + " is not base64");
      blob.bytes = std::move(*bytes);
    } else {
      auto bytes = store.get_side(storage::side_key(storage::SideKind::kBlob, plan.job, plan.lineage, 0, rank) +
                                  std::string(digest.begin(), digest.end()));
      if (!bytes && bytes.error().code == ErrorCode::kStoreMissingChunk)
        return awaited(step, rank, "the blob " + name + " has not come");
      if (!bytes) return std::unexpected(bytes.error());
      blob.bytes = std::move(*bytes);
    }
    if (const Sha256 actual = sha256(ByteSpan(blob.bytes)); actual != digest)
      return missing(step, rank, fmt::format("the blob {} is {} instead of {}", name, to_hex(actual), hex));
    blobs.push_back(std::move(blob));
  }
  std::sort(blobs.begin(), blobs.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
  return blobs;
}

}  // namespace

Result<SideStateOfStep> read_side_state(const storage::ShardStore& store, const recovery::JobPlan& plan,
                                        StepNumber step) {
  SideStateOfStep found;
  found.state.lineage = plan.lineage;
  found.state.step = step;
  for (std::uint32_t rank = 0; rank < plan.world; ++rank) {
    const auto stored =
        store.get_side(storage::side_key(storage::SideKind::kStepMessage, plan.job, plan.lineage, step, rank));
    if (!stored && stored.error().code == ErrorCode::kStoreMissingChunk)
      return awaited(step, rank, "its step message has not come");
    if (!stored) return std::unexpected(stored.error());
    auto record = schema::decode_step(*stored);
    if (!record) return std::unexpected(record.error());
    const std::string text(record->json.begin(), record->json.end());
    GRADTAP_LET(message, replica::parse_json_object(text, "stored step message"));
    GRADTAP_LET(blobs, read_blobs(store, plan, message, step, rank));
    if (rank == 0) {
      found.step_message = record->json;
      found.verdict = record->verdict;
      const auto next = message.find("next_layout_id");
      if (next != message.end() && next->is_string() &&
          from_hex(next->get_ref<const std::string&>(), found.next_layout.data(), found.next_layout.size())) {
        auto layout = store.get_side(storage::side_key(storage::SideKind::kLayout, plan.job, plan.lineage) +
                                     std::string(found.next_layout.begin(), found.next_layout.end()));
        if (!layout && layout.error().code == ErrorCode::kStoreMissingChunk)
          return awaited(step, rank, "the layout of the next step has not come");
        if (!layout) return std::unexpected(layout.error());
        found.next_layout_json = std::move(*layout);
      } else {
        found.next_layout = {};
      }
    }
    found.state.ranks.push_back({rank, std::move(record->json), std::move(blobs)});
  }
  return found;
}

}  // namespace gradtap::actors
