#include "storage/epoch_log.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "common/sha256.h"
#include "storage/object_key.h"

namespace gradtap::storage {
namespace {

// Number of the newest epoch, 0 without one.
Result<std::uint64_t> newest_number(const ObjectStore& store) {
  const auto keys = store.list(epochs_prefix());
  if (!keys) return std::unexpected<Error>(keys.error());
  std::uint64_t newest = 0;
  for (const std::string& key : *keys) {  // sorted, and text order is number order
    const auto parsed = parse_key(key);
    if (!parsed || parsed->kind != KeyKind::kEpoch) continue;  // another form: not ours
    if (parsed->counter != newest + 1)
      return fail(ErrorCode::kObjectMissing, "an epoch of the cluster is missing", epoch_key(newest + 1), {},
                  fmt::format("epoch {}", parsed->counter), "find out who deleted the file and put it back");
    newest = parsed->counter;
  }
  return newest;
}

}  // namespace

Result<StoredEpoch> read_epoch(const ObjectStore& store, std::uint64_t number) {
  const std::string key = epoch_key(number);
  const auto bytes = store.get(key, schema::kEpochBytesMax);
  if (!bytes) return std::unexpected<Error>(bytes.error());
  auto record = schema::decode_epoch(*bytes);
  if (!record) {
    Error error = record.error();
    error.where = error.where.empty() ? key : fmt::format("{}: {}", key, error.where);
    if (error.code == ErrorCode::kStoreCorrupt) error.code = ErrorCode::kObjectCorrupt;
    return std::unexpected<Error>(std::move(error));
  }
  if (record->number != number)
    return fail(ErrorCode::kObjectForeign, "epoch is another one than its key says", key, key,
                epoch_key(record->number));
  return StoredEpoch{std::move(*record), sha256(*bytes)};
}

Result<std::optional<StoredEpoch>> newest_epoch(const ObjectStore& store) {
  const auto number = newest_number(store);
  if (!number) return std::unexpected<Error>(number.error());
  if (*number == 0) return std::optional<StoredEpoch>();
  auto newest = read_epoch(store, *number);
  if (!newest) return std::unexpected<Error>(newest.error());
  if (*number > 1) {
    // Its bytes count, not what they say: an older build may not read what a newer one made, and need not.
    const std::string key = epoch_key(*number - 1);
    const auto before = store.get(key, schema::kEpochBytesMax);
    if (!before) return std::unexpected<Error>(before.error());
    if (const Sha256 digest = sha256(*before); digest != newest->record.previous)
      return fail(ErrorCode::kObjectCorrupt, "epoch is not the one that the next epoch was made from", key,
                  to_hex(newest->record.previous), to_hex(digest), "find out who replaced the file and put it back");
  }
  return std::optional<StoredEpoch>(std::move(*newest));
}

Result<bool> create_epoch(ObjectStore& store, const schema::EpochRecord& record) {
  const std::string key = epoch_key(record.number);
  const auto bytes = schema::encode(record);
  if (!bytes) return std::unexpected<Error>(bytes.error());
  // Nobody could read it, and nobody could put another one in its place.
  if (const auto readable = schema::decode_epoch(*bytes); !readable || *readable != record)
    return fail(ErrorCode::kOutOfRange, "epoch has an impossible value", key, {},
                readable ? std::string() : readable.error().where);
  const auto newest = newest_epoch(store);
  if (!newest) return std::unexpected<Error>(newest.error());
  const std::uint64_t number = *newest ? (*newest)->record.number : 0;
  if (record.number <= number) {
    // Perhaps an own earlier try whose answer was lost.
    const auto stored = store.get(key, schema::kEpochBytesMax);
    if (!stored) return std::unexpected<Error>(stored.error());
    return std::equal(stored->begin(), stored->end(), bytes->begin(), bytes->end());
  }
  if (record.number != number + 1 || record.previous != (*newest ? (*newest)->digest : Sha256{})) return false;
  const auto created = store.create(key, *bytes);
  if (!created) return std::unexpected<Error>(created.error());
  return *created != Created::kExists;
}

}  // namespace gradtap::storage
