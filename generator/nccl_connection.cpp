#include "generator/nccl_connection.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace gradtap::generator {
namespace {

using dataplane::NcclProtocol;

constexpr std::uint64_t kSimpleSliceSteps = 2;
constexpr std::uint32_t kPointToPointBytes = 128U << 10;
constexpr std::uint64_t kFifoEntriesPerIndex = 8;  // NCCL_NET_IB_MAX_RECVS
constexpr std::uint64_t kFifoIndices = 256;        // MAX_REQUESTS: the FIFO is a ring of so many

template <class T>
void put_le(std::uint8_t* to, T value) {
  std::memcpy(to, &value, sizeof value);
}

}  // namespace

CtsFormat cts_format_of(dataplane::NcclLayout layout) {
  return layout == dataplane::NcclLayout::kUpTo2_19 ? CtsFormat::k32Bytes : CtsFormat::k64Bytes;
}

NcclConnection::NcclConnection(std::uint32_t id, ConnectionConfig config)
    : id_(id),
      config_(std::move(config)),
      step_(config_.step),
      cleared_step_(config_.step),
      data_psn_(config_.data_psn),
      control_psn_(config_.control_psn) {}

void NcclConnection::begin_op(NcclProtocol protocol, std::uint64_t aligned_step) {
  protocol_ = protocol;
  step_ = cleared_step_ = aligned_step;
}

RemoteBuffer NcclConnection::slot(std::uint64_t step) const {
  if (config_.point_to_point) return config_.simple;
  const bool ll = protocol_ == NcclProtocol::kLl;
  RemoteBuffer buffer = ll ? config_.ll : config_.simple;
  buffer.address += step % dataplane::kNcclSlots * (ll ? dataplane::kNcclLlSlotBytes : dataplane::kNcclSimpleStepBytes);
  return buffer;
}

void NcclConnection::clear_to_send(std::uint32_t steps, std::uint64_t time_ns, FrameSink& sink) {
  const RemoteBuffer target = slot(cleared_step_);
  const std::uint64_t index = config_.index + cleared_;
  std::uint32_t slot_bytes = kPointToPointBytes;
  if (!config_.point_to_point)
    slot_bytes = static_cast<std::uint32_t>(protocol_ == NcclProtocol::kLl
                                                ? dataplane::kNcclLlSlotBytes
                                                : kSimpleSliceSteps * dataplane::kNcclSimpleStepBytes);
  std::array<std::uint8_t, 64> entry{};
  std::uint8_t* e = entry.data();
  std::uint32_t entry_bytes = 64;
  put_le(e, target.address);
  switch (config_.cts) {
    case CtsFormat::k32Bytes:
      entry_bytes = 32;
      put_le(e + 8, slot_bytes);
      put_le(e + 12, target.rkey);
      put_le(e + 16, std::uint32_t{1});
      put_le(e + 20, config_.tag);
      put_le(e + 24, index);
      break;
    case CtsFormat::k64Bytes:
      put_le(e + 8, slot_bytes);
      put_le(e + 12, target.rkey);
      put_le(e + 20, std::uint32_t{1});
      put_le(e + 24, config_.tag);
      put_le(e + 32, index);
      break;
    case CtsFormat::k64BytesWide:
      put_le(e + 8, std::uint64_t{slot_bytes});
      put_le(e + 16, target.rkey);
      put_le(e + 32, std::uint32_t{1});
      put_le(e + 36, config_.tag);
      put_le(e + 40, index);
      break;
  }
  RocePacket packet;
  packet.opcode = WireOpcode::kWriteOnly;
  packet.psn = control_psn_;
  packet.acknowledge = true;
  packet.reth = Reth{config_.fifo.address + (index - 1) % kFifoIndices * kFifoEntriesPerIndex * entry_bytes,
                     config_.fifo.rkey, entry_bytes};
  packet.payload = ByteSpan(e, entry_bytes);
  write_roce_frame(config_.control, packet, frame_);
  FrameNote note;
  note.kind = FrameKind::kClearToSend;
  note.connection = id_;
  note.message = cleared_;
  note.psn = control_psn_;
  sink.frame(time_ns, frame_, note);
  control_psn_ = (control_psn_ + 1) & kPsnMask;
  cleared_ += 1;
  cleared_step_ += steps;
}

// Lines of data, flag, data, flag in element order. When the flag counter is about to come round, the rest of the slot
// is written too, with zeros.
void NcclConnection::encode_ll(ByteSpan data) {
  const auto flag = static_cast<std::uint32_t>(step_ + 1);
  std::uint64_t bytes = dataplane::nccl_ll_wire_bytes(data.size());
  const std::uint64_t data_lines = bytes / dataplane::kNcclLlLineBytes;
  if (dataplane::nccl_ll_step_cleans(step_)) bytes = dataplane::kNcclLlSlotBytes;
  wire_.assign(bytes, 0);
  for (std::uint64_t line = 0; line < bytes / dataplane::kNcclLlLineBytes; ++line) {
    std::uint8_t* to = wire_.data() + line * dataplane::kNcclLlLineBytes;
    std::array<std::uint8_t, dataplane::kNcclLlLineDataBytes> words{};
    if (line < data_lines) {
      put_le(words.data(), config_.undefined_word);
      put_le(words.data() + 4, config_.undefined_word);
      const std::uint64_t offset = line * words.size();
      std::memcpy(words.data(), data.data() + offset, std::min<std::uint64_t>(words.size(), data.size() - offset));
    }
    std::memcpy(to, words.data(), 4);
    put_le(to + 4, flag);
    std::memcpy(to + 8, words.data() + 4, 4);
    put_le(to + 12, flag);
  }
}

