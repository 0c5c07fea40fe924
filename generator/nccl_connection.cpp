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
      data_psns_(1 + config_.more_data.size(), config_.data_psn),
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

// LL128 (prims_ll128.h in NCCL): slices of 1920 data bytes become 16 lines of 128 bytes, the last 8 of each a
// flag. A warp loads 16 bytes a lane; lanes that store a flag pass the word it displaces to the block behind.
void NcclConnection::encode_ll128(ByteSpan data) {
  constexpr std::size_t kSliceData = 1920, kSliceWire = 2048, kWord = 8, kLanes = 32, kBlocks = 4;
  const std::uint64_t flag = step_ + 1;
  const std::size_t slices = (data.size() + kSliceData - 1) / kSliceData;
  wire_.assign(slices * kSliceWire, 0);
  for (std::size_t slice = 0; slice < slices; ++slice) {
    const auto copy = [&](std::size_t to_word, std::size_t from_word) {
      const std::size_t from = slice * kSliceData + from_word * kWord;
      if (from < data.size())
        std::memcpy(wire_.data() + slice * kSliceWire + to_word * kWord, data.data() + from,
                    std::min(kWord, data.size() - from));
    };
    const auto source = [](std::size_t block, std::size_t lane) {
      return kLanes * block - 4 * (block / 2) + lane - (block % 2 == 1 ? lane / 8 : 0);
    };
    for (std::size_t block = 0; block < kBlocks; ++block)
      for (std::size_t lane = 0; lane < kLanes; ++lane) {
        const std::size_t to = 2 * kLanes * block + 2 * lane;
        if (lane % 8 != 7) {
          copy(to, 2 * source(block, lane));
          copy(to + 1, 2 * source(block, lane) + 1);
          continue;
        }
        copy(to, block % 2 == 0 ? 2 * source(block, lane) : 2 * source(block - 1, lane) + 1);
        put_le(wire_.data() + slice * kSliceWire + (to + 1) * kWord, flag);
      }
  }
}

void NcclConnection::write(WireOpcode opcode, std::uint32_t offset, std::uint32_t bytes, bool last,
                           const RemoteBuffer* target, std::uint32_t dma_bytes, bool immediate) {
  RocePacket packet;
  packet.opcode = opcode;
  std::uint32_t& psn = data_psns_[queue_pair_];
  packet.psn = psn;
  packet.acknowledge = last || config_.extra_ack_requests.contains(psn);
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
  write_roce_frame(queue_pair_ == 0 ? config_.data : config_.more_data[queue_pair_ - 1], packet, frame_);

  FrameNote note;
  note.kind = FrameKind::kData;
  note.connection = id_;
  note.message = sent_;
  note.psn = psn;
  note.op = meaning_.op;
  if (meaning_.final && !config_.ll128) {
    const std::uint64_t per_data = protocol_ == NcclProtocol::kLl && !config_.point_to_point ? 2 : 1;
    note.begin = meaning_.begin + std::min(data_bytes_, offset / per_data);
    note.end = meaning_.begin + std::min(data_bytes_, (std::uint64_t{offset} + bytes) / per_data);
  }
  sink_->frame(time_ns_, frame_, note);
  wire_bytes_ += frame_.size();
  psn = (psn + 1) & kPsnMask;
}

void NcclConnection::acknowledge(std::uint64_t time_ns, FrameSink& sink) {
  RocePacket packet;
  packet.opcode = WireOpcode::kAcknowledge;
  packet.psn = (data_psns_[queue_pair_] - 1) & kPsnMask;
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
  if (protocol_ == NcclProtocol::kLl && !config_.point_to_point && config_.ll128)
    encode_ll128(data);
  else if (protocol_ == NcclProtocol::kLl && !config_.point_to_point)
    encode_ll(data);
  else
    wire_.assign(data.begin(), data.end());
  meaning_ = meaning;
  time_ns_ = time_ns;
  sink_ = &sink;
  wire_bytes_ = 0;
  data_bytes_ = data.size();

  const auto total = static_cast<std::uint32_t>(wire_.size());
  const auto queue_pairs = static_cast<std::uint32_t>(data_psns_.size());
  if (queue_pairs > 1 && config_.cut_over_queue_pairs) {
    constexpr std::uint32_t kAlignBytes = 128;
    const std::uint32_t even = (total + queue_pairs - 1) / queue_pairs;
    const std::uint32_t piece = (even + kAlignBytes - 1) / kAlignBytes * kAlignBytes;
    for (std::uint32_t i = 0; i < queue_pairs; ++i)
      write_message(i, std::min(total, i * piece), std::min(total, (i + 1) * piece));
  } else {
    write_message(sent_ % queue_pairs, 0, total);
  }
  if (config_.acknowledge) acknowledge(time_ns, sink);
  step_ += steps;
  sent_ += 1;
  return wire_bytes_;
}

// Bytes [begin, end) of the message; the immediate says how long all of it is.
void NcclConnection::write_message(std::size_t queue_pair, std::uint32_t begin, std::uint32_t end) {
  queue_pair_ = queue_pair;
  RemoteBuffer target = slot(step_);
  target.address += begin;
  const std::uint32_t total = end - begin;
  const std::uint32_t mtu = config_.path_mtu_bytes;
  const bool split = config_.style != WriteStyle::kWriteImmediate && total > config_.split_above_bytes;
  if (split && config_.style == WriteStyle::kPerPacketWrites) {
    for (std::uint32_t offset = 0; offset < total; offset += mtu) {
      const std::uint32_t bytes = std::min(mtu, total - offset);
      const RemoteBuffer piece{target.address + offset, target.rkey};
      write(WireOpcode::kWriteOnly, begin + offset, bytes, offset + bytes == total, &piece, bytes, false);
      message_sequence_ += 1;
    }
  } else if (total <= mtu) {
    write(WireOpcode::kWriteOnlyImmediate, begin, total, true, &target, total, true);
    message_sequence_ += 1;
  } else {
    for (std::uint32_t offset = 0; offset < total; offset += mtu) {
      const std::uint32_t bytes = std::min(mtu, total - offset);
      if (offset == 0)
        write(WireOpcode::kWriteFirst, begin, bytes, false, &target, total, false);
      else if (offset + bytes < total)
        write(WireOpcode::kWriteMiddle, begin + offset, bytes, false, nullptr, 0, false);
      else
        write(split ? WireOpcode::kWriteLast : WireOpcode::kWriteLastImmediate, begin + offset, bytes, true, nullptr, 0,
              !split);
    }
    message_sequence_ += 1;
  }
  if (split) {
    const RemoteBuffer nowhere;
    write(WireOpcode::kWriteOnlyImmediate, end, 0, true, &nowhere, 0, true);
    message_sequence_ += 1;
  }
}

}  // namespace gradtap::generator
