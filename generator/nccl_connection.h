// NcclConnection: one NCCL connection on the wire, as its two NICs write it.
//
// Purpose: messages in, frames out: "clear to send" entries on the way back, RDMA writes on the way there, numbered,
// addressed and flagged as NCCL does. It knows steps, slots, PSNs and write styles; it does not know collectives.
// Ownership: owns its counters. Threads: one. Invariants: message n is written to the slot that its CTS entry n+1
// named; LL flags are the connection's step + 1. PSNs wrap at 2^24, steps do not. With several queue pairs entries go
// over the first one's.
#pragma once

#include <cstdint>
#include <set>
#include <vector>

#include "common/bytes.h"
#include "dataplane/nccl_schedule.h"
#include "generator/fabric_frame.h"
#include "generator/roce_writer.h"

namespace gradtap::generator {

// How a message of more than `split_above_bytes` is written (ncclIbMultiSend in net_ib.cc, and what the NIC makes of
// it).
enum class WriteStyle : std::uint8_t {
  kWriteImmediate,      // one write, its last packet carries the immediate
  kWriteThenImmediate,  // one write, then an empty one with the immediate
  kPerPacketWrites,     // a write for every packet, then the empty one
};

// The entry that the receiver writes for each message (ncclIbSendFifo in net_ib.cc).
enum class CtsFormat : std::uint8_t {
  k32Bytes,      // 2.12-2.19
  k64Bytes,      // 2.20-2.26: two rkeys
  k64BytesWide,  // from 2.27: four rkeys, 64-bit size
};
[[nodiscard]] CtsFormat cts_format_of(dataplane::NcclLayout layout);

struct RemoteBuffer {
  std::uint64_t address = 0;
  std::uint32_t rkey = 0;
};

struct ConnectionConfig {
  RocePath data;                      // to the receiver
  RocePath control;                   // back to the sender
  std::vector<RocePath> more_data;    // further queue pairs (NCCL_IB_QPS_PER_CONNECTION)
  bool cut_over_queue_pairs = false;  // a piece of each message on each (NCCL_IB_SPLIT_DATA_ON_QPS=1), else by turns
  bool ll128 = false;                 // lines of LL128 where LL is asked for
  std::uint32_t path_mtu_bytes = 1024;
  std::uint32_t data_psn = 0;  // of the first packet
  std::uint32_t control_psn = 0;
  std::uint64_t step = 0;   // of the first message
  std::uint64_t index = 1;  // of the first CTS entry
  RemoteBuffer ll;          // eight slots of 64 KiB
  RemoteBuffer simple;      // eight slots of 512 KiB
  RemoteBuffer fifo;        // where the CTS entries go
  std::uint32_t tag = 0;    // the sender's rank
  CtsFormat cts = CtsFormat::k32Bytes;
  WriteStyle style = WriteStyle::kWriteImmediate;
  std::uint32_t split_above_bytes = 8192;
  bool immediate_big_endian = false;           // from 2.29
  bool point_to_point = false;                 // all messages go to the same address, chunks of 128 KiB
  bool acknowledge = true;                     // acknowledgements are written too
  std::set<std::uint32_t> extra_ack_requests;  // PSNs of packets that ask for one though they are not the last
  std::uint32_t undefined_word = 0;            // what LL leaves in the second word of an odd tail
};

// What the sink is told of a message: the op, and which bytes of its result the message's data are, if final.
struct MessageMeaning {
  std::uint32_t op = 0;
  bool final = false;
  std::uint64_t begin = 0;
};

class NcclConnection {
 public:
  NcclConnection(std::uint32_t id, ConnectionConfig config);

  // Before the messages of an op: where its steps begin, and the protocol that the following entries name slots of.
  void begin_op(dataplane::NcclProtocol protocol, std::uint64_t aligned_step);
  [[nodiscard]] std::uint64_t step() const { return step_; }
  [[nodiscard]] std::uint64_t messages() const { return sent_; }

  // The receiver clears the next message of `steps` steps.
  void clear_to_send(std::uint32_t steps, std::uint64_t time_ns, FrameSink& sink);
  // The sender writes the next message. Returns the bytes put on the wire.
  std::uint64_t send(ByteSpan data, std::uint32_t steps, const MessageMeaning& meaning, std::uint64_t time_ns,
                     FrameSink& sink);

 private:
  [[nodiscard]] RemoteBuffer slot(std::uint64_t step) const;
  void encode_ll(ByteSpan data);
  void encode_ll128(ByteSpan data);
  void write_message(std::size_t queue_pair, std::uint32_t begin, std::uint32_t end);
  void write(WireOpcode opcode, std::uint32_t offset, std::uint32_t bytes, bool last, const RemoteBuffer* target,
             std::uint32_t dma_bytes, bool immediate);
  void acknowledge(std::uint64_t time_ns, FrameSink& sink);

  std::uint32_t id_;
  ConnectionConfig config_;
  dataplane::NcclProtocol protocol_ = dataplane::NcclProtocol::kLl;
  std::uint64_t step_ = 0;          // of the next message
  std::uint64_t cleared_step_ = 0;  // of the next message to be cleared
  std::uint64_t cleared_ = 0;
  std::uint64_t sent_ = 0;
  std::vector<std::uint32_t> data_psns_;  // by queue pair
  std::size_t queue_pair_ = 0;            // of the packets being written
  std::uint32_t control_psn_ = 0;
  std::uint32_t message_sequence_ = 0;
  std::vector<std::uint8_t> wire_;   // of the message being sent
  std::vector<std::uint8_t> frame_;  // scratch
  // Of the message being sent:
  std::uint64_t time_ns_ = 0;
  std::uint64_t wire_bytes_ = 0;
  std::uint64_t data_bytes_ = 0;
  MessageMeaning meaning_;
  FrameSink* sink_ = nullptr;
};

}  // namespace gradtap::generator
