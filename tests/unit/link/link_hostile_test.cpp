// Peers and strangers that do everything wrong. The link refuses them by name, stays bounded, and serves the others.
#include <doctest/doctest.h>

#include "common/random.h"
#include "link/node_link.h"
#include "tests/unit/link/link_rig.h"

using namespace gradtap;
using namespace gradtap::link;
using namespace gradtap::link::testing;

namespace {

struct Served : LinkRig {
  explicit Served(const std::function<void(LinkLimits&)>& limit = [](LinkLimits&) {}) {
    auto answerer = options(1, answering(pattern(10'000)));
    limit(answerer.limits);
    b = started(std::move(answerer));
    a = started(options(0, refusing()));
  }
  ~Served() {
    a->stop();
    b->stop();
  }
  Socket from(const std::string& address) const { return dial(address, LinkRig::address(1), members[1].port); }
  bool still_serves() { return a->call("tap1", {}, kForEverMs).value().bytes == pattern(10'000); }
  bool told(const std::string& part) {
    for (const Event& event : events[1].since(0))
      for (const LogField& field : event.fields)
        if (field.value.find(part) != std::string::npos) return true;
    return false;
  }

  std::unique_ptr<NodeLink> a;
  std::unique_ptr<NodeLink> b;
};

std::vector<std::uint8_t> hello_bytes(const schema::LinkHello& hello) {
  return frame_front(FrameType::kHello, schema::encode(hello), {});
}

// What the welcome to these bytes says.
Error refusal(const Socket& socket, const std::vector<std::uint8_t>& bytes) {
  REQUIRE(socket.open());
  CHECK(socket.write(bytes));
  const auto frame = socket.read_frame();
  REQUIRE(frame);
  REQUIRE(frame->type == FrameType::kWelcome);
  const auto welcome = schema::decode_link_welcome(frame->header);
  REQUIRE(welcome);
  REQUIRE(welcome->fault);
  CHECK(socket.ended());
  return *welcome->fault;
}

}  // namespace

TEST_CASE("an address of no member gets not a byte") {
  Served rig;
  const Socket stranger = rig.from("127.0.0.77");
  REQUIRE(stranger.open());
  CHECK(stranger.ended());
  CHECK(rig.counted(1, "refused_address") == 1);
  CHECK(rig.told("127.0.0.77"));
  CHECK(rig.still_serves());
}

TEST_CASE("a hello that is not a member's is refused by name") {
  const schema::LinkHello good{"tap0", "tap1", cluster(), schema::LinkKind::kBulk};
  struct Case {
    schema::LinkHello hello;
    const char* what;
  };
  std::vector<Case> cases(6, {good, ""});
  cases[0].hello.name = std::string("nobody");
  cases[0].what = "no other member";
  cases[1].hello.name = std::string("tap1");  // the link's own name
  cases[1].what = "no other member";
  cases[2].hello.name = std::string("tap2");  // a member, but not at this address
  cases[2].what = "another address";
  cases[3].hello.peer = std::string("tap2");
  cases[3].what = "looks for another";
  cases[4].hello.cluster[5] = 1;
  cases[4].what = "another cluster";
  cases[5].hello.name.assign(700, 'n');
  cases[5].what = "no other member";
  for (const Case& each : cases) {
    CAPTURE(each.what);
    Served rig;
    const Error error = refusal(rig.from(LinkRig::address(0)), hello_bytes(each.hello));
    CHECK(error.code == ErrorCode::kPeerRefused);
    CHECK_MESSAGE(error.what.find(each.what) != std::string::npos, error.text());
    CHECK(rig.counted(1, "refused_hello") == 1);
    CHECK(rig.told(each.what));
    CHECK(rig.still_serves());
  }
}

TEST_CASE("garbage, a newer format and impossible lengths are refused before anything is allocated") {
  Served rig;
  const auto good = hello_bytes({"tap0", "tap1", cluster(), schema::LinkKind::kBulk});
  const auto with = [&](std::size_t at, std::vector<std::uint8_t> bytes) {
    auto changed = good;
    std::copy(bytes.begin(), bytes.end(), changed.begin() + static_cast<std::ptrdiff_t>(at));
    return refusal(rig.from(LinkRig::address(0)), changed).code;
  };
  CHECK(with(0, {'H', 'T', 'T', 'P'}) == ErrorCode::kPeerMalformed);
  CHECK(with(4, {2, 0}) == ErrorCode::kUnsupported);
  CHECK(with(6, {3, 0}) == ErrorCode::kPeerMalformed);                    // the type is under the checksum
  CHECK(with(8, {0xFF, 0xFF, 0xFF, 0xFF}) == ErrorCode::kPeerMalformed);  // header
  CHECK(with(8, {0x01, 0x04, 0x00, 0x00}) == ErrorCode::kPeerMalformed);  // a header of 1025 bytes: no hello is so long
  CHECK(with(12, {0x00, 0x00, 0x40, 0x00}) == ErrorCode::kPeerMalformed);  // a hello with a payload
  CHECK(with(32, {1, 2, 3}) == ErrorCode::kPeerMalformed);                 // checksum
  const auto request = frame_front(FrameType::kRequest, schema::encode(schema::LinkRequest{}), {});
  CHECK(refusal(rig.from(LinkRig::address(0)), request).code == ErrorCode::kPeerMalformed);
  SeededRandom random(5);
  for (int round = 0; round < 100; ++round) {
    std::vector<std::uint8_t> noise(40 + random.below(200));
    for (auto& byte : noise) byte = static_cast<std::uint8_t>(random.next());
    const Socket socket = rig.from(LinkRig::address(0));
    (void)socket.write(noise);
    CHECK(socket.ended());
  }
  CHECK(rig.still_serves());
}

TEST_CASE("peers that stay silent are let go, and never more of them than the bound") {
  Served rig([](LinkLimits& limits) {
    limits.hellos_max = 4;
    limits.hello_timeout_ms = 150;
  });
  std::vector<Socket> silent;
  for (int i = 0; i < 40; ++i) silent.push_back(rig.from(LinkRig::address(0)));
  // Some were refused at the bound, the others at the timeout; half a hello is no better than none.
  const auto good = hello_bytes({"tap0", "tap1", cluster(), schema::LinkKind::kBulk});
  for (const Socket& socket : silent)
    if (socket.open()) (void)socket.write(good.data(), 30);
  for (const Socket& socket : silent)
    if (socket.open()) CHECK(socket.ended());
  CHECK(rig.counts_to(1, "hello_timeouts", 4));
  CHECK(rig.counted(1, "refused_busy") > 0);
  CHECK(rig.counted(1, "refused_busy") + rig.counted(1, "hello_timeouts") == 40);
  CHECK(rig.still_serves());
}

TEST_CASE("one peer cannot take more connections than the bound, and takes none from another") {
  Served rig([](LinkLimits& limits) { limits.connections_max = 3; });
  std::vector<Socket> taken;
  const schema::LinkHello hello{"tap2", "tap1", cluster(), schema::LinkKind::kBulk};
  for (int i = 0; i < 3; ++i) taken.push_back(rig.greeted(2, 1));
  const Error error = refusal(rig.from(LinkRig::address(2)), hello_bytes(hello));
  CHECK(error.code == ErrorCode::kNodeBusy);
  CHECK(rig.counted(1, "refused_busy") == 1);
  CHECK(rig.still_serves());
  taken.pop_back();
  // The place comes free when its thread has seen the end.
  bool again = false;
  for (int tries = 0; tries < 2000 && !again; ++tries) {
    const Socket socket = rig.from(LinkRig::address(2));
    REQUIRE(socket.write(hello_bytes(hello)));
    const auto frame = socket.read_frame();
    REQUIRE(frame);
    again = !schema::decode_link_welcome(frame->header).value().fault;
  }
  CHECK(again);
}

TEST_CASE("a peer that errs after its hello loses its connection, and nothing else happens") {
  Served rig([](LinkLimits& limits) {
    limits.body_bytes_max = 1000;
    limits.stall_timeout_ms = 150;
  });
  schema::LinkRequest request;
  request.credits = 1;
  std::uint64_t wrong = 0;
  const auto ends = [&](const std::function<void(const Socket&)>& act) {
    const Socket socket = rig.greeted(0, 1);
    act(socket);
    CHECK(socket.ended());
    CHECK(rig.counts_to(1, "malformed", ++wrong));
  };
  ends([](const Socket& s) { s.write(pattern(100)); });
  ends([](const Socket& s) { s.write_frame(FrameType::kAnswer, schema::encode(schema::LinkAnswer{})); });
  ends([](const Socket& s) { s.write_frame(FrameType::kRequest, pattern(64)); });
  ends([](const Socket& s) { s.write_frame(FrameType::kRequest, schema::encode(schema::LinkRequest{})); });
  ends([&](const Socket& s) {
    auto frame = frame_front(FrameType::kRequest, schema::encode(request), {});
    frame[4] = 2;
    s.write(frame);
  });
  ends([&](const Socket& s) {  // a body larger than allowed, announced
    request.body_bytes = 1001;
    s.write_frame(FrameType::kRequest, schema::encode(request));
  });
  ends([&](const Socket& s) {  // a body larger than announced
    request.body_bytes = 5;
    s.write_frame(FrameType::kRequest, schema::encode(request), pattern(6));
  });
  ends([&](const Socket& s) {
    request.body_bytes = 10;
    s.write_frame(FrameType::kRequest, schema::encode(request), pattern(6));
    s.write_frame(FrameType::kBody, {}, pattern(5));
  });
  ends([&](const Socket& s) {  // the checksum of the payload
    request.body_bytes = 4;
    s.write(frame_front(FrameType::kRequest, schema::encode(request), pattern(4)));
    s.write(pattern(4, 1));
  });
  ends([&](const Socket& s) {  // no credit, but another request, while the answer waits for credit
    request.body_bytes = 0;
    s.write_frame(FrameType::kRequest, schema::encode(request));
    s.write_frame(FrameType::kRequest, schema::encode(request));
  });
  {
    // A slow peer: the answer waits for credit that never comes, or for a body.
    const Socket slow = rig.greeted(0, 1);
    slow.write_frame(FrameType::kRequest, schema::encode(request));
    CHECK(slow.ended());
    const Socket half = rig.greeted(0, 1);
    request.body_bytes = 10;
    half.write_frame(FrameType::kRequest, schema::encode(request), pattern(6));
    CHECK(half.ended());
  }
  CHECK(rig.counted(1, "malformed") == wrong);
  CHECK(rig.still_serves());
}

TEST_CASE("answers that are not well formed are errors, never bytes") {
  using schema::encode;
  const auto answer = [](std::uint64_t chunks) { return encode(schema::LinkAnswer{{}, "", "id", chunks}); };
  struct Case {
    const char* what;
    std::function<void(const Socket&)> act;
    ErrorCode code;
  };
  const Case cases[] = {
      {"garbage", [](const Socket& s) { s.write(pattern(100)); }, ErrorCode::kPeerMalformed},
      {"a chunk before the answer",
       [](const Socket& s) { s.write_frame(FrameType::kChunk, encode(schema::LinkChunk{0}), pattern(10)); },
       ErrorCode::kPeerMalformed},
      {"the wrong chunk",
       [&](const Socket& s) {
         s.write_frame(FrameType::kAnswer, answer(2));
         s.write_frame(FrameType::kChunk, encode(schema::LinkChunk{1}), pattern(10));
       },
       ErrorCode::kPeerMalformed},
      {"a chunk too many",
       [&](const Socket& s) {
         s.write_frame(FrameType::kAnswer, answer(1));
         s.write_frame(FrameType::kChunk, encode(schema::LinkChunk{0}), pattern(10));
         s.write_frame(FrameType::kChunk, encode(schema::LinkChunk{1}), pattern(10));
       },
       ErrorCode::kPeerMalformed},
      {"an early end",
       [&](const Socket& s) {
         s.write_frame(FrameType::kAnswer, answer(2));
         s.write_frame(FrameType::kChunk, encode(schema::LinkChunk{0}), pattern(10));
         s.write_frame(FrameType::kEnd, encode(schema::LinkEnd{}));
       },
       ErrorCode::kPeerMalformed},
      {"a newer format",
       [&](const Socket& s) {
         auto frame = frame_front(FrameType::kAnswer, answer(2), {});
         frame[4] = 2;
         s.write(frame);
       },
       ErrorCode::kUnsupported},
      {"more than an answer may hold",
       [&](const Socket& s) {
         s.write_frame(FrameType::kAnswer, answer(~std::uint64_t{0}));
         for (std::uint64_t n = 0; n < 8; ++n)
           if (!s.write_frame(FrameType::kChunk, encode(schema::LinkChunk{n}), pattern(300'000))) return;
       },
       ErrorCode::kLimitReached},
      {"an answer without its chunks", [&](const Socket& s) { s.write_frame(FrameType::kAnswer, answer(3)); },
       ErrorCode::kPeerUnreachable},
  };
  for (const Case& each : cases) {
    CAPTURE(each.what);
    LinkRig rig;
    Listener listener(LinkRig::address(1));
    rig.members[1].port = listener.port();
    auto options = rig.options(0, refusing());
    options.limits.answer_bytes_max = 1'000'000;
    options.limits.breaks_max = 2;
    const auto a = started(std::move(options));
    std::thread peer([&] {
      for (;;) {
        const Socket socket = listener.accept();
        if (!socket.open()) return;
        if (!socket.read_frame()) continue;  // the hello
        socket.write_frame(FrameType::kWelcome, encode(schema::LinkWelcome{"tap1", {}}));
        if (!socket.read_frame()) continue;  // the request
        each.act(socket);
      }
    });
    const auto got = a->call("tap1", {}, kForEverMs);
    listener.stop();
    peer.join();
    REQUIRE_FALSE(got);
    CHECK_MESSAGE(got.error().code == each.code, got.error().text());
  }
}

TEST_CASE("a welcome of another node, a refusal and silence end a call with their own errors") {
  struct Case {
    std::optional<schema::LinkWelcome> welcome;
    ErrorCode code;
  };
  const Case cases[] = {
      {schema::LinkWelcome{"tap2", {}}, ErrorCode::kPeerRefused},
      {schema::LinkWelcome{"tap1", Error{ErrorCode::kPeerRefused, "no", {}, {}, {}, {}}}, ErrorCode::kPeerRefused},
      {schema::LinkWelcome{"tap1", Error{ErrorCode::kNodeBusy, "busy", {}, {}, {}, {}}}, ErrorCode::kNodeBusy},
      {std::nullopt, ErrorCode::kTimeout},
  };
  for (const Case& each : cases) {
    LinkRig rig;
    Listener listener(LinkRig::address(1));
    rig.members[1].port = listener.port();
    const auto a = started(rig.options(0, refusing()));
    std::thread peer([&] {
      std::vector<Socket> kept;
      for (;;) {
        Socket socket = listener.accept();
        if (!socket.open()) return;
        if (each.welcome && socket.read_frame()) socket.write_frame(FrameType::kWelcome, schema::encode(*each.welcome));
        kept.push_back(std::move(socket));
      }
    });
    const auto got = a->call("tap1", {}, 300);
    listener.stop();
    peer.join();
    REQUIRE_FALSE(got);
    CHECK_MESSAGE(got.error().code == each.code, got.error().text());
  }
}
