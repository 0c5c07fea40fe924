// A link that is stopped while control connections come in, at any moment of their greeting: what they held is given
// back to something that still lives.
#include <chrono>
#include <thread>
#include <vector>

#include <doctest/doctest.h>

#include "common/random.h"
#include "tests/unit/link/secured_rig.h"

using namespace gradtap;
using namespace gradtap::link;
using namespace gradtap::link::testing;

TEST_CASE("a link stops at any moment of a greeting") {
  const Listener middleman;
  SeededRandom random(7);
  for (int round = 0; round < 30; ++round) {
    SecuredRig rig;
    NodeLinkOptions options = rig.secured(1, refusing());
    options.control_target = middleman.port();
    options.limits.tunnels_max = 64;
    auto link = started(std::move(options));
    std::vector<std::unique_ptr<TlsPeer>> peers;
    for (int i = 0; i < 6; ++i) {
      peers.push_back(std::make_unique<TlsPeer>(rig.from(0), false, &rig.shown[0]));
      REQUIRE(peers.back()->handshake());
    }
    for (auto& peer : peers)
      (void)peer->write_frame(FrameType::kHello,
                              schema::encode(schema::LinkHello{"tap0", "tap1", cluster(), schema::LinkKind::kControl,
                                                               random.next(), false}));
    // From none to all of them are through.
    CHECK(rig.counts_to(1, "tunnels", random.below(7)));
    std::this_thread::sleep_for(std::chrono::microseconds(random.below(500)));
    link->stop();
    link.reset();
  }
}
