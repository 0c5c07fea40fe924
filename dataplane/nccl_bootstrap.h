// NcclBootstrap: what NCCL says in clear over TCP while it connects: which queue pair is which channel of whom.
//
// Purpose: follows the first bytes of TCP connections and reads two kinds. A queue pair exchange (opened by the sender
// of the data) names both queue pairs; the connect records of a communicator's bootstrap name the receiver's listening
// address of each channel. Together: communicator, ring or point to point, channel, sender, receiver. NCCL 2.12 to 2.19
// (the exchange's layout changes with versions; others are not read).
// Ownership: owns the beginnings of streams, bounded by the configuration. Threads: one. Pure.
// Failure behaviour: streams with a hole in their beginning, or of anything else, say nothing; what finds no room is
// counted.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "common/bytes.h"
#include "common/interval_set.h"
#include "dataplane/frame.h"

namespace gradtap::dataplane {

struct NcclQpInfo {
  IpAddress gid;
  std::uint32_t qp = 0;
  std::uint32_t mtu_bytes = 0;
  std::uint64_t fifo_address = 0;  // where clear-to-send entries go; of the connector only
  std::uint32_t fifo_key = 0;
};

inline constexpr std::size_t kNcclQpInfoBytes = 2600;    // 2.19
inline constexpr std::size_t kNcclOldQpInfoBytes = 552;  // 2.12 to 2.18
// `bytes` is one of these long.
[[nodiscard]] std::optional<NcclQpInfo> read_nccl_qp_info(ByteSpan bytes);

// The connection that carries data from a sender to a queue pair of the receiver.
struct NcclConnectionName {
  std::uint64_t comm = 0;  // the communicator's random number
  std::uint32_t ranks = 0;
  std::uint32_t sender = 0;
  std::uint32_t receiver = 0;
  bool ring = false;          // else point to point
  std::uint32_t channel = 0;  // of ring connections
};

struct NcclExchange {
  NcclQpInfo sender;
  NcclQpInfo receiver;
  std::optional<NcclConnectionName> name;
};

struct NcclBootstrapConfig {
  std::size_t max_streams = 16384;
  std::size_t max_stream_bytes = 16384;  // of the beginning of a stream
  std::size_t max_handles = 65536;
  std::size_t max_exchanges = 65536;
};

class NcclBootstrap {
 public:
  explicit NcclBootstrap(const NcclBootstrapConfig& config = {}) : config_(config) {}

  void segment(const FrameView& view);
  // All exchanges whose both halves were seen, with the names that are known by now.
  [[nodiscard]] std::vector<NcclExchange> exchanges() const;
  [[nodiscard]] std::uint64_t refused() const { return refused_; }

 private:
  struct Endpoint {
    IpAddress address;
    std::uint16_t port = 0;
    friend auto operator<=>(const Endpoint&, const Endpoint&) = default;
  };
  using StreamName = std::pair<Endpoint, Endpoint>;  // from, to
  struct Stream {
    std::uint32_t first_sequence = 0;
    std::vector<std::uint8_t> bytes;
    IntervalSet have;
    bool over = false;  // read, or of no interest
  };
  struct Half {
    std::optional<NcclQpInfo> connector;
    std::optional<NcclQpInfo> listener;
  };
  struct Handle {
    std::uint64_t comm = 0;
    std::uint32_t receiver = 0;
    std::uint32_t tag = 0;
    std::uint32_t channel = 0;
  };

  void read(const StreamName& name, Stream& stream);
  [[nodiscard]] static bool read_answer(Half& exchange, Stream& stream);
  void read_records(std::uint64_t comm, ByteSpan records, bool& over);
  void read_handles(std::uint64_t comm, std::uint32_t rank, std::uint32_t tag, ByteSpan entries);

  NcclBootstrapConfig config_;
  std::map<StreamName, Stream> streams_;
  std::map<StreamName, Half> halves_;             // by connector, listener
  std::map<Endpoint, Handle> handles_;            // by listening address
  std::map<std::uint64_t, std::uint32_t> ranks_;  // of communicators
  std::uint64_t refused_ = 0;
};

}  // namespace gradtap::dataplane
