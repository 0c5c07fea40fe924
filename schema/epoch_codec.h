// EpochRecord: one version of who belongs to the cluster and who owns which shard, as the object store holds it
// (docs/formats.md, Epoch record; PROTOCOLS 5.2).
//
// Purpose: the members and the whole shard map are computed once, by whoever proposes the epoch, and stored; everybody
// reads the same. Ownership: values. Threads: any. Invariants: what decodes is possible in itself: names unique and not
// empty, at least one member; owners of a shard are different members of the list that are not kOut, at least one and
// never more than `replicas`. From one epoch to the next the place of a member in the list never changes (it is its
// index for ever; a member that left stays as kOut). Failure: encoding beyond a limit is LIMIT_REACHED; decoding
// answers STORE_CORRUPT with the field's name, STORE_FORMAT or LIMIT_REACHED, never an exception.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/bytes.h"
#include "common/error.h"
#include "common/ids.h"

namespace gradtap::schema {

enum class MemberState : std::uint8_t {
  kIn = 0,        // owns shards, may be the home
  kDraining = 1,  // gives its shards away, never the home
  kOut = 2,       // owns nothing, is not listened to
};

struct EpochMember {
  std::string name;
  std::string link;            // "10.77.0.100:7800"
  std::string http;            // "http://10.77.0.100:7700"
  std::string domain;          // members that may die together share it
  std::uint32_t capacity = 1;  // shards are spread in proportion to it, 1..65535
  MemberState state = MemberState::kIn;
  std::uint64_t since_epoch = 1;  // in which it came, came back, or was replaced: tells its lives apart
  friend bool operator==(const EpochMember&, const EpochMember&) = default;
};

struct EpochRecord {
  std::uint64_t number = 0;  // 1, 2, 3, ...
  Sha256 previous{};         // SHA-256 of the previous epoch's bytes as stored; zero for epoch 1
  std::uint32_t replicas = 2;
  std::vector<EpochMember> members;
  std::vector<std::vector<std::uint32_t>> owners;  // by shard, indices of members, primary first; empty: no job yet
  std::string proposer;                            // name of the member, or "operator"
  std::string cause;                               // "add node-d", for people
  std::uint64_t created_wall_ms = 0;               // for people
  friend bool operator==(const EpochRecord&, const EpochRecord&) = default;
};

inline constexpr std::size_t kEpochBytesMax = std::size_t{4} << 20;
inline constexpr std::size_t kEpochMembersMax = 1024;
inline constexpr std::size_t kEpochShardsMax = 65'536;
inline constexpr std::size_t kEpochReplicasMax = 16;
inline constexpr std::size_t kEpochTextMax = 255;  // of a name, an address, a domain

[[nodiscard]] Result<std::vector<std::uint8_t>> encode(const EpochRecord& record);
[[nodiscard]] Result<EpochRecord> decode_epoch(ByteSpan bytes);

}  // namespace gradtap::schema
