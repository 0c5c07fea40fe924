// Control connections as bytes: here plain sockets play both middlemen.
#include <doctest/doctest.h>

#include "link/node_link.h"
#include "tests/unit/link/link_rig.h"

using namespace gradtap;
using namespace gradtap::link;
using namespace gradtap::link::testing;

namespace {

constexpr const char* kLoopback = "127.0.0.1";

// Two links; the second one leads to a listener that stands for its middleman.
struct Tunnelled : LinkRig {
  explicit Tunnelled(std::uint64_t tunnels_max = 4) {
    auto there = options(1, refusing());
    there.control_target = middleman.port();
    there.limits.tunnels_max = tunnels_max;
    b = started(std::move(there));
    a = started(options(0, refusing()));
  }
  ~Tunnelled() {
    a->stop();
    if (b != nullptr) b->stop();
  }
  Socket dial_peer() const { return dial(kLoopback, kLoopback, a->control_port("tap1")); }

  Listener middleman;
  std::unique_ptr<NodeLink> a;
  std::unique_ptr<NodeLink> b;
};

}  // namespace

TEST_CASE("a control port leads to the peer's middleman, bytes pass both ways, unchanged and in order") {
  Tunnelled rig;
  CHECK(rig.a->control_port("tap0") == 0);
  CHECK(rig.a->control_port("nobody") == 0);
  CHECK(rig.a->control_port("tap2") != 0);
  const Socket here = rig.dial_peer();
  const Socket there = rig.middleman.accept();
  REQUIRE(there.open());
  const auto bytes = pattern(3'000'001);
  const auto back = pattern(2'000'001, 5);
  // Both directions at once, more than any buffer holds.
  std::thread writer([&] { CHECK(here.write(bytes)); });
  std::thread other([&] { CHECK(there.write(back)); });
  std::vector<std::uint8_t> got(bytes.size());
  std::vector<std::uint8_t> got_back(back.size());
  std::thread reader([&] { CHECK(here.read(got_back.data(), got_back.size())); });
  CHECK(there.read(got.data(), got.size()));
  writer.join();
  other.join();
  reader.join();
  CHECK(got == bytes);
  CHECK(got_back == back);
  CHECK(rig.counts_to(0, "tunnel_bytes", bytes.size() + back.size()));
}

TEST_CASE("when one side closes, the other is closed, whichever it is") {
  for (const bool near : {true, false}) {
    CAPTURE(near);
    Tunnelled rig;
    Socket here = rig.dial_peer();
    Socket there = rig.middleman.accept();
    REQUIRE(there.open());
    REQUIRE(here.write("x", 1));
    char byte = 0;
    REQUIRE(there.read(&byte, 1));
    (near ? here : there).close();
    CHECK((near ? there : here).ended());
    for (int tries = 0; tries < 20000 && rig.counted(1, "tunnels") + rig.counted(0, "tunnels") > 0; ++tries)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    CHECK(rig.counted(0, "tunnels") == 0);
    CHECK(rig.counted(1, "tunnels") == 0);
  }
}

TEST_CASE("a peer that is stopped closes its tunnels, and one that is down closes new ones at once") {
  Tunnelled rig;
  const Socket here = rig.dial_peer();
  const Socket there = rig.middleman.accept();
  REQUIRE(there.open());
  rig.b->stop();
  CHECK(here.ended());
  CHECK(there.ended());
  rig.b.reset();
  const Socket again = rig.dial_peer();
  REQUIRE(again.open());
  CHECK(again.ended());
  CHECK(rig.counts_to(0, "tunnels_failed", 1));
  // It comes back on the same address, and is reached by the same control port.
  auto there_again = rig.options(1, refusing());
  there_again.control_target = rig.middleman.port();
  rig.b = started(std::move(there_again));
  const Socket third = rig.dial_peer();
  const Socket fourth = rig.middleman.accept();
  REQUIRE(third.write("y", 1));
  char byte = 0;
  REQUIRE(fourth.read(&byte, 1));
  CHECK(byte == 'y');
}

TEST_CASE("a middleman that does not run yet, or is gone, closes the connection at once") {
  Tunnelled rig;
  rig.b->set_control_target(0);
  CHECK(rig.dial_peer().ended());
  rig.b->set_control_target(free_port(kLoopback));
  CHECK(rig.dial_peer().ended());
  CHECK(rig.counted(1, "tunnels_failed") == 2);
  CHECK(rig.counts_to(0, "tunnels_failed", 2));
  rig.b->set_control_target(rig.middleman.port());
  const Socket here = rig.dial_peer();
  CHECK(rig.middleman.accept().open());
}

TEST_CASE("tunnels are bounded, in both directions") {
  Tunnelled rig(2);
  std::vector<Socket> kept;
  for (int i = 0; i < 2; ++i) {
    kept.push_back(rig.dial_peer());
    kept.push_back(rig.middleman.accept());
  }
  CHECK(rig.dial_peer().ended());
  CHECK(rig.counted(1, "refused_busy") == 1);
  // And at the near end: four, by its own limit.
  rig.b->set_control_target(0);
  std::vector<Socket> near;
  for (int i = 0; i < 20; ++i) near.push_back(rig.dial_peer());
  for (const Socket& socket : near) CHECK(socket.ended());
  kept.clear();
  for (int tries = 0; tries < 20000 && rig.counted(1, "tunnels") + rig.counted(0, "tunnels") > 0; ++tries)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  rig.b->set_control_target(rig.middleman.port());
  const Socket here = rig.dial_peer();
  CHECK(rig.middleman.accept().open());
}

TEST_CASE("a control connection needs the same hello as any other") {
  Tunnelled rig;
  const schema::LinkHello stranger{"nobody", "tap1", cluster(), schema::LinkKind::kControl};
  const Socket socket = dial(LinkRig::address(0), LinkRig::address(1), rig.members[1].port);
  REQUIRE(socket.write_frame(FrameType::kHello, schema::encode(stranger)));
  const auto frame = socket.read_frame();
  REQUIRE(frame);
  CHECK(schema::decode_link_welcome(frame->header).value().fault->code == ErrorCode::kPeerRefused);
  CHECK(socket.ended());
  const Socket member = rig.greeted(0, 1, schema::LinkKind::kControl);
  const Socket there = rig.middleman.accept();
  REQUIRE(member.write("z", 1));
  char byte = 0;
  REQUIRE(there.read(&byte, 1));
  CHECK(byte == 'z');
}
