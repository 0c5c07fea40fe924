// The flows, messages and losses of the recorded captures against what an independent decoder found in them.
#include "dataplane/nccl_survey.h"

#include <fstream>
#include <map>
#include <string>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "common/ids.h"
#include "dataplane/capture_file.h"
#include "tests/test_files.h"

namespace gradtap::dataplane {
namespace {

using nlohmann::json;

TEST_CASE("flows and messages of the recorded captures") {
  const std::string truth = gradtap::testing::capture_path("expected.json", "nccl_survey");
  if (truth.empty()) return;
  const auto known = nlohmann::json::parse(std::ifstream(truth));
  REQUIRE(known["captures"].size() == 5);
  for (const auto& capture : known["captures"]) {
    const std::string path = gradtap::testing::capture_path(capture["file"], "nccl_survey");
    if (path.empty()) continue;
    CAPTURE(path);
    const auto file = CaptureFile::open(path);
    auto walker = file->walk();
    NcclSurvey survey;
    CaptureRecord record;
    while (walker->next(record).value()) survey.frame(record.bytes, record.wire_bytes, record.time_ns);
    survey.finish();
    CHECK(survey.counters().frames == capture["frames"].get<std::uint64_t>());
    CHECK(survey.counters().roce_frames == capture["roce_frames"].get<std::uint64_t>());
    CHECK(survey.counters().bad_icrc == capture["icrc"]["bad"].get<std::uint64_t>());
    CHECK(survey.counters().vendor_frames == capture["op_0xaa"].get<std::uint64_t>());
    CHECK(survey.table().counters().congestion == capture["cnp_0x81"].get<std::uint64_t>());
    std::uint64_t mads = 0;
    for (const auto& [name, count] : capture["qp1_ud_mads"].items()) mads += count.get<std::uint64_t>();
    CHECK(survey.table().counters().management == mads);

    std::map<std::pair<std::string, std::uint32_t>, const SurveyedFlow*> by_key;
    for (const auto& flow : survey.flows())
      by_key[{to_hex(flow->identity().target.bytes), flow->identity().target_qp}] = flow.get();
    REQUIRE(by_key.size() == capture["flows"].size());
    for (const json& expected : capture["flows"]) {
      const auto found = by_key.find({expected["dst"], expected["dest_qpn"]});
      REQUIRE(found != by_key.end());
      const SurveyedFlow& flow = *found->second;
      const RoceFlowTable::Entry& entry = *survey.table().entries()[flow.identity().flow];
      CHECK(to_hex(flow.identity().source.bytes) == expected["src"].get<std::string>());
      CHECK(flow.identity().source_port == expected["udp_sport"].get<int>());
      CHECK((flow.role() == NcclRole::kData ? "DATA" : "CTS") == expected["role"].get<std::string>());
      CHECK(entry.requests == expected["write_packets"].get<std::uint64_t>());
      CHECK(entry.acknowledgements == expected["acks"].get<std::uint64_t>());
      CHECK(entry.naks == expected["naks"].get<std::uint64_t>());
      CHECK(entry.flow->first_seen_psn() == expected["first_psn"].get<std::uint64_t>());
      CHECK(entry.flow->last_seen_psn() == expected["last_psn"].get<std::uint64_t>());
      if (expected.contains("acked_by_peer_max_psn") && !expected["acked_by_peer_max_psn"].is_null())
        CHECK(entry.flow->acknowledged_end() == expected["acked_by_peer_max_psn"].get<std::uint64_t>() + 1);
      std::vector<Interval> missing;
      for (const json& message : expected["messages"])
        for (const json& range : message.value("missing_psns", json::array()))
          missing.push_back({range[0].get<std::uint64_t>(), range[1].get<std::uint64_t>() + 1});
      CHECK(entry.flow->missing_psns() == missing);
      REQUIRE(flow.items().size() == expected["messages"].size());
      for (std::size_t i = 0; i < flow.items().size(); ++i) {
        const json& message = expected["messages"][i];
        const NcclItem& item = flow.items()[i];
        CAPTURE(i);
        REQUIRE(!item.hole);
        CHECK(item.message.bytes == message["dma_len"].get<std::uint64_t>());
        CHECK(item.message.address == std::stoull(message["va"].get<std::string>(), nullptr, 16));
        CHECK(item.message.key == std::stoull(message["rkey"].get<std::string>(), nullptr, 16));
        if (flow.role() != NcclRole::kData) continue;
        CHECK(item.psns.begin == message["psn_first"].get<std::uint64_t>());
        CHECK(item.psns.end == message["psn_last"].get<std::uint64_t>() + 1);
        CHECK(item.message.immediate_seen == message["ended_with_imm"].get<bool>());
        CHECK(!item.message.immediate_mismatch);
        CHECK(item.message.split == (message["wire_messages"].get<int>() > 1));
        CHECK(item.flag == (message["ll_flag"].is_null() ? 0 : message["ll_flag"].get<std::uint32_t>()));
      }
      if (flow.role() != NcclRole::kCts) continue;
      CHECK(flow.cts_entries() == expected["messages"].size());
      for (const json& message : expected["messages"])
        CHECK(flow.tags().contains(message["cts"]["tag"].get<std::uint32_t>()));
    }
    // Pairs: both directions known from the captures' own list.
    for (const json& connection : capture["connections"]) {
      if (connection["qpn_at"].size() != 2) continue;
      const std::string a = connection["ends"][0], b = connection["ends"][1];
      const auto at_a = by_key.find({a, connection["qpn_at"][a]});
      const auto at_b = by_key.find({b, connection["qpn_at"][b]});
      if (at_a == by_key.end() || at_b == by_key.end()) continue;
      CHECK(survey.partner(*at_a->second) == at_b->second);
      CHECK(survey.partner(*at_b->second) == at_a->second);
    }
  }
}

}  // namespace
}  // namespace gradtap::dataplane
