// EpochLog: the cluster's epochs, as the object store decides them (PROTOCOLS 5.2): cluster/epoch/n, n = 1, 2, 3, ...
//
// Purpose: of any number of proposers of epoch n exactly one wins, by conditional create; the others read the winner.
// Any node may ask. Threads: any (blocking). Invariants: an epoch is never changed or deleted; each names the digest of
// the one before it, so that a store that lost one is seen. Failure: named errors of the store; a damaged newest epoch
// is an error, never passed over (an older one must not come into force again).
#pragma once

#include <cstdint>
#include <optional>

#include "schema/epoch_codec.h"
#include "storage/object_store.h"

namespace gradtap::storage {

struct StoredEpoch {
  schema::EpochRecord record;
  Sha256 digest{};  // SHA-256 of the bytes as stored
};

// The newest epoch; nothing when the store has none yet.
[[nodiscard]] Result<std::optional<StoredEpoch>> newest_epoch(const ObjectStore& store);
[[nodiscard]] Result<StoredEpoch> read_epoch(const ObjectStore& store, std::uint64_t number);
// Creates record.number, which must be the newest + 1, with record.previous the newest one's digest. False: another
// proposer was faster (or the record is not the next one): read the newest and think again. A repeated try of the same
// bytes is success.
[[nodiscard]] Result<bool> create_epoch(ObjectStore& store, const schema::EpochRecord& record);

}  // namespace gradtap::storage
