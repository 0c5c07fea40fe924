// What the decoder tests share: captures, collecting sinks, synthetic gloo streams and frames. One thread.
#pragma once

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include <doctest/doctest.h>

#include "common/clock.h"
#include "common/random.h"
#include "dataplane/gloo_decoder.h"
#include "dataplane/memory_port.h"
#include "tests/test_files.h"

namespace gradtap::dataplane::testing {

using gradtap::testing::capture_path;

using MessageName =
    std::tuple<int, int, std::uint32_t, std::uint32_t, int, std::uint32_t>;  // source target comm tag type index

struct CollectedMessage {
  std::uint64_t length = 0;
  std::vector<std::uint8_t> bytes;
  std::vector<bool> seen;
  bool provisional = false;
};

// Puts messages together; checks every segment against its message's bounds and copies against one another.
class CollectingSink final : public SegmentSink {
 public:
  void segment(const Segment& s) override {
    ++segments;
    if (s.provisional) ++provisional;
    auto& message =
        messages[{s.source_rank, s.target_rank, s.op.comm, s.op.tag, static_cast<int>(s.type), s.message_index}];
    if (message.bytes.empty()) {
      message.length = s.message_bytes;
      message.bytes.resize(s.message_bytes);
      message.seen.resize(s.message_bytes);
      message.provisional = s.provisional;
    }
    REQUIRE(message.length == s.message_bytes);
    REQUIRE(message.provisional == s.provisional);
    REQUIRE(s.offset_bytes + s.bytes <= s.message_bytes);
    REQUIRE((s.data != nullptr || s.bytes == 0));
    for (std::uint32_t i = 0; i < s.bytes; ++i) {
      if (message.seen[s.offset_bytes + i] && message.bytes[s.offset_bytes + i] != s.data[i]) ++conflicts;
      message.seen[s.offset_bytes + i] = true;
      message.bytes[s.offset_bytes + i] = s.data[i];
    }
  }
  void keep(const OwnedBytes& bytes) override { kept.push_back(bytes); }
  void hand_over(std::uint16_t queue, std::uint32_t index) override { handed[queue].push_back(index); }

  std::map<MessageName, CollectedMessage> messages;
  std::vector<OwnedBytes> kept;
  std::map<std::uint16_t, std::vector<std::uint32_t>> handed;
  std::uint64_t segments = 0;
  std::uint64_t provisional = 0;
  std::uint64_t conflicts = 0;
};

inline std::vector<IpAddress> rig_endpoints(int ranks) {
  std::vector<IpAddress> endpoints;
  for (int i = 0; i < ranks; ++i) endpoints.push_back(parse_ip("10.77.0.1" + std::to_string(i)).value());
  return endpoints;
}

inline GlooDecoderConfig rig_config() {
  GlooDecoderConfig config;
  config.checksum = ChecksumPolicy::kOffload;  // the captures come from a switch inside one machine
  config.flow.emit_all_payload = true;
  return config;
}

inline std::vector<Frame> views(const std::vector<MemoryFrame>& frames) {
  std::vector<Frame> result;
  for (const MemoryFrame& frame : frames) {
    result.push_back({frame.bytes.data(), static_cast<std::uint32_t>(frame.bytes.size()), frame.wire_bytes, nullptr});
  }
  return result;
}

// Decodes everything with one queue in bursts of 32, time advancing.
struct SingleQueue {
  explicit SingleQueue(const GlooDecoderConfig& config, int ranks = 4) : decoder(config, directory, clock, 0) {
    REQUIRE(directory.set_endpoints(rig_endpoints(ranks)).has_value());
  }
  void run(const std::vector<MemoryFrame>& frames) {
    const std::vector<Frame> all = views(frames);
    for (std::size_t i = 0; i < all.size(); i += 32) {
      clock.advance_ms(1);
      decoder.decode(std::span(all).subspan(i, std::min<std::size_t>(32, all.size() - i)), sink);
      decoder.tick(sink);
    }
  }
  ManualClock clock;
  FlowDirectory directory;
  GlooDecoder decoder;
  CollectingSink sink;
};

// --- synthetic streams ---

inline void put_le(std::vector<std::uint8_t>& out, std::uint64_t value) {
  for (int i = 0; i < 8; ++i) out.push_back(static_cast<std::uint8_t>(value >> (8 * i)));
}

inline void put_header(std::vector<std::uint8_t>& out, int opcode, int type, std::uint32_t tag, std::uint64_t length) {
  put_le(out, 48 + (opcode == 1 ? length : 0));
  put_le(out, static_cast<std::uint64_t>(opcode));
  put_le(out, std::uint64_t(type) << 56 | std::uint64_t{tag} << 24);
  put_le(out, 0);
  put_le(out, length);
  put_le(out, 0);
}

inline void put_message(std::vector<std::uint8_t>& out, int type, std::uint32_t tag, std::uint32_t seed,
                        std::uint64_t length) {
  put_header(out, 1, type, tag, length);
  SeededRandom random(seed * 7919ULL + tag);
  for (std::uint64_t i = 0; i < length; ++i) out.push_back(static_cast<std::uint8_t>(random.next() | 0x80));
}

struct FrameSpec {
  std::string source = "10.77.0.11";
  std::string target = "10.77.0.10";
  std::uint16_t source_port = 40000;
  std::uint16_t target_port = 5000;
  std::uint32_t sequence = 0;
  std::uint32_t acknowledgement = 0;
  std::uint8_t flags = kTcpAck;
  std::vector<std::uint8_t> payload;
  std::vector<std::uint16_t> vlan_types;
  std::size_t padding = 0;
  std::vector<std::uint8_t> ip_options;   // IPv4, multiple of 4
  std::vector<std::uint8_t> tcp_options;  // multiple of 4
  bool ipv6_hop_by_hop = false;
};

// A plain sum, written apart from the product's.
inline std::uint16_t naive_checksum(const std::vector<std::uint8_t>& bytes) {
  std::uint32_t sum = 0;
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    sum += static_cast<std::uint32_t>(bytes[i]) << (i % 2 == 0 ? 8 : 0);
    if (sum > 0xffff) sum -= 0xffff;
  }
  return static_cast<std::uint16_t>(~sum);
}

