// Certificates and authorities change while links work: nothing is lost, and new connections show the new ones.
#include <atomic>

#include <doctest/doctest.h>

#include "link/node_link.h"
#include "tests/unit/link/secured_rig.h"

using namespace gradtap;
using namespace gradtap::link;
using namespace gradtap::link::testing;

namespace {

// Two links with a tunnel between them; a listener stands for the middleman of the second.
struct RenewingTunnel : SecuredRig {
  explicit RenewingTunnel(const std::function<void(NodeLinkOptions&)>& change = [](NodeLinkOptions&) {}) {
    auto there = secured(1, answering(pattern(3000)));
    there.control_target = middleman.port();
    change(there);
    b = started(std::move(there));
    auto here = secured(0, answering(pattern(3000)));
    change(here);
    a = started(std::move(here));
  }
  ~RenewingTunnel() {
    a->stop();
    b->stop();
  }
  // Another certificate for a member, found at once.
  void rotate(int i) {
    write_identity(folder_of(i), authority.certificate, signed_for(name(i)));
    (i == 0 ? a : b)->reload_certificates();
  }

  Listener middleman;
  std::unique_ptr<NodeLink> a;
  std::unique_ptr<NodeLink> b;
};

bool echoes(const Socket& from, const Socket& to, char byte) {
  char got = 0;
  return from.write(&byte, 1) && to.read(&got, 1) && got == byte;
}

}  // namespace

TEST_CASE("a tunnel's connection is replaced again and again under traffic: every byte arrives, once, in order") {
  RenewingTunnel rig([](NodeLinkOptions& options) {
    options.limits.reload_interval_ms = 5;
    options.limits.renew_after_ms = 1;  // always too old
  });
  const Socket here = dial("127.0.0.1", "127.0.0.1", rig.a->control_port("tap1"));
  const Socket there = rig.middleman.accept();
  REQUIRE(there.open());
  const auto bytes = pattern(12'000'007);
  const auto back = pattern(9'000'003, 5);
  std::vector<std::uint8_t> got(bytes.size());
  std::vector<std::uint8_t> got_back(back.size());
  std::thread writer([&] { CHECK(here.write(bytes)); });
  std::thread other([&] { CHECK(there.write(back)); });
  std::thread reader([&] { CHECK(here.read(got_back.data(), got_back.size())); });
  CHECK(there.read(got.data(), got.size()));
  writer.join();
  other.join();
  reader.join();
  CHECK(got == bytes);
  CHECK(got_back == back);
  // And when nothing flows.
  const std::uint64_t before = rig.counted(0, "tunnels_renewed");
  CHECK(rig.counts_to(0, "tunnels_renewed", before + 5));
  CHECK(rig.counts_to(1, "tunnels_renewed", before + 4));
  for (char byte = 'a'; byte < 'z'; ++byte) {
    CHECK(echoes(here, there, byte));
    CHECK(echoes(there, here, byte));
    std::this_thread::sleep_for(std::chrono::milliseconds(3));
  }
  CHECK(rig.counted(0, "tunnels") == 1);
  CHECK(rig.counted(1, "tunnels") == 1);
  CHECK(rig.counted(0, "tunnels_failed") == 0);
}

TEST_CASE("new certificates: connections made from then on show them, and old ones are replaced") {
  RenewingTunnel rig;
  const Socket here = dial("127.0.0.1", "127.0.0.1", rig.a->control_port("tap1"));
  const Socket there = rig.middleman.accept();
  REQUIRE(echoes(here, there, 'x'));
  REQUIRE(rig.a->call("tap1", {}, kForEverMs));
  CHECK(rig.counted(1, "accepted") == 2);
  rig.rotate(0);
  REQUIRE(rig.counts_to(0, "certificates_read", 1));
  CHECK(rig.counts_to(0, "tunnels_renewed", 1));
  CHECK(rig.told(
      0, read_certificates(read_small_file(rig.folder_of(0) + "/node.crt").value(), "x").value()[0].fingerprint));
  CHECK(rig.a->call("tap1", {}, kForEverMs)->bytes == pattern(3000));
  CHECK(rig.counted(1, "accepted") == 4);
  CHECK(echoes(here, there, 'y'));
  CHECK(echoes(there, here, 'z'));
  rig.a->reload_certificates();  // nothing new
  CHECK(rig.a->call("tap1", {}, kForEverMs));
  CHECK(rig.counted(1, "accepted") == 4);
}

