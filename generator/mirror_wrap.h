// MirrorWrap: what switches put around the copies that they send to a collector.
//
// 802.1Q and QinQ tags, GRE with Ethernet inside, ERSPAN I, II and III, VXLAN, each over IPv4. A stage between a job
// and a sink; `wrap` alone is pure. Ownership: one scratch frame. Threads: one.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "generator/fabric_frame.h"
#include "generator/roce_writer.h"

namespace gradtap::generator {

enum class Wrapping : std::uint8_t { kNone, kVlan, kQinq, kGre, kErspan1, kErspan2, kErspan3, kVxlan };
[[nodiscard]] std::optional<Wrapping> wrapping_of(std::string_view name);

struct WrapConfig {
  Wrapping wrapping = Wrapping::kNone;
  MacAddress source_mac{0x02, 0, 0, 0, 0, 0xfe};
  MacAddress target_mac{0x02, 0, 0, 0, 0, 0xff};
  std::uint32_t source_ip = 0x0aff0001;
  std::uint32_t target_ip = 0x0aff0002;
  std::uint16_t session = 7;  // ERSPAN session, VLAN or VXLAN network
};

void wrap(const WrapConfig& config, std::uint32_t sequence, std::uint64_t time_ns, ByteSpan frame,
          std::vector<std::uint8_t>& wrapped);

class MirrorWrap final : public FrameSink {
 public:
  MirrorWrap(const WrapConfig& config, FrameSink& next) : config_(config), next_(next) {}
  void frame(std::uint64_t time_ns, ByteSpan bytes, const FrameNote& note) override;
  void change(Wrapping wrapping) { config_.wrapping = wrapping; }

 private:
  WrapConfig config_;
  FrameSink& next_;
  std::uint32_t sequence_ = 0;
  std::vector<std::uint8_t> wrapped_;
};

}  // namespace gradtap::generator