void NcclConnection::write(WireOpcode opcode, std::uint32_t offset, std::uint32_t bytes, bool last,
                           const RemoteBuffer* target, std::uint32_t dma_bytes, bool immediate) {
  RocePacket packet;
  packet.opcode = opcode;
  packet.psn = data_psn_;
  packet.acknowledge = last || config_.extra_ack_requests.contains(data_psn_);
  if (target != nullptr) packet.reth = Reth{target->address, target->rkey, dma_bytes};
  if (immediate) {
    std::array<std::uint8_t, 4> value{};
    const auto total = static_cast<std::uint32_t>(wire_.size());
    if (config_.immediate_big_endian)
      store_be(value.data(), total);
    else
      put_le(value.data(), total);
    packet.immediate = value;
  }
  packet.payload = ByteSpan(wire_).subspan(offset, bytes);
  write_roce_frame(config_.data, packet, frame_);

  FrameNote note;
  note.kind = FrameKind::kData;
  note.connection = id_;
  note.message = sent_;
  note.psn = data_psn_;
  note.op = meaning_.op;
  if (meaning_.final) {
    const std::uint64_t per_data = protocol_ == NcclProtocol::kLl && !config_.point_to_point ? 2 : 1;
    note.begin = meaning_.begin + std::min(data_bytes_, offset / per_data);
    note.end = meaning_.begin + std::min(data_bytes_, (std::uint64_t{offset} + bytes) / per_data);
  }
  sink_->frame(time_ns_, frame_, note);
  wire_bytes_ += frame_.size();
  data_psn_ = (data_psn_ + 1) & kPsnMask;
}

void NcclConnection::acknowledge(std::uint64_t time_ns, FrameSink& sink) {
  RocePacket packet;
  packet.opcode = WireOpcode::kAcknowledge;
  packet.psn = (data_psn_ - 1) & kPsnMask;
  packet.aeth = Aeth{0, message_sequence_ & kPsnMask};
  write_roce_frame(config_.control, packet, frame_);
  FrameNote note;
  note.kind = FrameKind::kAcknowledge;
  note.connection = id_;
  note.message = sent_;
  note.psn = packet.psn;
  sink.frame(time_ns, frame_, note);
}

std::uint64_t NcclConnection::send(ByteSpan data, std::uint32_t steps, const MessageMeaning& meaning,
                                   std::uint64_t time_ns, FrameSink& sink) {
  if (protocol_ == NcclProtocol::kLl && !config_.point_to_point)
    encode_ll(data);
  else
    wire_.assign(data.begin(), data.end());
  meaning_ = meaning;
  time_ns_ = time_ns;
  sink_ = &sink;
  wire_bytes_ = 0;
  data_bytes_ = data.size();

  const RemoteBuffer target = slot(step_);
  const auto total = static_cast<std::uint32_t>(wire_.size());
  const std::uint32_t mtu = config_.path_mtu_bytes;
  const bool split = config_.style != WriteStyle::kWriteImmediate && total > config_.split_above_bytes;
  if (split && config_.style == WriteStyle::kPerPacketWrites) {
    for (std::uint32_t offset = 0; offset < total; offset += mtu) {
      const std::uint32_t bytes = std::min(mtu, total - offset);
      const RemoteBuffer piece{target.address + offset, target.rkey};
      write(WireOpcode::kWriteOnly, offset, bytes, offset + bytes == total, &piece, bytes, false);
      message_sequence_ += 1;
    }
  } else if (total <= mtu) {
    write(WireOpcode::kWriteOnlyImmediate, 0, total, true, &target, total, true);
    message_sequence_ += 1;
  } else {
    for (std::uint32_t offset = 0; offset < total; offset += mtu) {
      const std::uint32_t bytes = std::min(mtu, total - offset);
      if (offset == 0)
        write(WireOpcode::kWriteFirst, 0, bytes, false, &target, total, false);
      else if (offset + bytes < total)
        write(WireOpcode::kWriteMiddle, offset, bytes, false, nullptr, 0, false);
      else
        write(split ? WireOpcode::kWriteLast : WireOpcode::kWriteLastImmediate, offset, bytes, true, nullptr, 0,
              !split);
    }
    message_sequence_ += 1;
  }
  if (split) {
    const RemoteBuffer nowhere;
    write(WireOpcode::kWriteOnlyImmediate, total, 0, true, &nowhere, 0, true);
    message_sequence_ += 1;
  }
  if (config_.acknowledge) acknowledge(time_ns, sink);
  step_ += steps;
  sent_ += 1;
  return wire_bytes_;
}

}  // namespace gradtap::generator
