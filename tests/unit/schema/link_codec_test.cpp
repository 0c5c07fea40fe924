// The layout is held by golden frames (tests/unit/link); here: limits, hostile bytes, faults.
#include "schema/link_codec.h"

#include <string>

#include <doctest/doctest.h>

#include "common/random.h"

using namespace gradtap;
using namespace gradtap::schema;

TEST_CASE("headers are read as they were written") {
  LinkHello hello{"a", "b", {}, LinkKind::kControl};
  hello.cluster[31] = 9;
  CHECK(decode_link_hello(encode(hello)).value() == hello);
  LinkRequest request;
  request.credits = 1;
  request.text = std::string("zero \0 inside", 13);
  request.argument = ~std::uint64_t{0};
  CHECK(decode_link_request(encode(request)).value() == request);
  const LinkAnswer answer = decode_link_answer(encode(LinkAnswer{{}, "m", "i", 3})).value();
  CHECK_FALSE(answer.fault);
  CHECK(answer.meta == "m");
  CHECK(answer.identity == "i");
  CHECK(answer.chunks == 3);
  CHECK(decode_link_chunk(encode(LinkChunk{7})).value().index == 7);
  CHECK(decode_link_credit(encode(LinkCredit{7})).value().chunks == 7);
  CHECK_FALSE(decode_link_end(encode(LinkEnd{})).value().fault);
}

TEST_CASE("a fault keeps code and texts, always fits a header, and an unknown code stays readable") {
  const Error error{ErrorCode::kStoreCorrupt, "what", "where", "expected", "actual", "remedy"};
  const Error same = decode_link_end(encode(LinkEnd{error})).value().fault.value();
  CHECK(same.text() == error.text());
  const Error long_one{ErrorCode::kStoreCorrupt, std::string(1 << 20, 'w'), std::string(1 << 20, 'x'), {}, {}, {}};
  const auto bytes = encode(LinkEnd{long_one});
  CHECK(bytes.size() <= kLinkHeaderBytesMax);
  CHECK(decode_link_end(bytes).value().fault.value().what.size() == 4096);
  const Error newer{static_cast<ErrorCode>(9999), "what", {}, {}, {}, {}};
  const Error shown = decode_link_welcome(encode(LinkWelcome{"n", newer})).value().fault.value();
  CHECK(shown.code == ErrorCode::kUnsupported);
  CHECK(shown.what.find("9999") != std::string::npos);
}

TEST_CASE("impossible headers are refused") {
  LinkHello hello{"a", "b", {}, static_cast<LinkKind>(3)};
  CHECK(decode_link_hello(encode(hello)).error().code == ErrorCode::kPeerMalformed);
  CHECK(decode_link_request(encode(LinkRequest{})).error().code == ErrorCode::kPeerMalformed);  // no credits
  CHECK(decode_link_credit(encode(LinkCredit{})).error().code == ErrorCode::kPeerMalformed);
  CHECK(decode_link_hello({}).error().code == ErrorCode::kPeerMalformed);
  CHECK(decode_link_hello(std::vector<std::uint8_t>(kLinkHeaderBytesMax + 8)).error().code ==
        ErrorCode::kPeerMalformed);
  CHECK(decode_link_hello(std::vector<std::uint8_t>(9)).error().code == ErrorCode::kPeerMalformed);
}

TEST_CASE("hostile bytes are an error, never an exception") {
  SeededRandom random(11);
  const auto whole = encode(LinkRequest{4, {}, 3, 8, 42, 7, "some text", 5, 3, 64});
  std::size_t refused = 0;
  for (int round = 0; round < 20000; ++round) {
    auto changed = whole;
    for (std::uint64_t n = 1 + random.below(4); n > 0; --n)
      changed[random.below(changed.size())] = static_cast<std::uint8_t>(random.next());
    changed.resize(changed.size() - random.below(3) * 8);
    if (!decode_link_request(changed)) ++refused;
    (void)decode_link_answer(changed);
    (void)decode_link_hello(changed);
  }
  CHECK(refused > 1000);
}
