// UploadCodec: what the publisher asks of an owner's node, and what it answers, as JSON texts (docs/formats.md).
//
// The question names the shards and the previous point, from whose record the node takes what is there already; the
// answer carries only what is new. Pure; any thread; what a peer sends is hostile until parsed.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/error.h"
#include "common/ids.h"
#include "schema/point_codec.h"

namespace gradtap::actors {

struct UploadRequest {
  LineageId lineage = 0;
  StepNumber step = 0;
  StepNumber previous_step = 0;  // of this lineage; 0: none
  std::vector<ShardId> shards;
};
[[nodiscard]] std::string encode_upload(const UploadRequest& request);
[[nodiscard]] Result<UploadRequest> decode_upload(std::string_view text);

// A shard's objects relative to the previous point: a new base and all logs since, or logs to append.
struct UploadedShard {
  ShardId shard = 0;
  bool whole = false;  // base and logs replace those of the previous point
  StepNumber base_step = 0;
  schema::ObjectRef base;
  std::vector<schema::StepObject> logs;
};
[[nodiscard]] std::string encode_uploaded(const std::vector<UploadedShard>& shards);
[[nodiscard]] Result<std::vector<UploadedShard>> decode_uploaded(std::string_view text);

// What `now` has beyond `before`, and back.
[[nodiscard]] UploadedShard difference(const schema::ShardObjects* before, const schema::ShardObjects& now);
[[nodiscard]] Result<schema::ShardObjects> apply_difference(const schema::ShardObjects* before,
                                                            const UploadedShard& change);

}  // namespace gradtap::actors
