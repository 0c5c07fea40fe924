// SealedMessage: the one place that touches hostile Cap'n Proto bytes; used by the codecs of this floor only.
//
// Free functions, any thread. decoded() copies to aligned memory, bounds size, traversal and nesting, and lets no
// exception out: STORE_CORRUPT, STORE_FORMAT or LIMIT_REACHED.
#pragma once

#include <array>
#include <cstring>
#include <exception>
#include <string>
#include <string_view>
#include <vector>

#include <capnp/message.h>
#include <capnp/serialize.h>
#include <fmt/format.h>
#include <kj/exception.h>

#include "common/bytes.h"
#include "common/error.h"
#include "schema/envelope.h"

namespace gradtap::schema::sealed_message {

template <std::size_t N>
kj::ArrayPtr<const kj::byte> data(const std::array<std::uint8_t, N>& bytes) {
  return {bytes.data(), bytes.size()};
}

inline kj::ArrayPtr<const kj::byte> data(const std::vector<std::uint8_t>& bytes) {
  return {bytes.data(), bytes.size()};
}

inline kj::StringPtr text(const std::string& value) {
  return {value.c_str(), value.size()};
}

template <class Builder>
void fill(Builder list, const std::vector<std::string>& values) {
  for (unsigned i = 0; i < values.size(); ++i) list.set(i, text(values[i]));
}

inline std::vector<std::uint8_t> sealed(RecordType type, capnp::MessageBuilder& message) {
  const kj::Array<capnp::word> words = capnp::messageToFlatArray(message);
  const auto bytes = words.asBytes();
  return seal(type, {bytes.begin(), bytes.size()});
}

inline std::unexpected<Error> malformed(std::string_view what, std::string_view actual) {
  return fail(ErrorCode::kStoreCorrupt, "record is malformed", std::string(what), {}, std::string(actual));
}

// The one place that touches hostile Cap'n Proto: aligned copy, bounded traversal, no exception beyond it.
template <class Struct, class Record, class Read>
Result<Record> decoded(RecordType type, ByteSpan bytes, std::size_t bytes_max, Read read) {
  const Result<ByteSpan> payload = unseal(type, bytes);
  if (!payload) return std::unexpected<Error>(payload.error());
  if (payload->size() > bytes_max)
    return fail(ErrorCode::kLimitReached, "record is too large", {}, fmt::format("at most {} bytes", bytes_max),
                fmt::format("{} bytes", payload->size()));
  if (payload->size() % sizeof(capnp::word) != 0) return malformed("length", "not a multiple of 8 bytes");
  try {
    const std::size_t words = payload->size() / sizeof(capnp::word);
    kj::Array<capnp::word> aligned = kj::heapArray<capnp::word>(words);
    if (words > 0) std::memcpy(aligned.begin(), payload->data(), payload->size());
    capnp::ReaderOptions options;
    options.traversalLimitInWords = words * 2 + 1024;
    options.nestingLimit = 8;
    capnp::FlatArrayMessageReader reader(aligned, options);
    Record record;
    if (const std::string_view wrong = read(reader.getRoot<Struct>(), record); !wrong.empty())
      return malformed(wrong, "impossible value");
    return record;
  } catch (const kj::Exception& exception) {
    return malformed("message", exception.getDescription().cStr());
  } catch (const std::exception& exception) {
    return malformed("message", exception.what());
  }
}

template <std::size_t N>
bool copy_exact(capnp::Data::Reader from, std::array<std::uint8_t, N>& to) {
  if (from.size() != N) return false;
  std::memcpy(to.data(), from.begin(), N);
  return true;
}

inline std::string str(capnp::Text::Reader value) {
  return {value.begin(), value.size()};
}

template <class List>
std::vector<std::string> strings(List list) {
  std::vector<std::string> out;
  for (auto value : list) out.push_back(str(value));
  return out;
}

inline std::vector<std::uint8_t> bytes_of(capnp::Data::Reader value) {
  return {value.begin(), value.end()};
}

}  // namespace gradtap::schema::sealed_message
