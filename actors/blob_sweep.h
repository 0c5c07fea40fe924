// BlobSweep: which stored blobs no kept step message names any more.
//
// Purpose: side state that was too large for its message is stored by its digest and may be named by many messages.
// Pure reading of the store; owned by the keeper; one thread. Invariants: a blob is given up only when two sweeps in a
// row found it unnamed: it is uploaded before the message that names it. Failure behaviour: a message that cannot be
// read gives nothing up.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "common/error.h"
#include "storage/shard_store.h"

namespace gradtap::actors {

class BlobSweep {
 public:
  [[nodiscard]] Result<std::vector<std::string>> sweep(const storage::ShardStore& store, const JobId& job,
                                                       LineageId lineage);

 private:
  std::set<std::string> unnamed_before_;
};

}  // namespace gradtap::actors
