#include "actors/limit_table.h"

#include <set>
#include <string>

#include <doctest/doctest.h>

#include "actors/memory_report.h"
#include "actors/node_memory.h"
#include "storage/shard_store.h"

namespace gradtap::actors {

using nlohmann::json;

namespace {

const json* row_of(const json& rows, const std::string& name) {
  for (const json& row : rows)
    if (row["name"] == name) return &row;
  return nullptr;
}

}  // namespace

TEST_CASE("every limit has a name of its own, a value, and says what happens then") {
  NodeConfig config;
  config.jobs.emplace_back();
  ClusterConfig cluster;
  cluster.down_after_ms = 12'345;
  const json rows = limits_json(config, cluster, json::object());
  CHECK(rows.size() == limit_rows().size());
  std::set<std::string> names;
  for (const json& row : rows) {
    CAPTURE(row.dump());
    CHECK(names.insert(row["name"].get<std::string>()).second);
    CHECK(row["limit"].is_number_unsigned());
    CHECK_FALSE(row["then"].get<std::string>().empty());
    CHECK(row["used"].is_null());  // there is no status
    CHECK(row["hits"].is_null());
  }
  REQUIRE(row_of(rows, "silence of a peer") != nullptr);
  CHECK((*row_of(rows, "silence of a peer"))["limit"] == 12'345);
  CHECK((*row_of(rows, "silence of a peer"))["key"] == "down_after_ms");
}

TEST_CASE("values are this node's, figures are summed over the actors of a kind, and foreign forms are nothing") {
  NodeConfig config;
  config.assembly.window_bytes = 77'000'000;
  config.jobs.emplace_back();
  config.jobs.front().grace_ms = 321;
  const json status = {{"jobs", {{{"binding", {{"messages_pending", 3}, {"drains", -1}}}}}},
                       {"actors",
                        {{"ingress.0", {{"oversized", 2}, {"decoder", {{"window_hits", 5}}}, {"waiting_refused", "7"}}},
                         {"ingress.1", {{"oversized", 40}, {"decoder", {{"window_hits", 6}}}}},
                         {"ingressive", {{"oversized", 1000}}},
                         {"assembler.0", {{"memory_in_use", 10}}},
                         {"gateway", {{"leases", {{"held", 4}}}}}}},
                       {"link", {{"link.calls_timed_out", 9}}},
                       {"memory", {{"job_bytes", 11}, {"refused", 12}}},
                       {"events", {{"kept", 13}, {"dropped", 14}}}};
  const json rows = limits_json(config, ClusterConfig{}, status);
  const auto at = [&](const char* name, const char* key) {
    const json* row = row_of(rows, name);
    REQUIRE(row != nullptr);
    return (*row)[key];
  };
  CHECK(at("op window", "limit") == 77'000'000);
  CHECK(at("op window", "key") == "assembly.window_bytes");
  CHECK(at("op window", "used") == 10);
  CHECK(at("op window", "hits").is_null());
  CHECK(at("wait for missing ranges", "limit") == 321);
  CHECK(at("wait for missing ranges", "hits").is_null());  // a number below 0 is none
  CHECK(at("frame", "hits") == 42);
  CHECK(at("reorder window", "hits") == 11);
  CHECK(at("reorder windows together", "hits").is_null());
  CHECK(at("step messages", "used") == 3);
  CHECK(at("leases", "used") == 4);
  CHECK(at("leases", "key") == "objects.leases_max");
  CHECK(at("time of a call", "hits") == 9);
  CHECK(at("job memory", "used") == 11);
  CHECK(at("job memory", "limit") == job_memory_bytes(config));
  CHECK(at("job memory", "hits") == 12);
  CHECK(at("events", "used") == 13);
  CHECK(at("events", "hits") == 14);
  for (const json& strange : {json(), json(5), json::array(), json{{"actors", 5}, {"jobs", "x"}, {"link", json()}}})
    CHECK(limits_json(config, ClusterConfig{}, strange).size() == limit_rows().size());
}

TEST_CASE("a node's ledger holds what jobs may take beside the fixed amounts, which are taken") {
  NodeConfig config;
  config.limits.memory_bytes = 1'000'000;
  config.tap.kind = TapKind::kAfPacket;
  config.tap.queues = 2;
  config.tap.ring_frames = 1024;
  config.tap.frame_bytes = 4096;
  config.dpdk.memory_mb = 100;
  const auto ledger = node_memory(config);
  CHECK(ledger->usage(MemoryAccount::kPackets).in_use_bytes == (100ULL << 20) + 2 * 2 * 1024 * 4096);
  CHECK(ledger->usage(MemoryAccount::kStore).in_use_bytes == storage::kStoreMemoryBytes);
  CHECK(ledger->limit_bytes() - ledger->total().in_use_bytes == 1'000'000);
  CHECK(ledger->take(MemoryAccount::kShards, 1'000'000));
  CHECK_FALSE(ledger->take(MemoryAccount::kShards, 1));
  const json report = memory_report(*ledger);
  CHECK(report["limit_bytes"] == ledger->limit_bytes());
  CHECK(report["in_use_bytes"] == ledger->limit_bytes());
  CHECK(report["refused"] == 1);
  CHECK(report["job_bytes"] == 1'000'000);
  CHECK(report["accounts"]["shards"]["in_use_bytes"] == 1'000'000);
  CHECK(report["accounts"]["shards"]["refused"] == 1);
  CHECK(report["accounts"].size() == kMemoryAccounts);
  CHECK(report["resident_bytes"].get<std::uint64_t>() > 1 << 20);

  config.tap.kind = TapKind::kNone;
  CHECK(node_memory(config)->usage(MemoryAccount::kPackets).in_use_bytes == 0);
  config.limits.memory_bytes = 0;
  CHECK(job_memory_bytes(config) > 1 << 20);  // three quarters of this machine
}

}  // namespace gradtap::actors
