#include "generator/mirror_wrap.h"

#include "dataplane/encapsulation.h"
#include "dataplane/ip_packet.h"
#include "generator/byte_writer.h"

namespace gradtap::generator {
namespace {

constexpr std::size_t kMacsBytes = 12;
constexpr std::size_t kOuterIpv4Bytes = 20;
constexpr std::uint16_t kVlanTag = 0x8100;
constexpr std::uint16_t kServiceTag = 0x88a8;
constexpr std::uint16_t kGreEthernet = 0x6558;
constexpr std::uint16_t kGreErspan2 = 0x88be;  // and I, which has no sequence number and no header of its own
constexpr std::uint16_t kGreErspan3 = 0x22eb;
constexpr std::uint16_t kGreHasSequence = 0x1000;

void put_outer_ip(const WrapConfig& config, std::uint8_t protocol, std::size_t payload_bytes,
                  std::vector<std::uint8_t>& to) {
  put_bytes(to, config.target_mac);
  put_bytes(to, config.source_mac);
  put(to, dataplane::kEtherIpv4);
  const std::size_t begin = to.size();
  put<std::uint16_t>(to, 0x4500);
  put(to, static_cast<std::uint16_t>(kOuterIpv4Bytes + payload_bytes));
  put<std::uint32_t>(to, 0x00004000);
  put<std::uint8_t>(to, 64);
  put(to, protocol);
  put<std::uint16_t>(to, 0);
  put(to, config.source_ip);
  put(to, config.target_ip);
  const auto sum = dataplane::ones_complement_sum(ByteSpan(to).subspan(begin, kOuterIpv4Bytes));
  store_be(to.data() + begin + 10, static_cast<std::uint16_t>(~sum));
}

void put_tags(ByteSpan frame, std::initializer_list<std::pair<std::uint16_t, std::uint16_t>> tags,
              std::vector<std::uint8_t>& to) {
  put_bytes(to, frame.first(kMacsBytes));
  for (const auto& [type, id] : tags) {
    put(to, type);
    put(to, id);
  }
  put_bytes(to, frame.subspan(kMacsBytes));
}

}  // namespace

std::optional<Wrapping> wrapping_of(std::string_view name) {
  if (name == "none") return Wrapping::kNone;
  if (name == "vlan") return Wrapping::kVlan;
  if (name == "qinq") return Wrapping::kQinq;
  if (name == "gre") return Wrapping::kGre;
  if (name == "erspan1") return Wrapping::kErspan1;
  if (name == "erspan2") return Wrapping::kErspan2;
  if (name == "erspan3") return Wrapping::kErspan3;
  if (name == "vxlan") return Wrapping::kVxlan;
  return std::nullopt;
}

void wrap(const WrapConfig& config, std::uint32_t sequence, std::uint64_t time_ns, ByteSpan frame,
          std::vector<std::uint8_t>& wrapped) {
  wrapped.clear();
  switch (config.wrapping) {
    case Wrapping::kNone:
      put_bytes(wrapped, frame);
      return;
    case Wrapping::kVlan:
      return put_tags(frame, {{kVlanTag, config.session}}, wrapped);
    case Wrapping::kQinq:
      return put_tags(frame, {{kServiceTag, config.session}, {kVlanTag, config.session}}, wrapped);
    case Wrapping::kGre:
      put_outer_ip(config, dataplane::kProtocolGre, 4 + frame.size(), wrapped);
      put<std::uint16_t>(wrapped, 0);
      put(wrapped, kGreEthernet);
      break;
    case Wrapping::kErspan1:
      put_outer_ip(config, dataplane::kProtocolGre, 4 + frame.size(), wrapped);
      put<std::uint16_t>(wrapped, 0);
      put(wrapped, kGreErspan2);
      break;
    case Wrapping::kErspan2:
      put_outer_ip(config, dataplane::kProtocolGre, 8 + 8 + frame.size(), wrapped);
      put(wrapped, kGreHasSequence);
      put(wrapped, kGreErspan2);
      put(wrapped, sequence);
      put<std::uint16_t>(wrapped, 0x1000);  // version 1, VLAN 0
      put(wrapped, static_cast<std::uint16_t>(config.session & 0x3ff));
      put<std::uint32_t>(wrapped, 0);
      break;
    case Wrapping::kErspan3:
      put_outer_ip(config, dataplane::kProtocolGre, 8 + 12 + frame.size(), wrapped);
      put(wrapped, kGreHasSequence);
      put(wrapped, kGreErspan3);
      put(wrapped, sequence);
      put<std::uint16_t>(wrapped, 0x2000);  // version 2, VLAN 0
      put(wrapped, static_cast<std::uint16_t>(config.session & 0x3ff));
      put(wrapped, static_cast<std::uint32_t>(time_ns / 100000));  // granularity 0: 100 us
      put<std::uint32_t>(wrapped, 0);                              // an Ethernet frame, no platform header
      break;
    case Wrapping::kVxlan: {
      put_outer_ip(config, dataplane::kProtocolUdp, dataplane::kUdpBytes + 8 + frame.size(), wrapped);
      put(wrapped, static_cast<std::uint16_t>(0xc000 | (sequence & 0x3fff)));
      put(wrapped, dataplane::kVxlanPort);
      put(wrapped, static_cast<std::uint16_t>(dataplane::kUdpBytes + 8 + frame.size()));
      put<std::uint16_t>(wrapped, 0);
      put<std::uint32_t>(wrapped, 0x08000000);
      put(wrapped, static_cast<std::uint32_t>(config.session) << 8);
      break;
    }
  }
  put_bytes(wrapped, frame);
}

void MirrorWrap::frame(std::uint64_t time_ns, ByteSpan bytes, const FrameNote& note) {
  wrap(config_, sequence_++, time_ns, bytes, wrapped_);
  next_.frame(time_ns, wrapped_, note);
}

}  // namespace gradtap::generator
