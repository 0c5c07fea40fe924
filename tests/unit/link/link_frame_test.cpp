// Golden frames were made by the capnp tool and Python (golden/make_golden.py), not by this codec.
#include "link/link_frame.h"

#include <numeric>

#include <doctest/doctest.h>

#include "tests/test_files.h"

using namespace gradtap;
using namespace gradtap::link;
using gradtap::testing::golden;

namespace {

struct Parts {
  FrameHead head;
  ByteSpan head_bytes, header, payload;
};

// A whole frame in memory; an error when any part is not as it should be.
Result<Parts> read(ByteSpan bytes) {
  Parts parts;
  parts.head_bytes = bytes.first(std::min(bytes.size(), kFrameHeadBytes));
  const auto head = parse_frame_head(parts.head_bytes);
  if (!head) return std::unexpected<Error>(head.error());
  parts.head = *head;
  if (bytes.size() != kFrameHeadBytes + head->header_bytes + head->payload_bytes)
    return fail(ErrorCode::kPeerMalformed, "length");
  parts.header = bytes.subspan(kFrameHeadBytes, head->header_bytes);
  parts.payload = bytes.subspan(kFrameHeadBytes + head->header_bytes);
  GRADTAP_TRY(check_frame(parts.head_bytes, parts.header, parts.payload));
  return parts;
}

template <std::size_t N>
std::array<std::uint8_t, N> counting(std::uint8_t first) {
  std::array<std::uint8_t, N> out;
  std::iota(out.begin(), out.end(), first);
  return out;
}

}  // namespace

TEST_CASE("golden frames of format 1 read as what they were made from") {
  const auto hello_bytes = golden("link", "hello.1.hex");
  const Parts hello = read(hello_bytes).value();
  CHECK(hello.head.type == FrameType::kHello);
  CHECK(schema::decode_link_hello(hello.header).value() ==
        schema::LinkHello{"tap0", "tap1", counting<32>(0), schema::LinkKind::kBulk});

  const auto request_bytes = golden("link", "request.1.hex");
  const Parts request = read(request_bytes).value();
  CHECK(request.head.type == FrameType::kRequest);
  CHECK(schema::decode_link_request(request.header).value() ==
        schema::LinkRequest{4, counting<16>(0), 3, 8, 42, 7, "t", 5, 3, 64});
  CHECK(std::vector<std::uint8_t>(request.payload.begin(), request.payload.end()) ==
        std::vector<std::uint8_t>{1, 2, 3});

  const auto answer_bytes = golden("link", "answer.1.hex");
  const auto answer = schema::decode_link_answer(read(answer_bytes).value().header).value();
  REQUIRE(answer.fault);
  CHECK(answer.fault->code == ErrorCode::kStepUnavailable);
  CHECK(answer.fault->what == "gone");
  CHECK(answer.fault->where == "shard 8");
  CHECK(answer.fault->expected == "e");
  CHECK(answer.fault->actual == "a");
  CHECK(answer.fault->remedy == "r");

  const auto chunk_bytes = golden("link", "chunk.1.hex");
  const Parts chunk = read(chunk_bytes).value();
  CHECK(chunk.head.type == FrameType::kChunk);
  CHECK(schema::decode_link_chunk(chunk.header).value().index == 9);
  CHECK(chunk.payload.size() == 100);

  // And the other way: what is written is the golden frame.
  std::vector<std::uint8_t> written = frame_front(FrameType::kChunk, chunk.header, chunk.payload);
  written.insert(written.end(), chunk.payload.begin(), chunk.payload.end());
  CHECK(written == chunk_bytes);
}

TEST_CASE("every single-byte change and every cut of a frame is an error") {
  for (const char* const name : {"hello.1.hex", "request.1.hex", "chunk.1.hex"}) {
    CAPTURE(name);
    const auto whole = golden("link", name);
    REQUIRE(read(whole));
    for (std::size_t i = 0; i < whole.size(); ++i) {
      auto changed = whole;
      changed[i] ^= 0x41;
      CHECK_FALSE_MESSAGE(read(changed).has_value(), i);
      CHECK_FALSE(read(ByteSpan(whole).first(i)).has_value());
    }
  }
}

TEST_CASE("lengths are judged by the head alone, before anything is allocated") {
  const auto whole = golden("link", "chunk.1.hex");
  const auto judged = [&](std::size_t at, std::vector<std::uint8_t> bytes) {
    std::vector<std::uint8_t> head(whole.begin(), whole.begin() + kFrameHeadBytes);
    std::copy(bytes.begin(), bytes.end(), head.begin() + static_cast<std::ptrdiff_t>(at));
    return parse_frame_head(head);
  };
  CHECK(judged(8, {0x00, 0x00, 0x01, 0x00}).value().header_bytes == 65536);
  CHECK(judged(8, {0x01, 0x00, 0x01, 0x00}).error().code == ErrorCode::kPeerMalformed);
  CHECK(judged(12, {0x00, 0x00, 0x40, 0x00}).value().payload_bytes == 4194304);
  CHECK(judged(12, {0x01, 0x00, 0x40, 0x00}).error().code == ErrorCode::kPeerMalformed);
  CHECK(judged(12, {0xFF, 0xFF, 0xFF, 0xFF}).error().code == ErrorCode::kPeerMalformed);
  CHECK(judged(0, {'G', 'T', 'L', 'X'}).error().code == ErrorCode::kPeerMalformed);
  CHECK(judged(4, {2, 0}).error().code == ErrorCode::kUnsupported);
  CHECK(judged(4, {0, 0}).error().code == ErrorCode::kUnsupported);
  CHECK(judged(6, {0, 0}).error().code == ErrorCode::kPeerMalformed);
  CHECK(judged(6, {9, 0}).error().code == ErrorCode::kPeerMalformed);
}
