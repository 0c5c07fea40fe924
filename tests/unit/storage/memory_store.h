// An object store in memory, for tests of what is built on one: every operation can be made to fail.
#pragma once

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "storage/object_store.h"

namespace gradtap::storage::test {

class MemoryStore final : public ObjectStore {
 public:
  std::map<std::string, std::vector<std::uint8_t>, std::less<>> objects;
  std::uint64_t removals_left = ~std::uint64_t{0};       // then remove() fails, as when the process dies in the middle
  std::map<std::string, ErrorCode, std::less<>> broken;  // reading these keys fails so

  Status put(std::string_view key, const std::vector<ByteSpan>& parts) override {
    std::vector<std::uint8_t> bytes;
    for (const ByteSpan part : parts) bytes.insert(bytes.end(), part.begin(), part.end());
    const auto created = create(key, bytes);
    if (created && *created == Created::kExists) return fail(ErrorCode::kObjectConflict, "taken", std::string(key));
    return created ? Status{} : Status(std::unexpected<Error>(created.error()));
  }
  Result<Created> create(std::string_view key, ByteSpan bytes) override {
    const auto [at, is_new] = objects.emplace(key, std::vector<std::uint8_t>(bytes.begin(), bytes.end()));
    if (is_new) return Created::kCreated;
    return std::equal(at->second.begin(), at->second.end(), bytes.begin(), bytes.end()) ? Created::kExistsEqual
                                                                                        : Created::kExists;
  }
  Result<std::vector<std::uint8_t>> get(std::string_view key, std::uint64_t bytes_max) const override {
    const auto found = find(key);
    if (!found) return std::unexpected<Error>(found.error());
    if ((*found)->size() > bytes_max) return fail(ErrorCode::kLimitReached, "too long", std::string(key));
    return **found;
  }
  Result<std::vector<std::uint8_t>> read(std::string_view key, std::uint64_t offset,
                                         std::uint64_t count) const override {
    const auto found = find(key);
    if (!found) return std::unexpected<Error>(found.error());
    const auto& bytes = **found;
    const std::uint64_t from = std::min<std::uint64_t>(offset, bytes.size());
    const std::uint64_t to = from + std::min<std::uint64_t>(count, bytes.size() - from);
    return std::vector<std::uint8_t>(bytes.begin() + static_cast<std::ptrdiff_t>(from),
                                     bytes.begin() + static_cast<std::ptrdiff_t>(to));
  }
  Result<std::uint64_t> length(std::string_view key) const override {
    const auto found = find(key);
    if (!found) return std::unexpected<Error>(found.error());
    return (*found)->size();
  }
  bool unlistable = false;
  Result<std::vector<std::string>> list(std::string_view prefix) const override {
    if (unlistable) return fail(ErrorCode::kObjectStore, "cannot be listed", std::string(prefix));
    std::vector<std::string> out;
    for (auto at = objects.lower_bound(prefix); at != objects.end() && at->first.starts_with(prefix); ++at)
      out.push_back(at->first);
    return out;
  }
  Status remove(const std::vector<std::string>& keys) override {
    for (const std::string& key : keys) {
      if (removals_left == 0) return fail(ErrorCode::kObjectStore, "no more removals", key);
      --removals_left;
      objects.erase(key);
    }
    return {};
  }
  std::string describe() const override { return "memory"; }

 private:
  Result<const std::vector<std::uint8_t>*> find(std::string_view key) const {
    if (const auto at = broken.find(key); at != broken.end()) return fail(at->second, "broken", std::string(key));
    const auto at = objects.find(key);
    if (at == objects.end()) return fail(ErrorCode::kObjectMissing, "object is missing", std::string(key));
    return &at->second;
  }
};

}  // namespace gradtap::storage::test
