#include "recovery/zip_stream.h"

#include <array>

#include "recovery/append_le.h"

namespace gradtap::recovery {

namespace {

constexpr std::uint64_t kAlignment = 64;
constexpr std::size_t kLocalHeaderBytes = 30;
constexpr std::uint32_t kMask32 = 0xFFFF'FFFF;
constexpr std::uint16_t kMask16 = 0xFFFF;
constexpr std::uint16_t kVersionPlain = 20;
constexpr std::uint16_t kVersionZip64 = 45;
constexpr std::uint16_t kFlagDescriptor = 1U << 3;
constexpr std::uint16_t kFlagUtf8 = 1U << 11;
constexpr std::uint16_t kDate1980 = 0x21;  // a fixed date: equal states are equal files
constexpr std::uint16_t kExtraZip64 = 0x0001;
constexpr std::uint16_t kExtraPadding = 0x4246;  // "FB", the id that torch pads with

// Eight bytes at a time: tables[k][b] is the checksum of byte b followed by k zero bytes.
constexpr auto kTables = [] {
  std::array<std::array<std::uint32_t, 256>, 8> tables{};
  for (std::uint32_t b = 0; b < 256; ++b) {
    std::uint32_t crc = b;
    for (int bit = 0; bit < 8; ++bit) crc = (crc & 1) != 0 ? crc >> 1 ^ 0xEDB8'8320 : crc >> 1;
    tables[0][b] = crc;
  }
  for (std::size_t k = 1; k < 8; ++k)
    for (std::size_t b = 0; b < 256; ++b) tables[k][b] = tables[k - 1][b] >> 8 ^ tables[0][tables[k - 1][b] & 0xFF];
  return tables;
}();

}  // namespace

std::uint32_t crc32(std::uint32_t crc, ByteSpan bytes) {
  crc = ~crc;
  const std::uint8_t* at = bytes.data();
  std::size_t left = bytes.size();
  for (; left >= 8; left -= 8, at += 8) {
    const std::uint64_t word = load_le<std::uint64_t>(at) ^ crc;
    crc = 0;
    for (std::size_t k = 0; k < 8; ++k) crc ^= kTables[7 - k][word >> (8 * k) & 0xFF];
  }
  for (; left > 0; --left, ++at) crc = crc >> 8 ^ kTables[0][(crc ^ *at) & 0xFF];
  return ~crc;
}

Status ZipStream::emit(ByteSpan bytes) {
  position_ += bytes.size();
  return sink_(bytes);
}

Status ZipStream::emit(const std::string& bytes) {
  return emit(ByteSpan(reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size()));
}

Status ZipStream::open(std::string_view name, std::uint64_t bytes, std::uint32_t crc, bool described_after) {
  if (name.size() > 1024) return fail(ErrorCode::kOutOfRange, "a member's name is too long", std::string(name));
  const bool zip64 = bytes >= zip64_from_;
  Member member{std::string(name), position_, bytes, crc, described_after};
  std::string extra;
  if (zip64) {
    append_le(extra, kExtraZip64);
    append_le(extra, std::uint16_t{16});
    append_le(extra, described_after ? std::uint64_t{0} : bytes);
    append_le(extra, described_after ? std::uint64_t{0} : bytes);
  }
  const std::uint64_t before = position_ + kLocalHeaderBytes + name.size() + extra.size() + 4;
  const std::uint64_t padding = (kAlignment - before % kAlignment) % kAlignment;
  append_le(extra, kExtraPadding);
  append_le(extra, static_cast<std::uint16_t>(padding));
  extra.append(padding, 'Z');

  std::string header = "PK\x03\x04";
  append_le(header, zip64 ? kVersionZip64 : kVersionPlain);
  append_le(header, static_cast<std::uint16_t>(kFlagUtf8 | (described_after ? kFlagDescriptor : 0)));
  append_le(header, std::uint16_t{0});  // stored
  append_le(header, std::uint16_t{0});
  append_le(header, kDate1980);
  const std::uint32_t size = zip64 ? kMask32 : described_after ? 0 : static_cast<std::uint32_t>(bytes);
  append_le(header, crc);
  append_le(header, size);
  append_le(header, size);
  append_le(header, static_cast<std::uint16_t>(name.size()));
  append_le(header, static_cast<std::uint16_t>(extra.size()));
  members_.push_back(std::move(member));
  written_ = 0;
  return emit(header + std::string(name) + extra);
}

Status ZipStream::add(std::string_view name, std::string_view bytes) {
  const ByteSpan span(reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size());
  GRADTAP_TRY(open(name, bytes.size(), crc32(0, span), false));
  return emit(span);
}

Status ZipStream::begin(std::string_view name, std::uint64_t bytes) {
  return open(name, bytes, 0, true);
}

Status ZipStream::write(ByteSpan part) {
  Member& member = members_.back();
  if (part.size() > member.bytes - written_)
    return fail(ErrorCode::kOutOfRange, "a member gets more bytes than announced", member.name,
                std::to_string(member.bytes));
  member.crc = crc32(member.crc, part);
  written_ += part.size();
  return emit(part);
}

Status ZipStream::end() {
  const Member& member = members_.back();
  if (written_ != member.bytes)
    return fail(ErrorCode::kOutOfRange, "a member gets fewer bytes than announced", member.name,
                std::to_string(member.bytes), std::to_string(written_));
  std::string descriptor = "PK\x07\x08";
  append_le(descriptor, member.crc);
  if (member.bytes >= zip64_from_) {
    append_le(descriptor, member.bytes);
    append_le(descriptor, member.bytes);
  } else {
    append_le(descriptor, static_cast<std::uint32_t>(member.bytes));
    append_le(descriptor, static_cast<std::uint32_t>(member.bytes));
  }
  return emit(descriptor);
}

Status ZipStream::finish() {
  const std::uint64_t start = position_;
  for (const Member& member : members_) {
    // All three or none: readers differ in how they take a part of them.
    const bool zip64 = member.bytes >= zip64_from_ || member.offset >= zip64_from_;
    std::string extra;
    if (zip64) {
      append_le(extra, kExtraZip64);
      append_le(extra, std::uint16_t{24});
      append_le(extra, member.bytes);
      append_le(extra, member.bytes);
      append_le(extra, member.offset);
    }
    const std::uint16_t version = zip64 ? kVersionZip64 : kVersionPlain;
    const std::uint32_t size = zip64 ? kMask32 : static_cast<std::uint32_t>(member.bytes);
    std::string entry = "PK\x01\x02";
    append_le(entry, version);
    append_le(entry, version);
    append_le(entry, static_cast<std::uint16_t>(kFlagUtf8 | (member.described_after ? kFlagDescriptor : 0)));
    append_le(entry, std::uint16_t{0});
    append_le(entry, std::uint16_t{0});
    append_le(entry, kDate1980);
    append_le(entry, member.crc);
    append_le(entry, size);
    append_le(entry, size);
    append_le(entry, static_cast<std::uint16_t>(member.name.size()));
    append_le(entry, static_cast<std::uint16_t>(extra.size()));
    append_le(entry, std::uint16_t{0});  // comment
    append_le(entry, std::uint16_t{0});  // disk
    append_le(entry, std::uint16_t{0});  // internal attributes
    append_le(entry, std::uint32_t{0});  // external attributes
    append_le(entry, zip64 ? kMask32 : static_cast<std::uint32_t>(member.offset));
    GRADTAP_TRY(emit(entry + member.name + extra));
  }
  const std::uint64_t directory = position_ - start;
  const std::uint64_t count = members_.size();
  std::string tail;
  const bool zip64 = start >= zip64_from_ || directory >= zip64_from_ || count >= kMask16;
  if (zip64) {
    tail += "PK\x06\x06";
    append_le(tail, std::uint64_t{44});  // bytes that follow
    append_le(tail, kVersionZip64);
    append_le(tail, kVersionZip64);
    append_le(tail, std::uint32_t{0});
    append_le(tail, std::uint32_t{0});
    append_le(tail, count);
    append_le(tail, count);
    append_le(tail, directory);
    append_le(tail, start);
    tail += "PK\x06\x07";
    append_le(tail, std::uint32_t{0});
    append_le(tail, position_);
    append_le(tail, std::uint32_t{1});
  }
  tail += "PK\x05\x06";
  append_le(tail, std::uint16_t{0});
  append_le(tail, std::uint16_t{0});
  append_le(tail, zip64 ? kMask16 : static_cast<std::uint16_t>(count));
  append_le(tail, zip64 ? kMask16 : static_cast<std::uint16_t>(count));
  append_le(tail, zip64 ? kMask32 : static_cast<std::uint32_t>(directory));
  append_le(tail, zip64 ? kMask32 : static_cast<std::uint32_t>(start));
  append_le(tail, std::uint16_t{0});
  return emit(tail);
}

}  // namespace gradtap::recovery
