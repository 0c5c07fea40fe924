// FlowDirectory: what the receive queues of a node agree on about connections.
//
// Purpose: admits the job's endpoints, names each direction of each connection (flow id), gives every connection one
// owner queue (the one that saw it first), and gives it a comm once its content proved to be gloo: the ordinal among
// the proven connections of its rank pair, so that store or ssh traffic between ranks never becomes one.
// Ownership: owns plain records; decoders own the flows themselves. Threads: any; a mutex guards the cold paths (first
// sight, proof, a new SYN), generation() is the only thing that is read per burst.
// Invariants: a flow id is never reused; at most max_connections are known.
#pragma once

#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "common/bytes.h"
#include "common/error.h"
#include "dataplane/frame.h"
#include "dataplane/gloo_flow.h"

namespace gradtap::dataplane {

struct FlowKey {
  IpAddress source;
  IpAddress target;
  std::uint16_t source_port = 0;
  std::uint16_t target_port = 0;
  [[nodiscard]] FlowKey reversed() const { return {target, source, target_port, source_port}; }
  friend auto operator<=>(const FlowKey&, const FlowKey&) = default;
};

struct FlowKeyHash {
  [[nodiscard]] std::size_t operator()(const FlowKey& key) const;
};

// Asked twice for every packet, so it is flat: slots that are at most half full, looked through from where the address
// hashes to.
class EndpointTable {
 public:
  // An address that is not there yet.
  void add(const IpAddress& address, std::uint16_t rank);
  [[nodiscard]] std::optional<std::uint16_t> rank(const IpAddress& address) const {
    for (std::size_t at = home(address);; ++at) {
      const Slot& slot = slots_[at & (slots_.size() - 1)];
      if (!slot.taken) return std::nullopt;
      if (slot.address == address) return slot.rank;
    }
  }
  [[nodiscard]] std::size_t size() const { return size_; }

 private:
  struct Slot {
    IpAddress address;
    std::uint16_t rank = 0;
    bool taken = false;
  };
  [[nodiscard]] static std::size_t home(const IpAddress& address) {
    const std::uint64_t mixed =
        (load_le<std::uint64_t>(&address.bytes[0]) ^ std::rotl(load_le<std::uint64_t>(&address.bytes[8]), 29)) *
        0x9e3779b97f4a7c15;
    return static_cast<std::size_t>(mixed >> 32);
  }
  std::vector<Slot> slots_ = std::vector<Slot>(16);
  std::size_t size_ = 0;
};

struct FlowAdmission {
  FlowIdentity forward;  // the direction of the key that was asked for
  FlowIdentity backward;
  std::uint16_t owner_queue = 0;
  std::uint32_t epoch = 0;  // how many earlier connections used the 4-tuple
};

class FlowDirectory final : public CommSource {
 public:
  static constexpr std::uint32_t kNoComm = ~std::uint32_t{0};

  explicit FlowDirectory(std::uint32_t max_connections = 65536) : max_connections_(max_connections) {}

  // Rank i of the job is endpoints[i]. Flows that are known stay. An address may name one rank only.
  [[nodiscard]] Status set_endpoints(std::span<const IpAddress> endpoints);
  [[nodiscard]] std::shared_ptr<const EndpointTable> endpoints() const;

  // nullopt: the table is full of open connections.
  [[nodiscard]] std::optional<FlowAdmission> admit(const FlowKey& key, std::uint16_t source_rank,
                                                   std::uint16_t target_rank, std::uint16_t queue);
  // A new connection on a known 4-tuple: new flow ids, same owner.
  [[nodiscard]] std::optional<FlowAdmission> renew(const FlowKey& key);
  void closed(std::uint32_t flow);  // both directions ended; the record may go when room is needed
  [[nodiscard]] std::uint32_t comm(std::uint32_t flow) override;
  // Every connection of the comms below this one has ended: no run that is there now has sent anything on them.
  [[nodiscard]] std::uint32_t ended_comms() const;

  // A new lineage: every flow with an id below `first_kept` ends (decoders drop it at their next call). A trainer
  // connects before it attaches, so pass the next_flow() noted when its predecessor ended; the default ends all.
  void reset(std::uint32_t first_kept = ~std::uint32_t{0});
  [[nodiscard]] std::uint32_t next_flow() const;
  // A number for a flow that a decoder keeps track of itself.
  [[nodiscard]] std::uint32_t new_flow();

  // What a decoder saw and cannot decode, with the remedy; empty: nothing. Of the last one that spoke.
  void refuse(std::string text);
  [[nodiscard]] std::string refusal() const;

  [[nodiscard]] std::uint64_t generation() const { return generation_.load(std::memory_order_acquire); }
  [[nodiscard]] std::uint32_t closed_below() const { return closed_below_.load(std::memory_order_acquire); }
  [[nodiscard]] std::size_t connections() const;

 private:
  struct Connection {
    FlowKey key;  // as first seen
    FlowAdmission admission;
    std::uint32_t comm = kNoComm;
    bool closed = false;
  };
  bool make_room();
  void name_flows(Connection& connection);
  [[nodiscard]] static FlowKey canonical(const FlowKey& key);
  [[nodiscard]] static FlowAdmission oriented(const Connection& connection, const FlowKey& key);

  mutable std::mutex mutex_;
  std::uint32_t max_connections_;
  std::shared_ptr<const EndpointTable> endpoints_ = std::make_shared<EndpointTable>();
  std::unordered_map<FlowKey, Connection, FlowKeyHash> connections_;
  std::unordered_map<std::uint32_t, FlowKey> flows_;
  std::map<std::pair<std::uint16_t, std::uint16_t>, std::uint32_t> next_comm_;  // by rank pair
  std::uint32_t comm_base_ = 0;                                                 // no pair counts on from less
  std::uint32_t next_flow_ = 0;
  std::string refusal_;
  std::atomic<std::uint64_t> generation_{1};
  std::atomic<std::uint32_t> closed_below_{0};
};

}  // namespace gradtap::dataplane
