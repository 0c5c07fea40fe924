// Step messages, blobs and layouts as the side channel stores them, of any rank.
#pragma once

#include <string>
#include <string_view>

#include "tests/unit/actors/stored_job.h"

namespace gradtap::actors::test {

inline std::vector<std::uint8_t> text_bytes(std::string_view text) {
  return {text.begin(), text.end()};
}

// The entry of a message's "blobs" for these bytes.
inline json blob_entry(std::string_view content) {
  return {{"digest", to_hex(sha256(content))}, {"bytes", content.size()}};
}

inline std::string message_key(const JobPlan& plan, StepNumber step, std::uint32_t rank) {
  return storage::side_key(storage::SideKind::kStepMessage, plan.job, plan.lineage, step, rank);
}
inline std::string blob_key(const JobPlan& plan, std::uint32_t rank, std::string_view content) {
  const Sha256 digest = sha256(content);
  return storage::side_key(storage::SideKind::kBlob, plan.job, plan.lineage, 0, rank) +
         std::string(digest.begin(), digest.end());
}

// Rank 0's message is one that a coordinator can read as well; `more` is merged into it.
inline std::vector<std::uint8_t> message_bytes(const JobPlan& plan, const json& groups, StepNumber step,
                                               std::uint32_t rank, const json& more) {
  json message = {{"kind", "step"},
                  {"seq", step},
                  {"rank", rank},
                  {"step", step},
                  {"layout_id", std::string(64, '0')},
                  {"interval", {2 * step, 2 * step + 2}},
                  {"micro_steps", 1},
                  {"synced_backwards", 1},
                  {"verdict", "applied"},
                  {"groups", groups},
                  {"transforms", json::array()},
                  {"param_state", std::string(2 * ((plan.schema.parameters.size() + 3) / 4), '0')},
                  {"witness", json::object()},
                  {"buffers", json::object()},
                  {"blobs", json::object()}};
  if (more.is_object()) message.update(more);
  schema::StepRecord stored;
  stored.lineage = plan.lineage;
  stored.step = step;
  stored.rank = rank;
  stored.seq = step;
  stored.json = text_bytes(message.dump());
  return schema::encode(stored);
}

struct SideWriter {
  StoredJob& job;

  void message(StepNumber step, std::uint32_t rank, const json& more) const {
    require_ok(job.store->put_side(message_key(*job.plan, step, rank),
                                   message_bytes(*job.plan, job.groups, step, rank, more), true));
  }
  void blob(std::uint32_t rank, std::string_view content) const {
    require_ok(job.store->put_side(blob_key(*job.plan, rank, content), text_bytes(content), true));
  }
  void layout(const replica::Layout& layout) const {
    require_ok(job.store->put_side(storage::side_key(storage::SideKind::kLayout, job.plan->job, job.plan->lineage) +
                                       std::string(layout.id().begin(), layout.id().end()),
                                   text_bytes(layout.canonical_json()), true));
  }
};

}  // namespace gradtap::actors::test
