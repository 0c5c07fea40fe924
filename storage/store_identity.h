// Do all nodes see the same object store? (PROTOCOLS 6.5)
//
// Purpose: the store has a nonce, `cluster/store-id`, created once; every node writes a presence file at its start and
// tells its peers both; a peer that finds the same nonce and the file sees the same store. Threads: any (blocking).
// Failure: STORE_NOT_SHARED with what differs; a presence that is not there *yet* is the same error: the caller looks
// again until its deadline (5 s).
#pragma once

#include <string>
#include <string_view>

#include "common/error.h"
#include "common/random.h"
#include "storage/object_store.h"

namespace gradtap::storage {

struct StoreHello {
  std::string store_id;      // 32 hexadecimal digits
  std::string presence_key;  // cluster/seen/NODE-uid
  friend bool operator==(const StoreHello&, const StoreHello&) = default;
};

// Creates the nonce if there is none yet, writes a new presence file and deletes this node's older ones.
[[nodiscard]] Result<StoreHello> announce_store(ObjectStore& store, std::string_view node, Random& random);
// The nonce of the store, without writing; OBJECT_MISSING when it has none.
[[nodiscard]] Result<std::string> read_store_id(const ObjectStore& store);
// One look. `peer_hello` comes from the peer: hostile.
[[nodiscard]] Status sees_peer(const ObjectStore& store, const StoreHello& own, std::string_view peer,
                               const StoreHello& peer_hello);

}  // namespace gradtap::storage
