#include "generator/request_stream.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <string>

#include <unistd.h>

namespace gradtap::generator {
namespace {

// A payload grows with what really comes, not with what a header promises.
constexpr std::size_t kReadBytes = 1U << 20;

constexpr std::array kTypes{ElementType::kFloat32, ElementType::kFloat64, ElementType::kFloat16, ElementType::kBfloat16,
                            ElementType::kInt32,   ElementType::kInt64,   ElementType::kUint8};

}  // namespace

Result<RequestHeader> parse_request_header(ByteSpan header, std::uint64_t max_payload_bytes) {
  ByteReader reader(header);
  RequestHeader parsed;
  const auto magic = reader.le<std::uint32_t>();
  const auto kind = reader.le<std::uint8_t>();
  const auto type = reader.le<std::uint8_t>();
  const auto reserved = reader.le<std::uint16_t>();
  parsed.request.root = reader.le<std::uint32_t>();
  parsed.request.target = reader.le<std::uint32_t>();
  parsed.request.sequence = reader.le<std::uint64_t>();
  parsed.payload_bytes = reader.le<std::uint64_t>();
  if (!reader.ok() || magic != kRequestMagic || reserved != 0)
    return fail(ErrorCode::kRequestMalformed, "this is no request to the generator", {}, "GTG1 and zeroes in between",
                {}, "the script and this program must be of the same version");
  if (kind < 1 || kind > static_cast<std::uint8_t>(RequestKind::kSend) || type >= kTypes.size())
    return fail(ErrorCode::kRequestMalformed, "the request's kind or element type is unknown", {}, {},
                "kind " + std::to_string(kind) + ", type " + std::to_string(type));
  if (parsed.request.target != 0 && kind != static_cast<std::uint8_t>(RequestKind::kSend))
    return fail(ErrorCode::kRequestMalformed, "only a send has a target", {}, "0",
                std::to_string(parsed.request.target));
  if (parsed.payload_bytes > max_payload_bytes)
    return fail(ErrorCode::kRequestTooLarge, "the request is longer than allowed", {},
                std::to_string(max_payload_bytes), std::to_string(parsed.payload_bytes), "raise --max-request-bytes");
  parsed.request.kind = static_cast<RequestKind>(kind);
  parsed.request.type = kTypes[type];
  return parsed;
}

Result<std::size_t> RequestStream::read_up_to(std::uint8_t* to, std::size_t count) {
  std::size_t done = 0;
  while (done < count) {
    const ssize_t got = ::read(descriptor_, to + done, count - done);
    if (got == 0) break;
    if (got < 0 && errno == EINTR) continue;
    if (got < 0)
      return fail(ErrorCode::kFileUnreadable, "the stream of requests cannot be read", {}, {}, std::strerror(errno));
    done += static_cast<std::size_t>(got);
  }
  return done;
}

Result<std::optional<Request>> RequestStream::next() {
  std::array<std::uint8_t, kRequestHeaderBytes> header;
  const auto got = read_up_to(header.data(), header.size());
  if (!got) return std::unexpected(got.error());
  if (*got == 0) return std::nullopt;
  const auto parsed = parse_request_header(ByteSpan(header).first(*got), max_payload_bytes_);
  if (!parsed) return std::unexpected(parsed.error());
  payload_.clear();
  while (payload_.size() < parsed->payload_bytes) {
    const std::size_t begin = payload_.size();
    const std::size_t wanted = std::min<std::uint64_t>(kReadBytes, parsed->payload_bytes - begin);
    payload_.resize(begin + wanted);
    const auto part = read_up_to(payload_.data() + begin, wanted);
    if (!part) return std::unexpected(part.error());
    if (*part < wanted)
      return fail(ErrorCode::kRequestMalformed, "the stream ends inside a request", {},
                  std::to_string(parsed->payload_bytes) + " bytes", std::to_string(begin + *part));
  }
  Request request = parsed->request;
  request.payload = payload_;
  return request;
}

}  // namespace gradtap::generator
