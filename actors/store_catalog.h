// StoreCatalog: which steps this node's store can produce of its shards, and their digests, for the admin actor.
//
// Purpose: marks are read, never tensors: a question costs one small read a shard (`version`: also the list of that
// shard's full versions). Ownership: shares the store. Threads: detached, its own, because it waits for a disk; the
// store's reading functions may be called beside its writer. Failure behaviour: what cannot be read is named in the
// answer ("error"), nothing is made up. A disk that hangs hangs this actor alone.
#pragma once

#include <memory>
#include <string>

#include <nlohmann/json_fwd.hpp>

#include "actors/interfaces.h"
#include "storage/shard_store.h"

namespace gradtap::actors {

// {"marks": [{"shard", "durable", "full", "log_from", "log_to", "digest"}]}: what is durable of the lineage.
[[nodiscard]] nlohmann::json stored_shards(const storage::ShardStore& store, const JobPlan& plan);
// {"digest" or null, "can_produce", "full": the version to begin at, or null, "durable" or null}
[[nodiscard]] nlohmann::json stored_version(const storage::ShardStore& store, const JobPlan& plan, ShardId shard,
                                            StepNumber step);

[[nodiscard]] CatalogActor spawn_store_catalog(caf::actor_system& system,
                                               std::shared_ptr<const storage::ShardStore> store);

}  // namespace gradtap::actors