inline std::vector<std::uint8_t> make_frame(const FrameSpec& spec) {
  const auto be16 = [](std::vector<std::uint8_t>& out, std::size_t v) {
    out.push_back(static_cast<std::uint8_t>(v >> 8));
    out.push_back(static_cast<std::uint8_t>(v));
  };
  const auto be32 = [&](std::vector<std::uint8_t>& out, std::uint32_t v) {
    be16(out, v >> 16);
    be16(out, v & 0xffff);
  };
  const IpAddress source = parse_ip(spec.source).value();
  const IpAddress target = parse_ip(spec.target).value();
  const bool v4 = source.is_v4();
  std::vector<std::uint8_t> tcp;
  be16(tcp, spec.source_port);
  be16(tcp, spec.target_port);
  be32(tcp, spec.sequence);
  be32(tcp, spec.acknowledgement);
  tcp.push_back(static_cast<std::uint8_t>((20 + spec.tcp_options.size()) / 4 << 4));
  tcp.push_back(spec.flags);
  be16(tcp, 65000);
  be16(tcp, 0);
  be16(tcp, 0);
  tcp.insert(tcp.end(), spec.tcp_options.begin(), spec.tcp_options.end());
  tcp.insert(tcp.end(), spec.payload.begin(), spec.payload.end());
  std::vector<std::uint8_t> pseudo(source.bytes.begin() + (v4 ? 12 : 0), source.bytes.end());
  pseudo.insert(pseudo.end(), target.bytes.begin() + (v4 ? 12 : 0), target.bytes.end());
  be32(pseudo, static_cast<std::uint32_t>(tcp.size()));
  be32(pseudo, 6);
  pseudo.insert(pseudo.end(), tcp.begin(), tcp.end());
  const std::uint16_t sum = naive_checksum(pseudo);
  tcp[16] = static_cast<std::uint8_t>(sum >> 8);
  tcp[17] = static_cast<std::uint8_t>(sum);

  std::vector<std::uint8_t> frame{2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2};
  for (const std::uint16_t type : spec.vlan_types) {
    be16(frame, type);
    be16(frame, 42);
  }
  be16(frame, v4 ? 0x0800 : 0x86dd);
  if (v4) {
    std::vector<std::uint8_t> ip{static_cast<std::uint8_t>(0x40 | (20 + spec.ip_options.size()) / 4), 0};
    be16(ip, 20 + spec.ip_options.size() + tcp.size());
    be32(ip, 0x00014000);
    ip.push_back(64);
    ip.push_back(6);
    be16(ip, 0);
    ip.insert(ip.end(), source.bytes.begin() + 12, source.bytes.end());
    ip.insert(ip.end(), target.bytes.begin() + 12, target.bytes.end());
    ip.insert(ip.end(), spec.ip_options.begin(), spec.ip_options.end());
    const std::uint16_t header = naive_checksum(ip);
    ip[10] = static_cast<std::uint8_t>(header >> 8);
    ip[11] = static_cast<std::uint8_t>(header);
    frame.insert(frame.end(), ip.begin(), ip.end());
  } else {
    be32(frame, 0x60000000);
    be16(frame, tcp.size() + (spec.ipv6_hop_by_hop ? 8 : 0));
    frame.push_back(spec.ipv6_hop_by_hop ? 0 : 6);
    frame.push_back(64);
    frame.insert(frame.end(), source.bytes.begin(), source.bytes.end());
    frame.insert(frame.end(), target.bytes.begin(), target.bytes.end());
    if (spec.ipv6_hop_by_hop) frame.insert(frame.end(), {6, 0, 1, 4, 0, 0, 0, 0});
  }
  frame.insert(frame.end(), tcp.begin(), tcp.end());
  frame.insert(frame.end(), spec.padding, 0xee);
  return frame;
}

}  // namespace gradtap::dataplane::testing
