#include "storage/store_identity.h"

#include <algorithm>

#include "schema/envelope.h"
#include "storage/object_key.h"

namespace gradtap::storage {
namespace {

constexpr std::uint64_t kBytesMax = 4096;

std::string store_id_key() {
  return build_key({KeyKind::kStoreId, {}, 0, 0, 0, {}});
}

bool is_store_id(std::string_view text) {
  return text.size() == 32 && text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

std::vector<std::uint8_t> sealed(std::string_view text) {
  return schema::seal(schema::RecordType::kRaw, {reinterpret_cast<const std::uint8_t*>(text.data()), text.size()});
}

}  // namespace

Result<std::string> read_store_id(const ObjectStore& store) {
  const std::string key = store_id_key();
  const auto bytes = store.get(key, kBytesMax);
  if (!bytes) return std::unexpected<Error>(bytes.error());
  const auto payload = schema::unseal(schema::RecordType::kRaw, *bytes);
  if (!payload) {
    Error error = payload.error();
    error.where = key;
    return std::unexpected<Error>(std::move(error));
  }
  std::string id(payload->begin(), payload->end());
  if (!is_store_id(id))
    return fail(ErrorCode::kObjectCorrupt, "store id has a wrong form", key, "32 hexadecimal digits", id.substr(0, 64));
  return id;
}

Result<StoreHello> announce_store(ObjectStore& store, std::string_view node, Random& random) {
  // Whoever creates it first wins; everybody reads what is there then.
  if (const auto created = store.create(store_id_key(), sealed(new_uid(random))); !created)
    return std::unexpected<Error>(created.error());
  auto id = read_store_id(store);
  if (!id) return std::unexpected<Error>(id.error());
  StoreHello hello;
  hello.store_id = std::move(*id);
  hello.presence_key = build_key({KeyKind::kSeen, std::string(node), 0, 0, 0, new_uid(random)});
  if (const auto created = store.create(hello.presence_key, sealed(node)); !created)
    return std::unexpected<Error>(created.error());
  const auto keys = store.list("cluster/seen/");
  if (!keys) return std::unexpected<Error>(keys.error());
  std::vector<std::string> older;
  for (const std::string& key : *keys)
    if (const auto parsed = parse_key(key); parsed && parsed->job == node && key != hello.presence_key)
      older.push_back(key);
  GRADTAP_TRY(store.remove(older));
  return hello;
}

Status sees_peer(const ObjectStore& store, const StoreHello& own, std::string_view peer, const StoreHello& peer_hello) {
  const std::string where = store.describe() + ", node " + std::string(peer);
  constexpr const char* kRemedy = "mount the same directory on every node";
  if (peer_hello.store_id != own.store_id)
    return fail(ErrorCode::kStoreNotShared, "directory is not shared: a peer's object store is another one", where,
                own.store_id, peer_hello.store_id.substr(0, 64), kRemedy);
  const auto key = parse_key(peer_hello.presence_key);
  if (!key || key->kind != KeyKind::kSeen || key->job != peer)
    return fail(ErrorCode::kStoreNotShared, "a peer names no presence file of its own", where, "cluster/seen/NODE-uid",
                peer_hello.presence_key.substr(0, 200), "run the same version on all nodes");
  const auto length = store.length(peer_hello.presence_key);
  if (length) return {};
  if (length.error().code != ErrorCode::kObjectMissing) return std::unexpected<Error>(length.error());
  return fail(ErrorCode::kStoreNotShared, "directory is not shared: a file that a peer wrote is not seen here", where,
              peer_hello.presence_key, "nothing", kRemedy);
}

}  // namespace gradtap::storage
