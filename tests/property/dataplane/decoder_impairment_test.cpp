// Whatever the mirror does to the frames, the decoder never says something wrong: every byte that it places equals the
// clean decode's, provisional messages too after a constant shift of the index per flow and tag.
#include <algorithm>
#include <set>

#include <doctest/doctest.h>

#include "dataplane/impairment.h"
#include "tests/unit/dataplane/decode_harness.h"

namespace gradtap::dataplane {
namespace {

using namespace testing;

bool agrees(const CollectedMessage& seen, const CollectedMessage& truth) {
  if (seen.length != truth.length) return false;
  for (std::size_t i = 0; i < seen.bytes.size(); ++i) {
    if (seen.seen[i] && seen.bytes[i] != truth.bytes[i]) return false;
  }
  return true;
}

struct Tally {
  std::uint64_t placed = 0;
  std::uint64_t provisional = 0;
  std::uint64_t wrong = 0;
  std::uint64_t bytes = 0;
};

Tally compare(const CollectingSink& sink, const CollectingSink& truth) {
  Tally tally;
  // (source, target, tag, type) -> provisional messages by index
  std::map<std::tuple<int, int, std::uint32_t, int>, std::map<std::uint32_t, const CollectedMessage*>> provisional;
  for (const auto& [name, message] : sink.messages) {
    const auto& [source, target, comm, tag, type, index] = name;
    tally.bytes += static_cast<std::uint64_t>(std::ranges::count(message.seen, true));
    if (message.provisional) {
      provisional[{source, target, tag, type}][index] = &message;
      ++tally.provisional;
      continue;
    }
    ++tally.placed;
    const auto found = truth.messages.find({source, target, 0, tag, type, index});
    if (found == truth.messages.end() || !agrees(message, found->second)) ++tally.wrong;
  }
  for (const auto& [key, messages] : provisional) {
    const auto& [source, target, tag, type] = key;
    bool fits = false;
    for (std::uint32_t shift = 0; shift < 64 && !fits; ++shift) {
      fits = std::ranges::all_of(messages, [&](const auto& entry) {
        const auto found = truth.messages.find({source, target, 0, tag, type, entry.first + shift});
        return found != truth.messages.end() && agrees(*entry.second, found->second);
      });
    }
    if (!fits) ++tally.wrong;
  }
  return tally;
}

CollectingSink clean_decode(const std::vector<MemoryFrame>& frames, const GlooDecoderConfig& config) {
  SingleQueue run(config);
  run.run(frames);
  return std::move(run.sink);
}

void check_never_wrong(const std::string& name, const ImpairmentConfig& impairment, int seeds, double least_share,
                       std::uint32_t step = 4, std::size_t first_frame = 0) {
  const std::string path = capture_path(name, "decoder_impairment");
  if (path.empty()) return;
  const auto frames = read_capture(path);
  REQUIRE(frames.has_value());
  GlooDecoderConfig config = rig_config();
  config.flow.resync_step_bytes = step;
  const CollectingSink truth = clean_decode(*frames, config);
  REQUIRE(truth.messages.size() > 300);
  std::uint64_t all_bytes = 0;
  for (const auto& [key, message] : truth.messages) all_bytes += message.length;

  std::uint64_t resyncs = 0;
  for (int seed = 1; seed <= seeds; ++seed) {
    CAPTURE(seed);
    Impairment injector(impairment, static_cast<std::uint64_t>(seed));
    auto impaired = injector.apply(*frames);
    impaired.erase(impaired.begin(), impaired.begin() + static_cast<std::ptrdiff_t>(first_frame));
    config.flow.reorder_grace_packets = seed % 2 == 0 ? 64 : 4096;
    config.flow.reorder_grace_ms = seed % 2 == 0 ? 2 : 50;
    SingleQueue run(config);
    run.run(impaired);
    run.decoder.flush_holes(run.sink);
    const Tally tally = compare(run.sink, truth);
    INFO("seed ", seed, ": placed ", tally.placed, " provisional ", tally.provisional, " bytes ", tally.bytes, "/",
         all_bytes, " resyncs ", run.decoder.counters().flow.resyncs);
    CHECK(run.sink.conflicts == 0);
    CHECK(tally.wrong == 0);
    CHECK(static_cast<double>(tally.bytes) >= least_share * static_cast<double>(all_bytes));
    resyncs += run.decoder.counters().flow.resyncs;
  }
  if (impairment.drop_probability >= 0.01) CHECK(resyncs > 0);
}

TEST_CASE("random loss never yields a wrong byte (N1)") {
  for (const double probability : {0.001, 0.01, 0.05}) {
    ImpairmentConfig config;
    config.drop_probability = probability;
    check_never_wrong("gloo-n4/mon.pcap", config, 6, 0.05);
  }
}

TEST_CASE("random loss, torch 2") {
  ImpairmentConfig config;
  config.drop_probability = 0.02;
  check_never_wrong("gloo-torch2/f32/mon.pcap", config, 4, 0.05);
  check_never_wrong("gloo-torch2/bf16/mon.pcap", config, 4, 0.05, 2);
}

TEST_CASE("bursts of loss, duplicates and reordering together") {
  ImpairmentConfig config;
  config.drop_every = 701;
  config.drop_burst = 7;
  config.duplicate_probability = 0.02;
  config.reorder_probability = 0.05;
  config.reorder_distance = 40;
  check_never_wrong("gloo-n4/mon.pcap", config, 6, 0.05);
}

TEST_CASE("duplicates, reordering and VLAN tags without loss cost nothing") {
  ImpairmentConfig config;
  config.duplicate_probability = 0.05;
  config.reorder_probability = 0.1;
  config.reorder_distance = 12;
  config.vlan_half = true;
  check_never_wrong("gloo-n4/mon.pcap", config, 6, 1.0);
}

TEST_CASE("a tap that starts in mid-stream") {
  check_never_wrong("gloo-n4/mon.pcap", {}, 1, 0.3, 4, 1500);
  check_never_wrong("gloo-n4/mon.pcap", {}, 1, 0.1, 4, 3001);
  check_never_wrong("gloo-torch2/f32/mon.pcap", {}, 1, 0.3, 4, 1777);
}

}  // namespace
}  // namespace gradtap::dataplane
