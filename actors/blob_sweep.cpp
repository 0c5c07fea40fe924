#include "actors/blob_sweep.h"

#include <utility>

#include <nlohmann/json.hpp>

#include "schema/record_codec.h"
#include "storage/key.h"

namespace gradtap::actors {

Result<std::vector<std::string>> BlobSweep::sweep(const storage::ShardStore& store, const JobId& job,
                                                  LineageId lineage) {
  std::set<std::string> blobs;
  GRADTAP_TRY(store.scan_side(storage::side_prefix(storage::SideKind::kBlob, job, lineage),
                              [&](std::string_view key, ByteSpan) {
                                blobs.emplace(key);
                                return true;
                              }));
  if (blobs.empty()) {
    unnamed_before_.clear();
    return std::vector<std::string>();
  }
  std::set<std::string> named;  // rank and digest
  Status wrong;
  GRADTAP_TRY(store.scan_side(
      storage::side_prefix(storage::SideKind::kStepMessage, job, lineage), [&](std::string_view, ByteSpan bytes) {
        const auto record = schema::decode_step(bytes);
        if (!record) {
          wrong = std::unexpected(record.error());
          return false;
        }
        const auto message = nlohmann::json::parse(record->json.begin(), record->json.end(), nullptr, false);
        const auto entries = message.is_object() ? message.find("blobs") : message.end();
        if (!message.is_object() || entries == message.end() || !entries->is_object()) return true;
        for (const auto& [name, entry] : entries->items()) {
          if (!entry.is_object() || !entry.contains("digest") || !entry["digest"].is_string()) continue;
          Sha256 digest{};
          if (!from_hex(entry["digest"].get_ref<const std::string&>(), digest.data(), digest.size())) continue;
          named.insert(storage::side_key(storage::SideKind::kBlob, job, lineage, 0, record->rank) +
                       std::string(digest.begin(), digest.end()));
        }
        return true;
      }));
  GRADTAP_TRY(wrong);
  std::set<std::string> unnamed;
  std::vector<std::string> given_up;
  for (const std::string& key : blobs) {
    if (named.contains(key)) continue;
    if (unnamed_before_.contains(key))
      given_up.push_back(key);
    else
      unnamed.insert(key);
  }
  unnamed_before_ = std::move(unnamed);
  return given_up;
}

}  // namespace gradtap::actors
