#include "generator/side_traffic.h"

#include <algorithm>

#include "dataplane/ip_packet.h"
#include "generator/byte_writer.h"

namespace gradtap::generator {
namespace {

constexpr std::uint32_t kManagementQpn = 1;
constexpr std::uint32_t kForeignQpn = 0x00f000;
constexpr std::uint16_t kEtherArp = 0x0806;
constexpr std::uint16_t kEtherPtp = 0x88f7;
constexpr std::size_t kMinFrameBytes = 60;

}  // namespace

void SideTraffic::write_ethernet(std::uint16_t type, std::size_t bytes) {
  const RocePath& path = paths_[random_.below(paths_.size())];
  frame_.clear();
  put_bytes(frame_, path.target_mac);
  put_bytes(frame_, path.source_mac);
  put(frame_, type);
  while (frame_.size() < std::max(bytes, kMinFrameBytes)) frame_.push_back(static_cast<std::uint8_t>(random_.next()));
}

void SideTraffic::write(std::uint64_t time_ns, FrameSink& sink) {
  if (paths_.empty()) return;
  RocePath path = paths_[random_.below(paths_.size())];
  std::vector<std::uint8_t> payload(4 * (1 + random_.below(200)));
  for (auto& byte : payload) byte = static_cast<std::uint8_t>(random_.next());
  RocePacket packet;
  packet.psn = static_cast<std::uint32_t>(random_.next()) & kPsnMask;
  switch (random_.below(9)) {
    case 0:  // the receiver of a path tells its sender to slow down
      packet.opcode = WireOpcode::kCongestionNotification;
      packet.psn = 0;
      payload.assign(16, 0);
      packet.payload = payload;
      write_roce_frame(path, packet, frame_);
      break;
    case 1:  // a management datagram: DETH, then 64 bytes
      path.target_qpn = kManagementQpn;
      packet.opcode = WireOpcode::kUdSendOnly;
      payload.assign(8 + 64, 0x0d);
      packet.payload = payload;
      write_roce_frame(path, packet, frame_);
      break;
    case 2:  // a vendor's frame
      packet.opcode = static_cast<WireOpcode>(0xaa);
      packet.payload = payload;
      write_roce_frame(path, packet, frame_);
      frame_.back() ^= 0xff;
      break;
    case 3:
      path.target_qpn = kForeignQpn;
      packet.opcode = WireOpcode::kReadRequest;
      packet.reth = Reth{random_.next(), static_cast<std::uint32_t>(random_.next()), 4096};
      write_roce_frame(path, packet, frame_);
      break;
    case 4:
      path.target_qpn = kForeignQpn + 1;
      packet.opcode = WireOpcode::kReadResponseOnly;
      packet.aeth = Aeth{};
      packet.payload = payload;
      write_roce_frame(path, packet, frame_);
      break;
    case 5:
      path.target_qpn = kForeignQpn + 2;
      packet.opcode = WireOpcode::kSendOnly;
      packet.payload = payload;
      write_roce_frame(path, packet, frame_);
      break;
    case 6:  // somebody else's writes, which look like a connection's data
      path.target_qpn = kForeignQpn + 3;
      packet.opcode = WireOpcode::kWriteOnly;
      packet.reth = Reth{0x100000, 0x77, static_cast<std::uint32_t>(payload.size())};
      packet.payload = payload;
      write_roce_frame(path, packet, frame_);
      break;
    case 7:
      write_ethernet(kEtherArp, kMinFrameBytes);
      break;
    default:
      write_ethernet(kEtherPtp, kMinFrameBytes + random_.below(40));
      break;
  }
  sink.frame(time_ns, frame_, FrameNote{});
}

void WithSideTraffic::frame(std::uint64_t time_ns, ByteSpan bytes, const FrameNote& note) {
  next_.frame(time_ns, bytes, note);
  double left = frames_per_frame_;
  while (left > 0 && static_cast<double>(random_.next() >> 11) * 0x1p-53 < left) {
    side_.write(time_ns, next_);
    left -= 1;
  }
}

}  // namespace gradtap::generator
