#include "actors/assembler.h"

#include <cstring>

#include <doctest/doctest.h>

#include "dataplane/gloo_ring.h"
#include "tests/unit/actors/actor_probe.h"
#include "tests/unit/actors/job_fixture.h"
#include "tests/unit/dataplane/ring_traffic.h"

namespace gradtap::actors {
namespace {

struct AssemblerRig {
  caf::actor_system_config config;
  caf::actor_system system{config};
  test::Probe ingress{system}, coordinator{system}, owner0{system}, owner1{system};
  AssemblerActor assembler;
  SeededRandom random{5};
  gradtap::test::RingTraffic traffic{{2, 77}, 3, 40'000, 4, random};
  std::vector<std::unique_ptr<SegmentBurst>> bursts;

  explicit AssemblerRig(std::shared_ptr<const dataplane::FlowDirectory> directory = nullptr) {
    AssemblerOptions options;
    options.directory = std::move(directory);
    options.index = 4;
    options.schedule = std::make_shared<const dataplane::GlooRing>(3);
    assembler = spawn_assembler(system, std::move(options));
    dataplane::SizeTable sizes;
    REQUIRE(sizes.add({40'000, 4}));
    ingress.self->send(assembler, sizes_atom_v, OpSizesPtr(std::make_shared<const dataplane::SizeTable>(sizes)));
  }
  ~AssemblerRig() { ingress.end(assembler); }

  void wire(bool with_coordinator) {
    auto wiring = std::make_shared<Wiring>();
    wiring->ingress = {ingress.as<IngressActor>()};
    if (with_coordinator) wiring->coordinator = coordinator.as<CoordinatorActor>();
    wiring->owner_of = {owner0.as<OwnerActor>(), owner1.as<OwnerActor>()};
    ingress.self->send(assembler, wire_atom_v, WiringPtr(wiring));
  }
  // Lends everything of one edge in bursts; each must come home.
  void lend(std::uint32_t source) {
    const auto segments = traffic.edge(source);
    for (std::size_t at = 0; at < segments.size(); at += 10) {
      auto burst = std::make_unique<SegmentBurst>();
      burst->segments.assign(segments.begin() + static_cast<std::ptrdiff_t>(at),
                             segments.begin() + static_cast<std::ptrdiff_t>(std::min(at + 10, segments.size())));
      ingress.self->send(assembler, segments_atom_v, SegmentBurstRef{burst.get()});
      CHECK(ingress.expect<SegmentBurstRef>(credit_atom_v).burst == burst.get());
      bursts.push_back(std::move(burst));
    }
  }
  // The newest summary that came.
  dataplane::OpSummary newest_summary() {
    dataplane::OpSummary summary;
    (void)ingress.status(assembler);
    while (const auto got = coordinator.next<OpSummariesPtr>(ops_atom_v, std::chrono::milliseconds(50)))
      for (const auto& entry : **got) summary = entry;
    return summary;
  }
};

}  // namespace

TEST_CASE("lent bursts come home, and the op's bytes go to their owners (N9)") {
  AssemblerRig rig;
  rig.wire(true);
  rig.lend(0);
  dataplane::OpSummary summary = rig.newest_summary();
  CHECK(summary.op == rig.traffic.op);
  CHECK_FALSE(summary.complete);
  rig.lend(1);
  rig.lend(2);
  summary = rig.newest_summary();
  CHECK(summary.complete);
  CHECK(summary.lengths == std::vector<std::uint64_t>{40'000});

  WordQuery query{rig.traffic.op, 40'000, {0, 20'000, 39'996, 40'000}};
  const WordAnswer answer = rig.coordinator.ask<WordAnswer>(rig.assembler, words_atom_v, query);
  REQUIRE(answer.words.size() == 4);
  CHECK(answer.missing.empty());
  for (std::size_t i = 0; i < 3; ++i) {
    std::uint32_t expected = 0;
    std::memcpy(&expected, rig.traffic.result.data() + query.byte_offsets[i], 4);
    CHECK(answer.words[i] == expected);
  }
  CHECK_FALSE(answer.words[3]);

  // A third to owner 0, the rest to owner 1 in two pieces.
  auto slices = std::make_shared<std::vector<replica::Slice>>();
  slices->push_back({0, 0, 0, 0, 3000});
  slices->push_back({3000, 1, 0, 0, 6000});
  slices->push_back({9000, 1, 1, 0, 1000});
  BindOrder order;
  order.op = rig.traffic.op;
  order.op_bytes = 40'000;
  order.step = 9;
  order.bucket = 1;
  order.slices = slices;
  order.lineage = 6;
  order.number = 44;
  CHECK(rig.coordinator.ask<Outcome>(rig.assembler, bind_atom_v, order).ok);
  const auto first = rig.owner0.expect<ContributionPtr>(contrib_atom_v);
  const auto second = rig.owner1.expect<ContributionPtr>(contrib_atom_v);
  CHECK(first->slices.size() == 1);
  CHECK(second->slices.size() == 2);
  for (const auto& contribution : {first, second}) {
    CHECK(contribution->step == 9);
    CHECK(contribution->bucket == 1);
    CHECK(contribution->lineage == 6);
    CHECK(contribution->order == 44);
    REQUIRE(contribution->bytes->size() == 40'000);
    CHECK(std::memcmp(contribution->bytes->data(), rig.traffic.result.data(), 40'000) == 0);
  }
  CHECK(second->shard == 1);
}

TEST_CASE("what is not whole, not known or of another length is not bound") {
  AssemblerRig rig;
  rig.wire(true);
  rig.lend(0);
  BindOrder order;
  order.op = rig.traffic.op;
  order.op_bytes = 40'000;
  order.slices = std::make_shared<std::vector<replica::Slice>>(1, replica::Slice{0, 0, 0, 0, 10'000});
  const Outcome incomplete = rig.coordinator.ask<Outcome>(rig.assembler, bind_atom_v, order);
  CHECK_FALSE(incomplete.ok);
  CHECK(incomplete.error.code == ErrorCode::kOpIncomplete);
  order.op_bytes = 80'000;
  CHECK_FALSE(rig.coordinator.ask<Outcome>(rig.assembler, bind_atom_v, order).ok);
  order.op.tag = 1;
  CHECK(rig.coordinator.ask<Outcome>(rig.assembler, bind_atom_v, order).error.code == ErrorCode::kOpUnknown);
  WordQuery query{{2, 1}, 400, {0}};
  const WordAnswer unknown = rig.coordinator.ask<WordAnswer>(rig.assembler, words_atom_v, query);
  CHECK_FALSE(unknown.words[0]);
  CHECK(unknown.missing == std::vector<Interval>{{0, 400}});
  CHECK(rig.owner0.silent<ContributionPtr>(contrib_atom_v));
  // A shard that has no owner.
  rig.lend(1);
  rig.lend(2);
  order.op = rig.traffic.op;
  order.op_bytes = 40'000;
  order.slices = std::make_shared<std::vector<replica::Slice>>(1, replica::Slice{0, 7, 0, 0, 10'000});
  CHECK(rig.coordinator.ask<Outcome>(rig.assembler, bind_atom_v, order).error.code == ErrorCode::kLayoutInvalid);
}

TEST_CASE("a coordinator that comes later is told everything") {
  AssemblerRig rig;
  rig.wire(false);
  for (std::uint32_t source = 0; source < 3; ++source) rig.lend(source);
  rig.wire(true);
  CHECK(rig.newest_summary().complete);
}

TEST_CASE("a run that had ended before the attach is forgotten: one that computes the same would fit as well") {
  for (const bool ended : {true, false}) {
    const auto directory = std::make_shared<dataplane::FlowDirectory>();
    const auto connect = [&](std::uint16_t port) {
      const dataplane::FlowKey key{dataplane::parse_ip("10.77.0.10").value(), dataplane::parse_ip("10.77.0.11").value(),
                                   port, 6000};
      return directory->admit(key, 0, 1, 0).value().forward.flow;
    };
    for (std::uint16_t comm = 0; comm < 3; ++comm) {  // the traffic of the rig is of comm 2
      const std::uint32_t flow = connect(static_cast<std::uint16_t>(4000 + comm));
      CHECK(directory->comm(flow) == comm);
      if (ended || comm < 2) directory->closed(flow);
    }
    AssemblerRig rig(directory);
    rig.wire(false);
    for (std::uint32_t source = 0; source < 3; ++source) rig.lend(source);
    CHECK(rig.ingress.status(rig.assembler)["open_ops"] == 1);
    rig.wire(true);
    CHECK(rig.newest_summary().complete == !ended);
    CHECK(rig.ingress.status(rig.assembler)["open_ops"] == (ended ? 0 : 1));
  }
}

TEST_CASE("forgotten ops are freed") {
  AssemblerRig rig;
  rig.wire(true);
  for (std::uint32_t source = 0; source < 3; ++source) rig.lend(source);
  CHECK(rig.ingress.status(rig.assembler)["open_ops"] == 1);
  rig.ingress.self->send(rig.assembler, forget_atom_v, std::uint32_t{2}, std::uint32_t{77});
  CHECK(rig.ingress.status(rig.assembler)["open_ops"] == 1);  // below, not at
  rig.ingress.self->send(rig.assembler, forget_atom_v, std::uint32_t{2}, std::uint32_t{78});
  const auto status = rig.ingress.status(rig.assembler);
  CHECK(status["open_ops"] == 0);
  CHECK(status["memory_in_use"] == 0);
}

}  // namespace gradtap::actors
