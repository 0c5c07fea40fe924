#include "dataplane/roce_flow_table.h"

#include <map>
#include <memory>
#include <set>

#include <doctest/doctest.h>

#include "tests/unit/dataplane/roce_traffic.h"

namespace gradtap::dataplane {
namespace {

using namespace testing;

class User final : public RoceFlowUser {
 public:
  RoceSink& opened(const RoceFlowIdentity& identity) override {
    return *(sinks[identity.flow] = std::make_unique<RoceCollector>());
  }
  [[nodiscard]] bool dispensable(const RoceFlowIdentity& identity) const override {
    return !kept.contains(identity.flow);
  }
  void closed(const RoceFlowIdentity& identity) override {
    REQUIRE(sinks.erase(identity.flow) == 1);
    gone.push_back(identity.flow);
  }
  std::map<std::uint32_t, std::unique_ptr<RoceCollector>> sinks;  // by flow
  std::set<std::uint32_t> kept;
  std::vector<std::uint32_t> gone;
};

constexpr std::uint64_t kSecondNs = 1'000'000'000;

// One message to queue pair `qp`.
void feed(RoceFlowTable& table, std::uint32_t qp, std::uint64_t now_ns, std::uint32_t key = 1,
          std::uint16_t source_port = 50000) {
  RoceSender sender(1024);
  sender.key = key;
  sender.source_port = source_port;
  sender.send(3000);
  for (RoceFrame frame : sender.packets) {
    frame.target_qp = qp;
    table.frame(frame, now_ns, 1);
  }
}

}  // namespace

TEST_CASE("a table that does not forget keeps what has ended, and refuses when it is full") {
  User user;
  RoceFlowTable table({.flow = {}, .max_flows = 4}, user);
  for (std::uint32_t qp = 1; qp <= 6; ++qp) feed(table, qp, qp * 100 * kSecondNs);
  CHECK(table.entries().size() == 4);
  CHECK(table.counters().refused > 0);
  CHECK(user.gone.empty());
}

TEST_CASE("a table that forgets lets the flow go whose number was given to another") {
  User user;
  RoceFlowTable table({.flow = {}, .max_flows = 4, .forget = true}, user);
  feed(table, 7, 0);
  feed(table, 7, 1, 1, 50001);  // another source port
  CHECK(table.counters().renewed == 1);
  CHECK(user.gone == std::vector<std::uint32_t>{0});
  REQUIRE(table.entries().size() == 1);
  CHECK(table.entries()[0]->identity.epoch == 1);
  CHECK(user.sinks.at(1)->messages.size() == 1);
  feed(table, 8, 2);
  CHECK(table.entries().size() == 2);
}

TEST_CASE("a full table that forgets makes room among the silent ones, but for those that are needed") {
  User user;
  RoceFlowTable table({.flow = {}, .max_flows = 4, .forget = true, .idle_ms = 10'000}, user);
  for (std::uint32_t qp = 1; qp <= 4; ++qp) feed(table, qp, qp * kSecondNs);
  user.kept = {0};
  feed(table, 5, 5 * kSecondNs);  // nobody has been silent for long
  CHECK(table.counters().refused > 0);
  CHECK(user.gone.empty());
  const std::uint64_t refused = table.counters().refused;
  feed(table, 5, 12 * kSecondNs + kSecondNs / 2);
  CHECK(table.counters().refused == refused);
  CHECK(user.gone == std::vector<std::uint32_t>{1});  // the oldest that may go
  CHECK(table.entries().size() == 4);
  CHECK(user.sinks.rbegin()->second->messages.size() == 1);
  feed(table, 1, 13 * kSecondNs);  // what is left is found as before
  CHECK(user.sinks.at(0)->messages.size() == 1);
  CHECK(table.entries().size() == 4);
  for (std::uint32_t i = 0; i < 1000; ++i) feed(table, 100 + i, (30 + 20 * i) * kSecondNs);
  CHECK(table.entries().size() <= 4);
  CHECK(table.counters().forgotten >= 990);
  CHECK(user.sinks.size() == table.entries().size());
  CHECK(user.sinks.contains(0));
}

}  // namespace gradtap::dataplane
