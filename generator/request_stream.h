// RequestStream: what a training script asks the generator to put on the wire (docs/generate.md, byte by byte).
//
// Purpose: a bounded reader of requests from a file descriptor: a Unix socket, a pipe or a file. Ownership: the payload
// of the last request, reused. Threads: one; reads block. Failure behaviour: a request that is not one, or is longer
// than the bound, ends the stream with a named error; the end between two requests is the end.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "common/bytes.h"
#include "common/error.h"
#include "generator/element.h"

namespace gradtap::generator {

enum class RequestKind : std::uint8_t {
  kAllReduce = 1,  // payload: the reduced vector
  kBroadcast = 2,  // payload: what `root` sends
  kAllGather = 3,  // payload: the blocks of all ranks, in rank order
  kMirror = 4,     // payload: a byte for the wrapping and the name of the interface that frames go to from now on
  kBlind = 5,      // payload: u64, how many of the next frames the mirror does not see
  kSend = 6,       // payload: what rank `root` sends to rank `target`
};

struct Request {
  RequestKind kind{};
  ElementType type = ElementType::kFloat32;
  std::uint32_t root = 0;
  std::uint32_t target = 0;
  std::uint64_t sequence = 0;
  ByteSpan payload;
};

inline constexpr std::size_t kRequestHeaderBytes = 32;
inline constexpr std::uint32_t kRequestMagic = 0x31475447;  // "GTG1"

struct RequestHeader {
  Request request;  // without payload
  std::uint64_t payload_bytes = 0;
};
// Pure.
[[nodiscard]] Result<RequestHeader> parse_request_header(ByteSpan header, std::uint64_t max_payload_bytes);

class RequestStream {
 public:
  RequestStream(int descriptor, std::uint64_t max_payload_bytes)
      : descriptor_(descriptor), max_payload_bytes_(max_payload_bytes) {}
  // Nothing: the stream ended between two requests. The payload is valid until the next call.
  [[nodiscard]] Result<std::optional<Request>> next();

 private:
  [[nodiscard]] Result<std::size_t> read_up_to(std::uint8_t* to, std::size_t count);

  int descriptor_;
  std::uint64_t max_payload_bytes_;
  std::vector<std::uint8_t> payload_;
};

}  // namespace gradtap::generator
