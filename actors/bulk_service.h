// BulkService: what this node answers to its peers' bulk requests.
//
// Purpose: gradients from the log or the tap's retention, full versions from the store or the baseline in hand, side
// entries out and in, requests of the side channel for the home. Ownership: shares store, retention and hold. Threads:
// the node link's, several at once; reads the store directly, asks actors with a deadline. Failure behaviour: what is
// not here is STEP_UNAVAILABLE; a request that makes no sense is REQUEST_MALFORMED; an answer for which no memory is
// left MEMORY_EXHAUSTED, and the peer asks again.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "actors/baseline_hold.h"
#include "actors/http_server.h"
#include "actors/interfaces.h"
#include "actors/tap_retention.h"
#include "common/memory_ledger.h"
#include "link/bulk_request.h"
#include "storage/shard_store.h"

namespace gradtap::actors {

struct BulkServiceOptions {
  caf::actor_system* system = nullptr;
  std::string job_name;
  std::size_t chunk_bytes = std::size_t{256} << 10;  // of an answer
  std::shared_ptr<const storage::ShardStore> store;
  std::shared_ptr<TapRetention> retention;
  std::shared_ptr<const BaselineHold> baseline;
  FeedActor feed;
  // A peer asks for a full version no older than this, and none is stored: the shard's owner may write one.
  std::function<void(LineageId, ShardId, StepNumber)> want_full;
  std::function<HttpAnswer(HttpRequest&&)> side_channel;  // answers as the home, or that this node is not
  std::shared_ptr<MemoryLedger> memory = std::make_shared<MemoryLedger>();  // answers are taken from it
};

[[nodiscard]] link::BulkHandler bulk_service(BulkServiceOptions options);

// A request of the side channel as a bulk request, and its answer back.
[[nodiscard]] link::BulkRequest forwarded(HttpRequest&& request);
[[nodiscard]] HttpAnswer forwarded_answer(const std::string& meta, const std::vector<std::uint8_t>& bytes);

}  // namespace gradtap::actors
