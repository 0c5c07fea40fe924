// The members of a running link change: who comes can be called and may call, who goes can no more, who moved is called
// at its new place.
#include <doctest/doctest.h>

#include "link/node_link.h"
#include "tests/unit/link/link_rig.h"

using namespace gradtap;
using namespace gradtap::link;
using namespace gradtap::link::testing;

namespace {

BulkHandler saying(const std::string& word) {
  return [word](const std::string&, BulkRequest&&) -> Result<std::unique_ptr<ChunkSource>> {
    return std::make_unique<MemorySource>(std::vector<std::uint8_t>(word.begin(), word.end()), word, 64);
  };
}

}  // namespace

TEST_CASE("a member that comes later is called and calls; one that goes is refused") {
  LinkRig rig;
  auto first = rig.options(0, saying("a"));
  first.members = {rig.members[0], rig.members[1]};
  auto second = rig.options(1, saying("b"));
  second.members = first.members;
  const auto a = started(std::move(first));
  const auto b = started(std::move(second));
  const auto c = started(rig.options(2, saying("c")));
  CHECK(a->call("tap2", {}).error().code == ErrorCode::kPeerUnreachable);
  CHECK(a->control_port("tap2") == 0);
  CHECK(!c->call("tap0", {}, 500));  // its address is nobody's
  REQUIRE(a->set_members(rig.members));
  const std::uint16_t port = a->control_port("tap2");
  CHECK(port != 0);
  CHECK(a->call("tap2", {})->meta == "c");
  CHECK(c->call("tap0", {})->meta == "a");
  CHECK(a->call("tap1", {})->meta == "b");

  REQUIRE(a->set_members({rig.members[0], rig.members[1]}));
  CHECK(a->call("tap2", {}).error().code == ErrorCode::kPeerUnreachable);
  CHECK(a->call("tap1", {})->meta == "b");
  b->stop();
  c->stop();
  a->stop();
  CHECK(a->set_members(rig.members));  // a stopped link is left alone
}

TEST_CASE("a member that moved is called at its new place") {
  LinkRig rig;
  const auto a = started(rig.options(0, saying("a")));
  auto old = started(rig.options(1, saying("old")));
  CHECK(a->call("tap1", {})->meta == "old");
  old->stop();
  rig.members[1].port = free_port(LinkRig::address(1));
  const auto moved = started(rig.options(1, saying("new")));
  const std::uint16_t control = a->control_port("tap1");
  REQUIRE(a->set_members(rig.members));
  CHECK(a->call("tap1", {})->meta == "new");
  CHECK(a->control_port("tap1") == control);  // the middleman goes on using it
}
