// StoredJob: live shards and a real store side by side: every step is applied to the live ones and, where the test
// wants it, committed to the store together with its step message.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "recovery/full_version.h"
#include "storage/shard_store.h"
#include "tests/unit/recovery/job_fixture.h"
#include "tests/unit/storage/store_fixture.h"

namespace gradtap::recovery::test {

inline schema::LineageRecord record_of(const json& body, std::uint64_t shard_elements, const std::string& run_nonce) {
  schema::LineageRecord record;
  record.job = job_id("job");
  record.job_name = "job";
  record.run_nonce = run_nonce;
  record.world = 2;
  const std::string text = body.dump();
  record.schema_json.assign(text.begin(), text.end());
  record.recipe_id = replica::recipe_name({});
  record.shard_elements = shard_elements;
  record.shard_count = static_cast<std::uint32_t>(plan_of(body, shard_elements)->shards.shards().size());
  return record;
}

struct StoredJob {
  storage::test::TempDir dir{true};
  std::shared_ptr<storage::ShardStore> store;
  json body;
  json groups;  // hyper-parameters of the next steps
  schema::LineageRecord record;
  JobPlanPtr plan;
  std::vector<std::shared_ptr<replica::Shard>> shards;                        // live
  std::vector<std::map<StepNumber, Sha256>> digests;                          // of the live ones, by shard
  std::vector<std::map<StepNumber, std::vector<std::vector<float>>>> arrays;  // their kinds, by shard

  explicit StoredJob(json attach_body, std::uint64_t shard_elements = 65'536, const replica::Recipe& recipe = {})
      : body(std::move(attach_body)), groups(body["optimizer"]["groups"]) {
    store = storage::test::open_or_fail(storage::test::options_at(dir.path, 1 << 16));
    record = record_of(body, shard_elements, std::string(32, 'a'));
    record.recipe_id = replica::recipe_name(recipe);
    const auto lineage = store->open_lineage(record);
    REQUIRE(lineage);
    record.lineage = lineage->id;
    require_ok(store->put_lineage(record));
    auto read = plan_from_record(record);
    REQUIRE(read);
    plan = std::make_shared<const JobPlan>(std::move(*read));
    for (const auto& range : plan->shards.shards()) shards.push_back(fresh_shard(*plan, range.id));
    digests.resize(shards.size());
    arrays.resize(shards.size());
    for (ShardId id = 0; id < shards.size(); ++id) remember(id);
  }

  void remember(ShardId id) {
    const StepNumber step = shards[id]->version();
    digests[id][step] = shards[id]->digest().sha;
    for (std::size_t k = 0; k < shards[id]->kind_count(); ++k)
      arrays[id][step].emplace_back(shards[id]->kind(k).begin(), shards[id]->kind(k).end());
  }

  // The step message as the side channel stores it.
  void store_message(StepNumber step, replica::Verdict verdict = replica::Verdict::kApplied) const {
    const json message = {{"kind", "step"},
                          {"seq", step},
                          {"rank", 0},
                          {"step", step},
                          {"layout_id", std::string(64, '0')},
                          {"interval", {2 * step, 2 * step + 2}},
                          {"micro_steps", 1},
                          {"synced_backwards", 1},
                          {"verdict", verdict == replica::Verdict::kSkipped ? "skipped" : "applied"},
                          {"groups", groups},
                          {"transforms", json::array()},
                          {"param_state", std::string(2 * ((plan->schema.parameters.size() + 3) / 4), '0')},
                          {"witness", json::object()},
                          {"buffers", json::object()},
                          {"blobs", json::object()}};
    schema::StepRecord stored;
    stored.lineage = plan->lineage;
    stored.step = step;
    stored.seq = step;
    const std::string text = message.dump();
    stored.json.assign(text.begin(), text.end());
    require_ok(store->put_side(storage::side_key(storage::SideKind::kStepMessage, plan->job, plan->lineage, step, 0),
                               schema::encode(stored), true));
  }

  // Applies the next step to a live shard and commits it: its log, and a full version if wanted.
  void step(ShardId id, bool commit = true, bool full = false, replica::Verdict verdict = replica::Verdict::kApplied) {
    const StepNumber next = shards[id]->version() + 1;
    const std::vector<float> gradient = shard_gradient(*plan, id, next);
    const auto pieces = replica::contiguous_pieces(shards[id]->range(), gradient.data());
    replica::StepScalars scalars = scalars_of(*plan, next, verdict);
    const auto parsed = replica::parse_groups(groups, plan->schema.optimizer.type, "groups");
    REQUIRE(parsed);
    scalars.groups = *parsed;
    require_ok(shards[id]->apply(scalars, replica::GradientView{pieces}));
    remember(id);
    if (!commit) return;
    std::vector<ByteSpan> log;
    if (verdict == replica::Verdict::kApplied)
      log.emplace_back(reinterpret_cast<const std::uint8_t*>(gradient.data()), gradient.size() * 4);
    write(id, true, log, full, digests[id][next]);
  }
  void base(ShardId id) { write(id, false, {}, true, digests[id][shards[id]->version()]); }
  void write(ShardId id, bool has_log, std::vector<ByteSpan> log, bool full, const Sha256& digest) {
    storage::StepCommit commit;
    commit.job = plan->job;
    commit.lineage = plan->lineage;
    commit.step = shards[id]->version();
    storage::ShardCommit entry;
    entry.shard = id;
    entry.has_log = has_log;
    entry.log = std::move(log);
    entry.state_digest = digest;
    const FullVersion copy(*shards[id]);
    if (full) entry.full = copy.parts();
    commit.shards.push_back(entry);
    require_ok(store->commit(commit));
  }
  void reopen() {
    store.reset();
    store = storage::test::open_or_fail(storage::test::options_at(dir.path, 1 << 16));
  }
  // Value by value, and by digest, what the live shard was at that step.
  void check_same(const replica::Shard& shard, StepNumber step) const {
    const ShardId id = shard.range().id;
    CHECK(shard.version() == step);
    CHECK(shard.digest().sha == digests[id].at(step));
    for (std::size_t k = 0; k < shard.kind_count(); ++k)
      CHECK(std::equal(shard.kind(k).begin(), shard.kind(k).end(), arrays[id].at(step)[k].begin(),
                       arrays[id].at(step)[k].end()));
  }
};

}  // namespace gradtap::recovery::test
