#include "dataplane/flow_directory.h"

#include <set>
#include <thread>

#include <doctest/doctest.h>

#include "tests/unit/dataplane/decode_harness.h"

namespace gradtap::dataplane {
namespace {

using namespace testing;

FlowKey key_of(int source, int target, std::uint16_t source_port, std::uint16_t target_port) {
  const auto endpoints = rig_endpoints(8);
  return {endpoints[static_cast<std::size_t>(source)], endpoints[static_cast<std::size_t>(target)], source_port,
          target_port};
}

TEST_CASE("ranks by address, in order; two ranks on one address are refused") {
  FlowDirectory directory;
  REQUIRE(directory.set_endpoints(rig_endpoints(4)).has_value());
  CHECK(directory.endpoints()->rank(parse_ip("10.77.0.12").value()) == 2);
  CHECK(!directory.endpoints()->rank(parse_ip("10.77.0.14").value()).has_value());
  auto twice = rig_endpoints(3);
  twice.push_back(twice[1]);
  const auto status = directory.set_endpoints(twice);
  REQUIRE(!status.has_value());
  CHECK(status.error().code == ErrorCode::kUnknownEndpoint);
  CHECK(directory.endpoints()->size() == 4);
}

TEST_CASE("both directions are one connection with one owner; ids are never reused") {
  FlowDirectory directory;
  const FlowKey key = key_of(1, 0, 4000, 5000);
  const auto first = directory.admit(key, 1, 0, 7);
  const auto back = directory.admit(key.reversed(), 0, 1, 3);
  REQUIRE(first.has_value());
  REQUIRE(back.has_value());
  CHECK(first->owner_queue == 7);
  CHECK(back->owner_queue == 7);
  CHECK(first->forward.flow == back->backward.flow);
  CHECK(first->backward.flow == back->forward.flow);
  CHECK(first->forward.source_rank == 1);
  CHECK(back->forward.source_rank == 0);
  CHECK(directory.connections() == 1);
  const auto renewed = directory.renew(key.reversed());
  REQUIRE(renewed.has_value());
  CHECK(renewed->epoch == 1);
  CHECK(renewed->owner_queue == 7);
  const std::set<std::uint32_t> ids{first->forward.flow, first->backward.flow, renewed->forward.flow,
                                    renewed->backward.flow};
  CHECK(ids.size() == 4);
  CHECK(renewed->forward.source_rank == 0);
  CHECK(directory.comm(first->forward.flow) == FlowDirectory::kNoComm);  // that epoch is over
}

TEST_CASE("comm: the ordinal among the proven connections of a rank pair") {
  FlowDirectory directory;
  const auto store = directory.admit(key_of(1, 0, 4000, 29500), 1, 0, 0);
  const auto one = directory.admit(key_of(1, 0, 4001, 6000), 1, 0, 0);
  const auto two = directory.admit(key_of(0, 1, 4001, 6001), 0, 1, 0);
  const auto other = directory.admit(key_of(2, 0, 4001, 6000), 2, 0, 0);
  CHECK(directory.comm(one->backward.flow) == 0);
  CHECK(directory.comm(two->forward.flow) == 1);
  CHECK(directory.comm(one->forward.flow) == 0);
  CHECK(directory.comm(other->forward.flow) == 0);
  CHECK(directory.comm(store->forward.flow) == 2);  // only if it ever proved to be gloo
}

TEST_CASE("comm: a run that ended in its start does not leave the pairs of the next one apart") {
  FlowDirectory directory;
  const auto first = directory.admit(key_of(1, 0, 4000, 5000), 1, 0, 0).value();
  const auto silent = directory.admit(key_of(2, 1, 4000, 5000), 2, 1, 0).value();  // never proved to be gloo
  CHECK(directory.comm(first.forward.flow) == 0);
  directory.closed(silent.forward.flow);
  CHECK(directory.ended_comms() == 0);
  directory.closed(first.forward.flow);
  CHECK(directory.ended_comms() == 1);
  const auto again = directory.admit(key_of(1, 0, 4001, 5001), 1, 0, 0).value();
  const auto other = directory.admit(key_of(2, 1, 4001, 5001), 2, 1, 0).value();
  CHECK(directory.comm(again.forward.flow) == 1);
  CHECK(directory.comm(other.forward.flow) == 1);
  // One of several connections that ends says nothing.
  directory.closed(again.forward.flow);
  CHECK(directory.ended_comms() == 1);
  const auto third = directory.admit(key_of(3, 2, 4001, 5001), 3, 2, 0).value();
  CHECK(directory.comm(third.forward.flow) == 1);
  CHECK(directory.comm(directory.admit(key_of(2, 1, 4002, 5002), 2, 1, 0)->forward.flow) == 2);
}

TEST_CASE("bounded: open connections are kept, closed ones make room") {
  FlowDirectory directory(4);
  std::vector<FlowAdmission> admitted;
  for (std::uint16_t i = 0; i < 4; ++i) admitted.push_back(directory.admit(key_of(1, 0, i, 1), 1, 0, 0).value());
  CHECK(!directory.admit(key_of(1, 0, 9, 1), 1, 0, 0).has_value());
  directory.closed(admitted[2].backward.flow);
  CHECK(directory.admit(key_of(1, 0, 9, 1), 1, 0, 0).has_value());
  CHECK(directory.connections() == 4);
}

TEST_CASE("reset ends the flows of the old lineage only") {
  FlowDirectory directory;
  const auto old = directory.admit(key_of(1, 0, 1, 1), 1, 0, 0).value();
  CHECK(directory.comm(old.forward.flow) == 0);
  const std::uint32_t mark = directory.next_flow();
  const auto fresh = directory.admit(key_of(1, 0, 2, 1), 1, 0, 0).value();
  const std::uint64_t generation = directory.generation();
  directory.reset(mark);
  CHECK(directory.generation() > generation);
  CHECK(directory.closed_below() == mark);
  CHECK(directory.connections() == 1);
  CHECK(directory.comm(fresh.forward.flow) == 1);
  directory.reset();
  CHECK(directory.connections() == 0);
  const auto next = directory.admit(key_of(1, 0, 3, 1), 1, 0, 0).value();
  CHECK(next.forward.flow >= directory.closed_below());
  CHECK(directory.comm(next.forward.flow) == 0);
}

TEST_CASE("several threads see one truth") {
  FlowDirectory directory;
  std::array<std::vector<FlowAdmission>, 4> seen;
  std::vector<std::thread> threads;
  for (std::uint16_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (std::uint16_t i = 0; i < 500; ++i) seen[t].push_back(directory.admit(key_of(1, 0, i, 1), 1, 0, t).value());
    });
  }
  for (auto& thread : threads) thread.join();
  for (std::size_t i = 0; i < 500; ++i) {
    for (std::size_t t = 1; t < 4; ++t) {
      REQUIRE(seen[t][i].forward.flow == seen[0][i].forward.flow);
      REQUIRE(seen[t][i].owner_queue == seen[0][i].owner_queue);
    }
  }
}

}  // namespace
}  // namespace gradtap::dataplane
