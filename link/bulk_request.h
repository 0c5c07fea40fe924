// What travels on bulk connections: a request, and an answer in chunks.
//
// Purpose: the shapes that callers and handlers of the node link share. Ownership: values; a ChunkSource belongs to the
// thread that serves its request. Threads: a handler runs on the link's threads, several at once. Failure behaviour: a
// handler's error, and one of chunk(), arrives at the caller with the same code and texts.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/bytes.h"
#include "common/error.h"
#include "common/ids.h"

namespace gradtap::link {

// Numbers are on the wire: never reused.
enum class BulkKind : std::uint16_t {
  kGradient = 1,     // the gradient record of (lineage, shard, step)
  kFullVersion = 2,  // a full version
  kSideScan = 3,     // stored side entries
  kSidePut = 4,      // side entries for the peer to store
  kHttp = 5,         // a request of the side channel, for the home
};

struct BulkRequest {
  BulkKind kind = BulkKind::kGradient;
  JobId job{};
  LineageId lineage = 0;
  ShardId shard = 0;
  StepNumber step = 0;
  std::uint64_t argument = 0;
  std::string text;               // some ten KiB at most
  std::uint64_t first_chunk = 0;  // the answer begins here; the link sets it when it resumes
  std::vector<std::uint8_t> body;
};

class ChunkSource {
 public:
  virtual ~ChunkSource() = default;
  [[nodiscard]] virtual std::uint64_t chunks() const = 0;
  // At most kPayloadBytesMax (link_frame.h) bytes; asked for in rising order, from the request's first_chunk on.
  [[nodiscard]] virtual Result<std::vector<std::uint8_t>> chunk(std::uint64_t index) = 0;
  // A small text that arrives before the chunks.
  [[nodiscard]] virtual std::string meta() const { return {}; }
  // Two answers of one identity have the same chunks, so that a broken answer goes on where it stopped. Empty: it
  // starts over.
  [[nodiscard]] virtual std::string identity() const { return {}; }
};

using BulkHandler = std::function<Result<std::unique_ptr<ChunkSource>>(const std::string& peer, BulkRequest&&)>;

// Bytes in memory; its identity is their hash.
class MemorySource final : public ChunkSource {
 public:
  explicit MemorySource(std::vector<std::uint8_t> bytes, std::string meta = {},
                        std::size_t chunk_bytes = std::size_t{256} << 10);

  [[nodiscard]] std::uint64_t chunks() const override;
  [[nodiscard]] Result<std::vector<std::uint8_t>> chunk(std::uint64_t index) override;
  [[nodiscard]] std::string meta() const override { return meta_; }
  [[nodiscard]] std::string identity() const override { return identity_; }

 private:
  const std::vector<std::uint8_t> bytes_;
  const std::string meta_;
  const std::size_t chunk_bytes_;
  const std::string identity_;
};

}  // namespace gradtap::link
