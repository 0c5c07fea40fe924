// The node link under mutual TLS, and peers that have no right to it: each is refused by name and counted by reason,
// and the others are served.
#include <functional>
#include <optional>

#include <doctest/doctest.h>

#include "common/random.h"
#include "link/node_link.h"
#include "tests/unit/link/secured_rig.h"

using namespace gradtap;
using namespace gradtap::link;
using namespace gradtap::link::testing;

namespace {

struct Secured : SecuredRig {
  explicit Secured(const std::function<void(NodeLinkOptions&)>& change = [](NodeLinkOptions&) {}) {
    auto answerer = secured(1, answering(pattern(10'000)));
    change(answerer);
    b = started(std::move(answerer));
    a = started(secured(0, refusing()));
  }
  ~Secured() {
    a->stop();
    b->stop();
  }
  bool still_serves() {
    const auto answer = a->call("tap1", {}, kForEverMs);
    if (!answer) MESSAGE(answer.error().text());
    return answer && answer->bytes == pattern(10'000);
  }
  bool counts(const std::string& counter) { return counts_to(1, counter, 1) && counted(1, counter) == 1; }

  std::unique_ptr<NodeLink> a;
  std::unique_ptr<NodeLink> b;
};

schema::LinkHello hello_of(const std::string& name) {
  return {name, "tap1", cluster(), schema::LinkKind::kBulk};
}

}  // namespace

TEST_CASE("requests and answers of many megabytes pass under TLS, unchanged, in both directions") {
  SecuredRig rig;
  const auto bytes = pattern(9'000'001);
  const auto b = started(
      rig.secured(1, [&](const std::string& peer, BulkRequest&& request) -> Result<std::unique_ptr<ChunkSource>> {
        CHECK(peer == "tap0");
        CHECK(request.body == pattern(5'000'003, 9));
        return std::make_unique<MemorySource>(bytes, "meta", 1'000'000);
      }));
  const auto a = started(rig.secured(0, answering(pattern(77))));
  BulkRequest request;
  request.body = pattern(5'000'003, 9);
  const auto answer = a->call("tap1", request, kForEverMs);
  if (!answer) FAIL(answer.error().text());
  CHECK(answer->bytes == bytes);
  CHECK(b->call("tap0", {}, kForEverMs).value().bytes == pattern(77));
  for (int i = 0; i < 20; ++i) CHECK(b->call("tap0", {}, kForEverMs));
  CHECK(rig.counted(0, "accepted") == 1);
  CHECK(rig.counted(1, "accepted") == 1);
}

TEST_CASE("a member with the right certificate is let in by TLS 1.3, whoever wrote its program") {
  Secured rig;
  TlsPeer peer(rig.from(2), false, &rig.shown[2]);
  REQUIRE(peer.handshake());
  CHECK(peer.version() == "TLSv1.3");
  REQUIRE(peer.write_frame(FrameType::kHello, schema::encode(hello_of("tap2"))));
  const auto welcome = peer.read_frame();
  REQUIRE(welcome);
  CHECK_FALSE(schema::decode_link_welcome(welcome->header).value().fault);
  // And by the openssl program, which also checks our certificate and its name.
  const std::string common = "s_client -connect 127.0.0.2:" + std::to_string(rig.members[1].port) +
                             " -bind 127.0.0.3:0 -CAfile " + rig.folder_of(2) + "/ca.crt -verify_return_error";
  const std::string shows = " -cert " + rig.folder_of(2) + "/node.crt -key " + rig.folder_of(2) + "/node.key";
  const Said good = openssl(common + " -verify_hostname tap1" + shows);
  CHECK_MESSAGE(good.text.find("Verify return code: 0 (ok)") != std::string::npos, good.text);
  CHECK(good.text.find("TLSv1.3") != std::string::npos);
  CHECK(openssl(common + " -verify_hostname tap0" + shows).text.find("hostname mismatch") != std::string::npos);
  CHECK(openssl(common + " -tls1_2" + shows).code != 0);
  CHECK(rig.still_serves());
}

TEST_CASE("who shows no certificate, or a wrong one, is refused by name, is told so, and is counted") {
  struct Case {
    const char* what;  // in the event
    const char* counter;
    const char* alert;  // of TLS
    std::function<std::optional<CertifiedKey>(Secured&)> shown;
  };
  const auto expired = [](Secured& rig) { return rig.signed_for("tap0", {now_s() - 20 * kDayS, now_s() - kDayS}); };
  const auto early = [](Secured& rig) { return rig.signed_for("tap0", {now_s() + kDayS, now_s() + 2 * kDayS}); };
  const auto foreign = [](Secured& rig) { return issue_certificate(rig.stranger, "tap0", {}, valid_now()).value(); };
  const auto itself = [](Secured&) { return make_authority("tap0", valid_now()).value(); };
  const auto issuer = [](Secured& rig) { return rig.authority; };
  const auto below = [](Secured& rig) {
    return issue_certificate(rig.shown[2], "tap0", {}, valid_now()).value();  // signed by a member
  };
  const Case cases[] = {
      {"shows no certificate", "refused_no_certificate", "certificate required",
       [](Secured&) { return std::optional<CertifiedKey>(); }},
      {"has expired", "refused_expired", "certificate expired", expired},
      {"not valid yet", "refused_expired", "bad certificate", early},
      {"not of this cluster's authority", "refused_authority", "unknown ca", foreign},
      {"not of this cluster's authority", "refused_authority", "unknown ca", itself},
      {"not of this cluster's authority", "refused_authority", "", issuer},
      {"not of this cluster's authority", "refused_authority", "unknown ca", below},
  };
  for (const Case& each : cases) {
    CAPTURE(each.what);
    CAPTURE(each.alert);
    Secured rig;
    const auto shown = each.shown(rig);
    TlsPeer peer(rig.from(0), false, shown ? &*shown : nullptr);
    (void)peer.handshake();  // TLS 1.3: the client is through before it is judged
    (void)peer.write_frame(FrameType::kHello, schema::encode(hello_of("tap0")));
    const std::string alert = peer.alert();
    CHECK_MESSAGE(alert.find(each.alert) != std::string::npos, alert);
    CHECK(alert != "no alert, but bytes");
    CHECK(rig.counts(each.counter));
    CHECK(rig.told(1, each.what));
    CHECK(rig.told(1, LinkRig::address(0)));
    CHECK(rig.still_serves());
  }
}

TEST_CASE("a right certificate opens the door to its own name only") {
  struct Case {
    const char* shown;
    const char* claims;
    ErrorCode code;
    const char* counter;
    const char* what;
  };
  const Case cases[] = {
      {"tap2", "tap0", ErrorCode::kPeerUntrusted, "refused_name", "another name"},
      {"tap9", "tap0", ErrorCode::kPeerUntrusted, "refused_name", "another name"},
      {"TAP0", "tap0", ErrorCode::kPeerUntrusted, "refused_name", "another name"},
      {"tap9", "tap9", ErrorCode::kPeerRefused, "refused_hello", "no other member"},
      {"tap1", "tap1", ErrorCode::kPeerRefused, "refused_hello", "no other member"},
      {"tap2", "tap2", ErrorCode::kPeerRefused, "refused_hello", "another address"},  // it comes from tap0's
  };
  for (const Case& each : cases) {
    CAPTURE(each.shown);
    CAPTURE(each.claims);
    Secured rig;
    const CertifiedKey shown = rig.signed_for(each.shown);
    TlsPeer peer(rig.from(0), false, &shown);
    REQUIRE(peer.handshake());
    REQUIRE(peer.write_frame(FrameType::kHello, schema::encode(hello_of(each.claims))));
    const auto frame = peer.read_frame();
    REQUIRE(frame);
    const auto fault = schema::decode_link_welcome(frame->header).value().fault;
    REQUIRE(fault);
    CHECK(fault->code == each.code);
    CHECK_MESSAGE(fault->what.find(each.what) != std::string::npos, fault->text());
    CHECK(rig.counts(each.counter));
    CHECK(rig.told(1, each.what));
    CHECK(rig.still_serves());
  }
}

TEST_CASE("any address, where it is configured; the name is still needed") {
  Secured rig([](NodeLinkOptions& options) { options.any_address = true; });
  const auto greets = [&](const char* claims) {
    TlsPeer peer(dial("127.0.0.77", LinkRig::address(1), rig.members[1].port), false, &rig.shown[2]);
    REQUIRE(peer.handshake());
    REQUIRE(peer.write_frame(FrameType::kHello, schema::encode(hello_of(claims))));
    return !schema::decode_link_welcome(peer.read_frame().value().header).value().fault;
  };
  CHECK(greets("tap2"));
  CHECK_FALSE(greets("tap0"));
  Secured closed;
  CHECK(dial("127.0.0.77", LinkRig::address(1), closed.members[1].port).ended());
  CHECK(closed.counts("refused_address"));
}

TEST_CASE("plain text, old versions, garbage and handshakes that break off are refused by reason") {
  {
    Secured rig;
    const Socket socket = rig.from(0);
    REQUIRE(socket.write_frame(FrameType::kHello, schema::encode(hello_of("tap0"))));
    CHECK(socket.ended());
    CHECK(rig.counts("refused_plain_text"));
    CHECK(rig.told(1, "does not speak TLS"));
  }
  {
    Secured rig;
    const Socket socket = rig.from(0);
    const std::string request = "GET / HTTP/1.1\r\n\r\n";
    REQUIRE(socket.write(request.data(), request.size()));
    CHECK(socket.ended());
    CHECK(rig.counts("refused_plain_text"));
  }
  {
    Secured rig;
    TlsPeer peer(rig.from(0), false, &rig.shown[0], TLS1_2_VERSION);
    CHECK_FALSE(peer.handshake());
    CHECK(rig.counts("refused_handshake"));
    CHECK(rig.told(1, "older TLS"));
  }
  {
    Secured rig;
    Socket socket = rig.from(0);
    const std::uint8_t begun[] = {22, 3, 1, 2, 0, 1};  // a record of 512 bytes, one of them
    REQUIRE(socket.write(begun, sizeof begun));
    socket.close();
    CHECK(rig.counts("refused_handshake"));
  }
  Secured rig;
  SeededRandom random(11);
  for (int round = 0; round < 100; ++round) {
    std::vector<std::uint8_t> noise(40 + random.below(2000));
    for (auto& byte : noise) byte = static_cast<std::uint8_t>(random.next());
    if (round % 2 == 0) {  // a handshake record of garbage
      noise[0] = 22;
      noise[1] = 3;
      noise[2] = 1;
      noise[3] = static_cast<std::uint8_t>((noise.size() - 5) >> 8);
      noise[4] = static_cast<std::uint8_t>(noise.size() - 5);
    }
    const Socket socket = rig.from(0);
    (void)socket.write(noise);
    CHECK(socket.ended());
  }
  CHECK(rig.counted(1, "refused_plain_text") + rig.counted(1, "refused_handshake") == 100);
  CHECK(rig.still_serves());
}

TEST_CASE("silence before, in and after the handshake is let go in time") {
  Secured rig([](NodeLinkOptions& options) { options.limits.hello_timeout_ms = 150; });
  const Socket silent = rig.from(0);
  const Socket half = rig.from(0);
  const std::uint8_t begun[] = {22, 3, 1, 2, 0, 1};
  REQUIRE(half.write(begun, sizeof begun));
  CHECK(silent.ended());
  CHECK(half.ended());
  CHECK(rig.counts_to(1, "handshake_timeouts", 2));
  TlsPeer peer(rig.from(0), false, &rig.shown[0]);
  REQUIRE(peer.handshake());
  CHECK(peer.socket().ended());
  CHECK(rig.counts("hello_timeouts"));
  CHECK(rig.told(1, "did not finish its handshake"));
}

TEST_CASE("thousands of idle connections from a member's own address keep out nobody") {
  Secured rig([](NodeLinkOptions& options) {
    options.limits.hellos_max = 16;
    options.limits.hello_timeout_ms = 60'000;
  });
  constexpr std::uint64_t kIdle = 900;  // both ends of them are this process's
  std::vector<Socket> idle;
  for (std::uint64_t i = 0; i < kIdle; ++i) {
    idle.push_back(rig.from(2));
    REQUIRE(idle.back().open());
  }
  // All places are taken, for a minute; whoever comes from another address, or from the same, gets one.
  CHECK(rig.counts_to(1, "refused_busy", kIdle - 16));
  CHECK(rig.still_serves());
  TlsPeer peer(rig.from(2), false, &rig.shown[2]);
  REQUIRE(peer.handshake());
  REQUIRE(peer.write_frame(FrameType::kHello, schema::encode(hello_of("tap2"))));
  CHECK(peer.read_frame());
  std::size_t open = 0;
  for (const Socket& socket : idle) {
    char byte = 0;
    open += ::recv(socket.fd(), &byte, 1, MSG_DONTWAIT) < 0 && errno == EAGAIN ? 1 : 0;
  }
  CHECK(open <= 16);
}

TEST_CASE("a node takes no answer from one that cannot show the name it looks for") {
  struct Case {
    const char* what;
    ErrorCode code;
    std::function<std::optional<CertifiedKey>(SecuredRig&)> shown;
  };
  const auto name = [](SecuredRig& rig) { return rig.signed_for("tap2"); };
  const auto foreign = [](SecuredRig& rig) { return issue_certificate(rig.stranger, "tap1", {}, valid_now()).value(); };
  const auto expired = [](SecuredRig& rig) { return rig.signed_for("tap1", {now_s() - 20 * kDayS, now_s() - kDayS}); };
  const Case cases[] = {
      {"another name", ErrorCode::kPeerUntrusted, name},
      {"not of this cluster's authority", ErrorCode::kPeerUntrusted, foreign},
      {"has expired", ErrorCode::kPeerUntrusted, expired},
  };
  for (const Case& each : cases) {
    CAPTURE(each.what);
    SecuredRig rig;
    Listener listener(LinkRig::address(1));
    rig.members[1].port = listener.port();
    const auto a = started(rig.secured(0, refusing()));
    bool spoke = false;
    std::thread server([&] {
      const auto shown = each.shown(rig);
      for (;;) {
        Socket socket = listener.accept();
        if (!socket.open()) return;
        TlsPeer peer(std::move(socket), true, &*shown);
        if (peer.handshake() && peer.read_frame()) spoke = true;
      }
    });
    const auto answer = a->call("tap1", {}, kForEverMs);
    REQUIRE_FALSE(answer);
    CHECK(answer.error().code == each.code);
    CHECK_MESSAGE(answer.error().what.find(each.what) != std::string::npos, answer.error().text());
    const Socket control = dial("127.0.0.1", "127.0.0.1", a->control_port("tap1"));
    CHECK(control.ended());
    CHECK(rig.counts_to(0, "tunnels_failed", 1));
    CHECK(rig.told(0, each.what));
    listener.stop();
    server.join();
    CHECK_FALSE(spoke);  // not even the hello
  }
}

TEST_CASE("nodes whose security differs say so") {
  SecuredRig rig;
  const auto b = started(rig.secured(1, refusing()));
  const auto a = started(rig.options(0, refusing()));
  CHECK_FALSE(a->call("tap1", {}, kForEverMs));
  CHECK(rig.counts_to(1, "refused_plain_text", 1));
  const auto other = b->call("tap0", {}, kForEverMs);
  REQUIRE_FALSE(other);
  CHECK(other.error().code == ErrorCode::kPeerMalformed);
  CHECK(rig.told(0, "a peer speaks TLS, and this node does not"));
}
