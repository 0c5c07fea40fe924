// A sender of RDMA messages for tests: packets as RoceFrames, with payload that says where it belongs, and the truth
// about every message. Written apart from the product's arithmetic. One thread.
#pragma once

#include <cstdint>
#include <cstring>
#include <deque>
#include <memory>
#include <vector>

#include <doctest/doctest.h>

#include "dataplane/roce_flow.h"

namespace gradtap::dataplane::testing {

enum class WriteStyle : std::uint8_t { kImmediate, kSplit, kSingles, kNoImmediate };

struct SentMessage {
  std::uint64_t first_psn = 0;
  std::uint64_t end_psn = 0;
  std::uint64_t bytes = 0;
  std::uint64_t address = 0;
  WriteStyle style = WriteStyle::kImmediate;
};

inline std::uint8_t payload_byte(std::uint64_t message, std::uint64_t offset) {
  return static_cast<std::uint8_t>((message * 1000003 + offset) * 2654435761U >> 13);
}

class RoceSender {
 public:
  explicit RoceSender(std::uint32_t mtu, std::uint64_t first_psn = 0) : mtu_(mtu), psn_(first_psn) {}

  void send(std::uint64_t bytes, WriteStyle style = WriteStyle::kImmediate, bool big_endian = false) {
    const std::uint64_t number = messages.size();
    const std::uint64_t address = 0x7f0000000000 + (number % 8) * 0x10000000;
    SentMessage sent{psn_, psn_, bytes, address, style};
    const auto immediate = static_cast<std::uint32_t>(bytes);
    const std::uint32_t wire = big_endian ? __builtin_bswap32(immediate) : immediate;
    if (bytes == 0 || style == WriteStyle::kSingles) {
      for (std::uint64_t at = 0; at < bytes; at += mtu_) {
        const std::uint64_t size = bytes - at < mtu_ ? bytes - at : mtu_;
        packet(0x0a, number, at, size, address + at, static_cast<std::uint32_t>(size), 0);
      }
      packet(0x0b, number, 0, 0, bytes == 0 ? address : 0, 0, wire);
    } else {
      const bool with_immediate = style == WriteStyle::kImmediate;
      for (std::uint64_t at = 0; at < bytes; at += mtu_) {
        const bool first = at == 0, last = at + mtu_ >= bytes;
        const std::uint8_t opcode = first && last ? (with_immediate ? 0x0b : 0x0a)
                                    : first       ? 0x06
                                    : !last       ? 0x07
                                                  : (with_immediate ? 0x09 : 0x08);
        packet(opcode, number, at, last ? bytes - at : mtu_, address, static_cast<std::uint32_t>(bytes), wire);
      }
      if (style == WriteStyle::kSplit) packet(0x0b, number, 0, 0, 0, 0, wire);
    }
    sent.end_psn = psn_;
    messages.push_back(sent);
  }

  std::uint32_t key = 0x1234;
  std::uint16_t source_port = 50000;
  std::vector<RoceFrame> packets;
  std::vector<SentMessage> messages;

 private:
  void packet(std::uint8_t opcode, std::uint64_t message, std::uint64_t offset, std::uint64_t bytes,
              std::uint64_t address, std::uint32_t dma_bytes, std::uint32_t immediate) {
    RoceFrame frame;
    frame.opcode = opcode;
    frame.meaning = roce_opcode(opcode);
    frame.source_port = source_port;
    frame.psn = static_cast<std::uint32_t>(psn_++ & 0xffffff);
    if (frame.meaning.address) {
      frame.address = address;
      frame.key = address == 0 ? 0 : key;
      frame.dma_bytes = dma_bytes;
    }
    if (frame.meaning.immediate) frame.immediate = immediate;
    std::vector<std::uint8_t> data(bytes);
    for (std::uint64_t i = 0; i < bytes; ++i) data[i] = payload_byte(message, offset + i);
    payloads_.push_back(std::move(data));
    frame.payload = payloads_.back();
    packets.push_back(frame);
  }

  std::uint32_t mtu_;
  std::uint64_t psn_;
  std::deque<std::vector<std::uint8_t>> payloads_;
};

// Collects what a flow says and copies the bytes.
class RoceCollector final : public RoceSink {
 public:
  struct Piece {
    RocePiece piece;
    std::vector<std::uint8_t> bytes;
  };
  void piece(const RocePiece& piece) override { pieces.push_back({piece, {piece.data, piece.data + piece.bytes}}); }
  void message(const RoceMessage& message) override { messages.push_back(message); }
  void lost(const PsnRange& psns) override { losses.push_back(psns); }
  void keep(const OwnedBytes& bytes) override { kept.push_back(bytes); }

  std::vector<Piece> pieces;
  std::vector<RoceMessage> messages;
  std::vector<PsnRange> losses;
  std::vector<OwnedBytes> kept;
};

}  // namespace gradtap::dataplane::testing
