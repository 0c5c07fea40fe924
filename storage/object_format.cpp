#include "storage/object_format.h"

#include <algorithm>
#include <cstring>

#include <fmt/format.h>
#include <xxhash.h>

#include "storage/value_format.h"

namespace gradtap::storage {
namespace {

constexpr std::uint8_t kMagic[4] = {'G', 'T', 'O', 'B'};
constexpr std::size_t kHashedBytes = 88;  // of the header, by the hash at its end
constexpr std::size_t kTableHashAt = 64;
constexpr std::size_t kPartEntryBytes = 16;
constexpr std::size_t kPartTableHead = 8;
constexpr std::size_t kFindingsMax = 16;  // damaged chunks named per object

bool all_zero(ByteSpan bytes) {
  return std::all_of(bytes.begin(), bytes.end(), [](std::uint8_t byte) { return byte == 0; });
}

std::unexpected<Error> corrupt(std::string what, std::string expected, std::string actual) {
  return fail(ErrorCode::kObjectCorrupt, std::move(what), {}, std::move(expected), std::move(actual));
}

std::string_view kind_name(ObjectKind kind) {
  switch (kind) {
    case ObjectKind::kFull:
      return "full version";
    case ObjectKind::kLog:
      return "log";
    case ObjectKind::kStep:
      return "step message";
    case ObjectKind::kSide:
      return "side state";
    case ObjectKind::kMeta:
      return "lineage record";
  }
  return "unknown kind";
}

bool has_shard(ObjectKind kind) {
  return kind == ObjectKind::kFull || kind == ObjectKind::kLog;
}

}  // namespace

std::string describe(const ObjectIdentity& identity) {
  std::string text(kind_name(identity.kind));
  if (has_shard(identity.kind)) text += fmt::format(" of shard {}", identity.shard);
  if (identity.kind != ObjectKind::kMeta) text += fmt::format(" step {}", identity.step);
  return text + fmt::format(" lineage {} job {}", identity.lineage, to_hex(identity.job));
}

Result<ObjectIdentity> identity_of(std::string_view key) {
  const auto parsed = parse_key(key);
  ObjectIdentity identity;
  if (parsed) {
    identity.job = job_id(parsed->job);
    identity.lineage = parsed->lineage;
    identity.shard = parsed->shard;
    identity.step = parsed->step;
    switch (parsed->kind) {
      case KeyKind::kFull:
        identity.kind = ObjectKind::kFull;
        return identity;
      case KeyKind::kLog:
        identity.kind = ObjectKind::kLog;
        return identity;
      case KeyKind::kStep:
        identity.kind = ObjectKind::kStep;
        return identity;
      case KeyKind::kSide:
        identity.kind = ObjectKind::kSide;
        return identity;
      case KeyKind::kMeta:
        identity.kind = ObjectKind::kMeta;
        return identity;
      default:
        break;
    }
  }
  return fail(ErrorCode::kBadText, "key is none of a data object", std::string(key.substr(0, 200)),
              "a key as in docs/formats.md");
}

std::uint64_t ObjectHeader::chunks() const {
  return stored_bytes / chunk_bytes + (stored_bytes % chunk_bytes != 0 ? 1 : 0);
}

std::uint64_t ObjectHeader::object_bytes() const {
  return kObjectHeaderBytes + stored_bytes + chunks() * sizeof(std::uint64_t);
}

std::array<std::uint8_t, kObjectHeaderBytes> encode(const ObjectHeader& header) {
  std::array<std::uint8_t, kObjectHeaderBytes> out{};
  std::uint8_t* const p = out.data();
  std::memcpy(p, kMagic, sizeof kMagic);
  store_le<std::uint16_t>(p + 4, kObjectFormat);
  p[6] = static_cast<std::uint8_t>(header.identity.kind);
  p[7] = header.codec;
  p[8] = header.encryption;
  store_le<std::uint32_t>(p + 12, header.identity.shard);
  std::memcpy(p + 16, header.identity.job.data(), header.identity.job.size());
  store_le<std::uint32_t>(p + 32, header.identity.lineage);
  store_le<std::uint32_t>(p + 36, header.chunk_bytes);
  store_le<std::uint64_t>(p + 40, header.identity.step);
  store_le<std::uint64_t>(p + 48, header.plain_bytes);
  store_le<std::uint64_t>(p + 56, header.stored_bytes);
  std::memcpy(p + kTableHashAt, header.chunk_table_hash.data(), header.chunk_table_hash.size());
  store_le<std::uint64_t>(p + kHashedBytes, XXH3_64bits(p, kHashedBytes));
  return out;
}

Result<ObjectHeader> parse_object_header(ByteSpan bytes) {
  if (bytes.size() < kObjectHeaderBytes)
    return corrupt("object is shorter than its header", fmt::format("{} bytes", kObjectHeaderBytes),
                   fmt::format("{} bytes", bytes.size()));
  const std::uint8_t* const p = bytes.data();
  if (std::memcmp(p, kMagic, sizeof kMagic) != 0) return corrupt("object has another magic", "GTOB", to_hex(p, 4));
  const auto format = load_le<std::uint16_t>(p + 4);
  const auto expected = load_le<std::uint64_t>(p + kHashedBytes);
  const std::uint64_t actual = XXH3_64bits(p, kHashedBytes);
  // A newer format may have another header: its number speaks before the hash, which may be elsewhere.
  if (format > kObjectFormat)
    return fail(ErrorCode::kStoreFormat, "object has a format that this build does not read", {},
                fmt::format("1..{}", kObjectFormat), fmt::format("{}", format), "use the newer gradtap that wrote it");
  if (expected != actual || format == 0)
    return corrupt("object header differs from its checksum", fmt::format("{:016x}", expected),
                   fmt::format("{:016x}", actual));
  ObjectHeader header;
  header.codec = p[7];
  header.encryption = p[8];
  if (header.codec != 0 || header.encryption != 0)
    return fail(ErrorCode::kStoreFormat, "object has a codec or an encryption that this build does not read", {},
                "0, 0", fmt::format("{}, {}", header.codec, header.encryption), "use the newer gradtap that wrote it");
  if (p[6] < static_cast<std::uint8_t>(ObjectKind::kFull) || p[6] > static_cast<std::uint8_t>(ObjectKind::kMeta))
    return corrupt("object has an unknown kind", "1..5", fmt::format("{}", p[6]));
  header.identity.kind = static_cast<ObjectKind>(p[6]);
  header.identity.shard = load_le<std::uint32_t>(p + 12);
  std::memcpy(header.identity.job.data(), p + 16, header.identity.job.size());
  header.identity.lineage = load_le<std::uint32_t>(p + 32);
  header.chunk_bytes = load_le<std::uint32_t>(p + 36);
  header.identity.step = load_le<std::uint64_t>(p + 40);
  header.plain_bytes = load_le<std::uint64_t>(p + 48);
  header.stored_bytes = load_le<std::uint64_t>(p + 56);
  std::memcpy(header.chunk_table_hash.data(), p + kTableHashAt, header.chunk_table_hash.size());
  if (header.chunk_bytes < kObjectChunkMin || header.stored_bytes > kObjectPayloadMax ||
      header.plain_bytes != header.stored_bytes || !all_zero(bytes.subspan(9, 3)) || !all_zero(bytes.subspan(80, 8)))
    return corrupt(
        "object header is impossible", fmt::format("chunks of {} bytes at least", kObjectChunkMin),
        fmt::format("chunk {}, plain {}, stored {}", header.chunk_bytes, header.plain_bytes, header.stored_bytes));
  return header;
}

std::vector<ByteSpan> SealedObject::parts() const {
  std::vector<ByteSpan> out{ByteSpan(header)};
  out.insert(out.end(), payload.begin(), payload.end());
  out.emplace_back(chunk_table);
  return out;
}

SealedObject seal_object(const ObjectIdentity& identity, std::vector<ByteSpan> payload) {
  SealedObject object;
  object.payload = std::move(payload);
  ObjectHeader header;
  header.identity = identity;
  XXH3_state_t* const state = XXH3_createState();
  XXH3_64bits_reset(state);
  std::uint64_t in_chunk = 0;
  const auto close_chunk = [&] {
    const std::uint64_t hash = XXH3_64bits_digest(state);
    const auto* const bytes = reinterpret_cast<const std::uint8_t*>(&hash);
    object.chunk_table.insert(object.chunk_table.end(), bytes, bytes + sizeof hash);
    XXH3_64bits_reset(state);
    in_chunk = 0;
  };
  for (ByteSpan rest : object.payload) {
    header.stored_bytes += rest.size();
    while (!rest.empty()) {
      const std::size_t count = std::min<std::uint64_t>(rest.size(), header.chunk_bytes - in_chunk);
      XXH3_64bits_update(state, rest.data(), count);
      in_chunk += count;
      rest = rest.subspan(count);
      if (in_chunk == header.chunk_bytes) close_chunk();
    }
  }
  if (in_chunk > 0) close_chunk();
  XXH3_freeState(state);
  header.plain_bytes = header.stored_bytes;
  header.chunk_table_hash = xxh3_128(object.chunk_table);
  object.header = encode(header);
  object.bytes = header.object_bytes();
  Sha256Stream sha;
  for (const ByteSpan part : object.parts()) sha.add(part.data(), part.size());
  object.sha256 = sha.finish();
  return object;
}

std::vector<std::uint8_t> encode_part_table(const std::vector<PartSize>& parts) {
  std::vector<std::uint8_t> out(kPartTableHead + parts.size() * kPartEntryBytes);
  store_le<std::uint32_t>(out.data(), static_cast<std::uint32_t>(parts.size()));
  for (std::size_t i = 0; i < parts.size(); ++i) {
    std::uint8_t* const p = out.data() + kPartTableHead + i * kPartEntryBytes;
    p[0] = parts[i].kind;
    store_le<std::uint64_t>(p + 8, parts[i].bytes);
  }
  return out;
}

Result<std::vector<Part>> parse_parts(ByteSpan payload) {
  ByteReader reader(payload);
  const auto count = reader.le<std::uint32_t>();
  const auto zero = reader.le<std::uint32_t>();
  if (!reader.ok() || zero != 0 || count > 256 || reader.remaining() < count * kPartEntryBytes)
    return corrupt("part table is malformed", "a count and an entry for each part", fmt::format("{} parts", count));
  ByteSpan rest = payload.subspan(kPartTableHead + count * kPartEntryBytes);
  std::vector<Part> parts;
  for (std::uint32_t i = 0; i < count; ++i) {
    const ByteSpan entry = reader.take(kPartEntryBytes);
    const auto bytes = load_le<std::uint64_t>(entry.data() + 8);
    const bool again = std::any_of(parts.begin(), parts.end(), [&](const Part& part) { return part.kind == entry[0]; });
    if (bytes > rest.size() || again || !all_zero(entry.subspan(1, 7)))
      return corrupt("part table is impossible", fmt::format("{} bytes at most", rest.size()),
                     fmt::format("part {} of kind {}: {} bytes", i, entry[0], bytes));
    parts.push_back({entry[0], rest.first(bytes)});
    rest = rest.subspan(bytes);
  }
  if (!rest.empty())
    return corrupt("payload is longer than its parts", "no more bytes", fmt::format("{} bytes", rest.size()));
  return parts;
}

// -- ObjectCheck ----------------------------------------------------------------------------------------------------

ObjectCheck::ObjectCheck(const schema::ObjectRef& ref)
    : ref_(ref), header_(corrupt("object has no header", {}, {})), hash_(XXH3_createState()) {
  XXH3_64bits_reset(hash_);
}

ObjectCheck::~ObjectCheck() {
  XXH3_freeState(hash_);
}

void ObjectCheck::add(ByteSpan bytes) {
  // What is longer than it may be is not kept: its length is the finding.
  sha_.add(bytes.data(), bytes.size());
  seen_ += bytes.size();
  if (head_.size() < kObjectHeaderBytes) {
    const std::size_t count = std::min(bytes.size(), kObjectHeaderBytes - head_.size());
    head_.insert(head_.end(), bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(count));
    bytes = bytes.subspan(count);
    if (head_.size() == kObjectHeaderBytes) {
      header_ = parse_object_header(head_);
      if (header_) {
        payload_left_ = header_->stored_bytes;
        chunk_left_ = header_->chunk_bytes;
      }
    }
  }
  if (!header_) return;
  const std::size_t count = std::min<std::uint64_t>(bytes.size(), payload_left_);
  add_payload(bytes.first(count));
  bytes = bytes.subspan(count);
  const std::uint64_t room = header_->chunks() * sizeof(std::uint64_t) - table_.size();
  bytes = bytes.first(std::min<std::uint64_t>(bytes.size(), room));
  table_.insert(table_.end(), bytes.begin(), bytes.end());
}

void ObjectCheck::add_payload(ByteSpan bytes) {
  payload_left_ -= bytes.size();
  while (!bytes.empty()) {
    const std::size_t count = std::min<std::uint64_t>(bytes.size(), chunk_left_);
    XXH3_64bits_update(hash_, bytes.data(), count);
    chunk_left_ -= count;
    bytes = bytes.subspan(count);
    if (chunk_left_ == 0) close_chunk();
  }
  if (payload_left_ == 0 && chunk_left_ < header_->chunk_bytes) close_chunk();
}

void ObjectCheck::close_chunk() {
  chunk_hashes_.push_back(XXH3_64bits_digest(hash_));
  XXH3_64bits_reset(hash_);
  chunk_left_ = header_->chunk_bytes;
}

std::vector<Finding> ObjectCheck::finish() {
  std::vector<Finding> findings;
  const auto identity = identity_of(ref_.key);
  if (seen_ != ref_.bytes)
    findings.push_back({ErrorCode::kObjectCorrupt, ref_.key, std::min(seen_, ref_.bytes), "object has another length",
                        fmt::format("{} bytes", ref_.bytes), fmt::format("{} bytes", seen_)});
  const Sha256 digest = sha_.finish();
  const std::string expected = "SHA-256 " + to_hex(ref_.sha256);
  const std::string actual = "SHA-256 " + to_hex(digest);
  if (digest != ref_.sha256 && findings.empty()) locate(findings, expected, actual);
  if (!findings.empty()) return findings;
  // The very bytes that the record names; are they what the key says?
  if (!header_)
    findings.push_back(
        {header_.error().code, ref_.key, 0, header_.error().what, header_.error().expected, header_.error().actual});
  else if (header_->object_bytes() != seen_)
    findings.push_back({ErrorCode::kObjectCorrupt, ref_.key, 0, "object does not have the length that its header says",
                        fmt::format("{} bytes", header_->object_bytes()), fmt::format("{} bytes", seen_)});
  else if (!identity || header_->identity != *identity)
    findings.push_back({ErrorCode::kObjectForeign, ref_.key, 0, "object is another one than its key says",
                        identity ? describe(*identity) : "a data object's key", describe(header_->identity)});
  return findings;
}

// The digest differs and the length does not: what the object's own digests tell about where.
void ObjectCheck::locate(std::vector<Finding>& findings, const std::string& expected, const std::string& actual) const {
  const auto found = [&](ErrorCode code, std::optional<std::uint64_t> offset, std::string what) {
    findings.push_back({code, ref_.key, offset, std::move(what), expected, actual});
  };
  if (!header_) return found(header_.error().code, 0, header_.error().what);
  const auto identity = identity_of(ref_.key);
  if (!identity || header_->identity != *identity) {
    const std::string is = describe(header_->identity);
    return found(ErrorCode::kObjectForeign, 0, fmt::format("object is another one than its key says ({})", is));
  }
  if (header_->object_bytes() != seen_)
    return found(ErrorCode::kObjectForeign, 0, "object has another header than the one that the record names");
  if (xxh3_128(table_) != header_->chunk_table_hash)
    return found(ErrorCode::kObjectCorrupt, kObjectHeaderBytes + header_->stored_bytes,
                 "chunk digests after the payload differ from the header");
  for (std::size_t i = 0; i < chunk_hashes_.size() && findings.size() < kFindingsMax; ++i)
    if (load_le<std::uint64_t>(table_.data() + i * sizeof(std::uint64_t)) != chunk_hashes_[i])
      found(ErrorCode::kObjectCorrupt, kObjectHeaderBytes + i * header_->chunk_bytes,
            fmt::format("a chunk of {} bytes at most differs from its digest", header_->chunk_bytes));
  if (findings.empty())
    found(ErrorCode::kObjectForeign, std::nullopt, "object is whole, but not the one that the record names");
}

}  // namespace gradtap::storage