TEST_CASE("a change of authority under calls and a tunnel: not one call fails, not one byte is lost") {
  RenewingTunnel rig;
  const Socket here = dial("127.0.0.1", "127.0.0.1", rig.a->control_port("tap1"));
  const Socket there = rig.middleman.accept();
  std::atomic<bool> stop{false};
  std::atomic<std::uint64_t> calls{0};
  std::thread caller([&] {
    while (!stop.load()) {
      const auto one = rig.a->call("tap1", {}, kForEverMs);
      const auto other = rig.b->call("tap0", {}, kForEverMs);
      if (!one) FAIL_CHECK(one.error().text());
      if (!other) FAIL_CHECK(other.error().text());
      calls.fetch_add(1);
    }
  });
  const auto calls_on = [&] {
    const std::uint64_t at = calls.load();
    for (int tries = 0; tries < 20000 && calls.load() < at + 3; ++tries)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    CHECK(calls.load() >= at + 3);
  };
  const std::string both = rig.authority.certificate + rig.stranger.certificate;
  std::uint64_t changes = 0;
  const auto change = [&](const std::string& authorities, const CertifiedKey& issuer) {
    ++changes;
    for (int i = 0; i < 2; ++i) {  // one node after the other
      write_identity(rig.folder_of(i), authorities,
                     issue_certificate(issuer, LinkRig::name(i), {}, valid_now()).value());
      (i == 0 ? rig.a : rig.b)->reload_certificates();
      REQUIRE(rig.counts_to(i, "certificates_read", changes));
      calls_on();
      CHECK(echoes(here, there, static_cast<char>('a' + changes)));
      CHECK(echoes(there, here, static_cast<char>('A' + changes)));
    }
  };
  change(both, rig.authority);
  change(both, rig.stranger);
  change(rig.stranger.certificate, rig.stranger);
  stop.store(true);
  caller.join();
  CHECK(rig.counts_to(0, "tunnels_renewed", 3));
  CHECK(rig.counted(0, "tunnels") == 1);
  // What the old authority signed is over.
  TlsPeer old(rig.from(2), false, &rig.shown[2]);
  (void)old.handshake();
  CHECK(old.alert().find("unknown ca") != std::string::npos);
}

TEST_CASE("certificates that cannot be used, or that the peer refuses, leave what stands as it is, and are told") {
  RenewingTunnel rig;
  const Socket here = dial("127.0.0.1", "127.0.0.1", rig.a->control_port("tap1"));
  const Socket there = rig.middleman.accept();
  REQUIRE(echoes(here, there, 'a'));
  REQUIRE(write_small_file(rig.folder_of(0) + "/node.crt", "garbage", 0644));
  rig.a->reload_certificates();
  CHECK(rig.counts_to(0, "certificates_unusable", 1));
  rig.a->reload_certificates();
  CHECK(rig.counts_to(0, "certificates_unusable", 2));
  CHECK(rig.told(0, "there is no certificate in the file"));
  CHECK(rig.a->call("tap1", {}, kForEverMs));
  // The node itself trusts both, its peer only the old one.
  write_identity(rig.folder_of(0), rig.stranger.certificate + rig.authority.certificate,
                 issue_certificate(rig.stranger, "tap0", {}, valid_now()).value());
  rig.a->reload_certificates();
  CHECK(rig.counts_to(0, "certificates_read", 1));
  CHECK(rig.counts_to(1, "refused_authority", 1));
  CHECK(rig.counts_to(0, "tunnels_failed", 1));
  const auto refused = rig.a->call("tap1", {}, kForEverMs);
  REQUIRE_FALSE(refused);
  CHECK(refused.error().code == ErrorCode::kPeerRefused);
  CHECK(echoes(here, there, 'b'));
  CHECK(echoes(there, here, 'c'));
  CHECK(rig.told(0, "does not accept this node's certificate"));
  // Put right, it is replaced after all.
  rig.rotate(0);
  CHECK(rig.counts_to(0, "tunnels_renewed", 1));
  CHECK(echoes(here, there, 'd'));
  CHECK(rig.a->call("tap1", {}, kForEverMs));
}

TEST_CASE("nobody takes the place of another one's tunnel") {
  RenewingTunnel rig;
  const Socket here = dial("127.0.0.1", "127.0.0.1", rig.a->control_port("tap1"));
  const Socket there = rig.middleman.accept();
  REQUIRE(echoes(here, there, 'a'));
  for (std::uint64_t number : {std::uint64_t{0}, std::uint64_t{1}, ~std::uint64_t{0}}) {
    TlsPeer peer(rig.from(2), false, &rig.shown[2]);
    REQUIRE(peer.handshake());
    REQUIRE(peer.write_frame(
        FrameType::kHello,
        schema::encode(schema::LinkHello{"tap2", "tap1", cluster(), schema::LinkKind::kControl, number, true})));
    const auto frame = peer.read_frame();
    REQUIRE(frame);
    CHECK(schema::decode_link_welcome(frame->header).value().fault);
  }
  CHECK(echoes(here, there, 'b'));
  CHECK(echoes(there, here, 'c'));
}
