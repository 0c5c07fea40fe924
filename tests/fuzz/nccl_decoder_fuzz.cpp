// Frames of a few queue pairs, in any order and of any content, through the live decoder of NCCL: segments lie inside
// their messages and their bytes can be read, and what waits stays inside its bounds.
#include <array>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "common/clock.h"
#include "dataplane/nccl_decoder.h"
#include "generator/roce_writer.h"

namespace {

using namespace gradtap;
using namespace gradtap::dataplane;

class CheckingSink final : public SegmentSink {
 public:
  void segment(const Segment& segment) override {
    if (segment.data == nullptr) return;
    if (segment.bytes == 0 || segment.offset_bytes + segment.bytes > segment.message_bytes) std::abort();
    touched += segment.data[0] + segment.data[segment.bytes - 1];
  }
  void keep(const OwnedBytes& bytes) override { kept.push_back(bytes); }
  void hand_over(std::uint16_t /*queue*/, std::uint32_t /*frame_index*/) override { std::abort(); }
  std::uint64_t touched = 0;
  std::vector<OwnedBytes> kept;
};

void put(std::uint8_t* to, std::uint32_t value) {
  std::memcpy(to, &value, sizeof value);
}

}  // namespace

// The first byte chooses ranks and protocol; then eight bytes a packet: opcode and flow, PSN step, length, address
// step, immediate, what the payload is, time.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 1) return 0;
  const std::uint32_t ranks = 2 + (data[0] & 1);
  NcclDecoderConfig config;
  config.comm.tuning = {.layout = static_cast<NcclLayout>((data[0] >> 1) % 3),
                        .ranks = ranks,
                        .channels = 2,
                        .ll_max_bytes = (data[0] & 8) != 0 ? 1ULL << 20 : 0};
  config.icrc = IcrcPolicy::kIgnored;
  config.max_flows = 8;
  config.max_connections = 4;
  config.keep_bytes = 32 * 1024;
  config.connection.keep_bytes = 16 * 1024;
  config.connection.parse.max_readings = 16;
  config.table.flow.reorder_window_bytes = 20'000;
  config.table.flow.reorder_grace_packets = 16;
  config.table.flow.recent_messages = 8;
  FlowDirectory directory;
  const std::array hosts{*parse_ip("10.0.0.1"), *parse_ip("10.0.0.2"), *parse_ip("10.0.0.3")};
  if (!directory.set_endpoints(std::span(hosts).first(ranks))) std::abort();
  ManualClock clock;
  NcclDecoder decoder(config, directory, clock);
  CheckingSink sink;
  SizeTable sizes;
  for (const std::uint64_t elements : {64U, 200U, 5000U})
    if (!sizes.add({elements * 4, 4})) std::abort();
  decoder.set_sizes(sizes, sink);

  std::array<std::uint32_t, 8> psns{};
  std::array<std::uint32_t, 8> steps{};
  std::vector<std::uint8_t> frame;
  std::array<std::uint8_t, kMaxPathMtuBytes> payload{};
  for (++data, --size; size >= 8; data += 8, size -= 8) {
    using generator::WireOpcode;
    static constexpr std::array kOpcodes{WireOpcode::kWriteFirst,         WireOpcode::kWriteMiddle,
                                         WireOpcode::kWriteLast,          WireOpcode::kWriteLastImmediate,
                                         WireOpcode::kWriteOnly,          WireOpcode::kWriteOnlyImmediate,
                                         WireOpcode::kWriteOnlyImmediate, WireOpcode::kAcknowledge};
    static constexpr std::array<std::size_t, 8> kSizes{0, 16, 256, 400, 512, 800, 1024, 1712};
    const std::size_t flow = data[0] >> 3 & 7;
    generator::RocePath path;
    path.source = hosts[flow % ranks];
    path.target = hosts[(flow + 1 + (data[6] == 0x55 ? 1 : 0)) % ranks];
    path.target_qpn = static_cast<std::uint32_t>(0x100 + flow + (data[6] == 0x77 ? data[4] : 0));
    path.udp_source_port = static_cast<std::uint16_t>(50000 + flow + (data[6] == 0x99 ? 8 : 0));
    psns[flow] += static_cast<std::uint32_t>(static_cast<std::int8_t>(data[1]) / 16) + ((data[1] & 8) != 0 ? 1 : 0);
    generator::RocePacket packet;
    packet.opcode = kOpcodes[data[0] & 7];
    packet.psn = psns[flow] & (kPsnCount - 1);
    const std::size_t bytes = packet.opcode == WireOpcode::kAcknowledge ? 0 : kSizes[data[2] & 7];
    steps[flow] += data[5] >> 4 & 3;
    for (std::size_t at = 0; at + 4 <= bytes; at += 4) {
      const bool flag = (data[5] & 1) != 0 ? at % 8 == 4 : (data[5] & 2) != 0 && at % 128 == 120;
      put(payload.data() + at, flag ? steps[flow] : (data[5] & 2) != 0 ? 0 : data[3] * 77U);
    }
    packet.payload = ByteSpan(payload).first(bytes);
    const RoceOpcode meaning = roce_opcode(static_cast<std::uint8_t>(packet.opcode));
    if (meaning.address)
      packet.reth = generator::Reth{0x10000 + data[3] * 256ULL, (data[5] & 4) != 0 ? 9U : 7U,
                                    static_cast<std::uint32_t>(bytes + (meaning.ends ? 0 : data[4] * 128U))};
    if (packet.opcode == WireOpcode::kAcknowledge) packet.aeth = generator::Aeth{0, 0};
    if (meaning.immediate) {
      std::array<std::uint8_t, 4> immediate{};
      put(immediate.data(), (data[5] & 8) != 0 ? data[4] * 128U : static_cast<std::uint32_t>(bytes));
      packet.immediate = immediate;
    }
    generator::write_roce_frame(path, packet, frame);
    const Frame one{frame.data(), static_cast<std::uint32_t>(frame.size()), 0, nullptr};
    decoder.decode({&one, 1}, sink);
    clock.advance_ns(data[7] * 1000ULL);
    if (data[7] == 0xff) clock.advance_ms(200);
    if ((data[7] & 15) == 15) decoder.tick(sink);
    if (data[7] == 0xfe) decoder.flush_holes(sink);
    if (data[7] == 0xfd) decoder.begin_lineage(sink);
    if (data[7] == 0xfc) decoder.set_sizes(sizes, sink);
    sink.kept.clear();
    std::size_t kept = 0;
    for (const NcclConnectionReport& connection : decoder.connections()) kept += connection.kept_bytes;
    if (kept > config.keep_bytes) std::abort();
  }
  decoder.flush_holes(sink);
  if (decoder.refusal() != directory.refusal()) std::abort();
  return 0;
}
