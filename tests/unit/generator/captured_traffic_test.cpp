// The generator against real captures: told addresses, queue pairs, first PSNs, keys and what was sent, it must write
// every data and every "clear to send" frame of the capture, byte for byte.
#include <algorithm>
#include <fstream>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "dataplane/capture_file.h"
#include "dataplane/roce_frame.h"
#include "generator/nccl_job.h"
#include "tests/test_files.h"

namespace gradtap::generator {
namespace {

using Bytes = std::vector<std::uint8_t>;
using Json = nlohmann::json;

constexpr std::size_t kIpv6Offset = 14;
constexpr std::size_t kUdpOffset = kIpv6Offset + 40;
constexpr std::size_t kBthOffset = kUdpOffset + 8;
constexpr std::size_t kHeaderBytes = kBthOffset + 12;

struct FlowName {
  std::string target;  // address in hexadecimal
  std::uint32_t qpn = 0;
  auto operator<=>(const FlowName&) const = default;
};
using Frames = std::map<FlowName, std::map<std::uint32_t, Bytes>>;  // by PSN: nothing in these captures is sent twice

std::string hex_of(ByteSpan bytes) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (const std::uint8_t byte : bytes) text.append({kDigits[byte >> 4], kDigits[byte & 15]});
  return text;
}

// RDMA writes of a reliable connection; acknowledgements, datagrams and vendor frames are not the generator's to equal.
bool is_write(const Bytes& frame) {
  return frame.size() > kHeaderBytes && frame[12] == 0x86 && frame[13] == 0xdd && frame[kIpv6Offset + 6] == 17 &&
         load_be<std::uint16_t>(&frame[kUdpOffset + 2]) == 4791 && frame[kBthOffset] >= 0x06 &&
         frame[kBthOffset] <= 0x0b;
}
FlowName flow_of(const Bytes& frame) {
  return {hex_of(ByteSpan(frame).subspan(kIpv6Offset + 24, 16)),
          load_be<std::uint32_t>(&frame[kBthOffset + 4]) & 0xffffff};
}
std::uint32_t psn_of(const Bytes& frame) {
  return load_be<std::uint32_t>(&frame[kBthOffset + 8]) & 0xffffff;
}
bool asks_for_ack(const Bytes& frame) {
  return (frame[kBthOffset + 8] & 0x80) != 0;
}
ByteSpan payload_of(const Bytes& frame) {
  const std::uint8_t opcode = frame[kBthOffset];
  const bool reth = opcode == 0x06 || opcode == 0x0a || opcode == 0x0b;
  const bool immediate = opcode == 0x09 || opcode == 0x0b;
  const std::size_t begin = kHeaderBytes + (reth ? 16 : 0) + (immediate ? 4 : 0);
  return ByteSpan(frame).subspan(begin, frame.size() - begin - 4);
}

class FlowSink final : public FrameSink {
 public:
  void frame(std::uint64_t, ByteSpan bytes, const FrameNote& note) override {
    if (note.kind == FrameKind::kAcknowledge) return;
    Bytes copy(bytes.begin(), bytes.end());
    const auto [at, fresh] = frames[flow_of(copy)].emplace(psn_of(copy), copy);
    CHECK(fresh);
  }
  Frames frames;
};

struct Capture {
  Json truth;  // of this file, from expected.json
  Frames frames;
};

std::optional<Capture> read_capture(const std::string& name) {
  const std::string truth = testing::capture_path("expected.json", "captured traffic");
  const std::string path = testing::capture_path(name, "captured traffic");
  if (truth.empty() || path.empty()) return std::nullopt;
  Capture capture;
  const Json all = Json::parse(std::ifstream(truth));
  for (const Json& one : all["captures"])
    if (one["file"] == name) capture.truth = one;
  REQUIRE(!capture.truth.is_null());
  const auto file = dataplane::CaptureFile::open(path);
  REQUIRE(file);
  auto walker = file->walk();
  REQUIRE(walker);
  dataplane::CaptureRecord record;
  while (walker->next(record).value()) {
    const Bytes bytes(record.bytes.begin(), record.bytes.end());
    if (is_write(bytes)) capture.frames[flow_of(bytes)].emplace(psn_of(bytes), bytes);
  }
  REQUIRE(!capture.frames.empty());
  return capture;
}

std::uint64_t number(const Json& hex) {
  return std::stoull(hex.get<std::string>(), nullptr, 16);
}

RocePath path_from(const Bytes& frame) {
  RocePath path;
  std::copy_n(frame.begin(), 6, path.target_mac.begin());
  std::copy_n(frame.begin() + 6, 6, path.source_mac.begin());
  const std::uint32_t first = load_be<std::uint32_t>(&frame[kIpv6Offset]);
  path.traffic_class = static_cast<std::uint8_t>(first >> 20);
  path.flow_label = first & 0xfffff;
  path.hop_limit = frame[kIpv6Offset + 7];
  std::copy_n(frame.begin() + kIpv6Offset + 8, 16, path.source.bytes.begin());
  std::copy_n(frame.begin() + kIpv6Offset + 24, 16, path.target.bytes.begin());
  path.udp_source_port = load_be<std::uint16_t>(&frame[kUdpOffset]);
  path.migration_request = (frame[kBthOffset + 1] & 0x40) != 0;
  path.partition_key = load_be<std::uint16_t>(&frame[kBthOffset + 2]);
  path.target_qpn = load_be<std::uint32_t>(&frame[kBthOffset + 4]) & 0xffffff;
  return path;
}

// A connection as the capture shows it: its data flow and its control flow, either of which may not have been tapped.
struct Connection {
  const Json* data = nullptr;
  const Json* control = nullptr;
  ConnectionConfig config;
};

std::vector<Connection> connections_of(const Capture& capture) {
  std::map<std::string, Connection> found;  // by the port that both directions share, and the two ends
  for (const Json& flow : capture.truth["flows"]) {
    std::string ends[2] = {flow["src"], flow["dst"]};
    std::sort(std::begin(ends), std::end(ends));
    Connection& one = found[ends[0] + ends[1] + std::to_string(flow["udp_sport"].get<int>())];
    if (flow["role"] == "DATA") one.data = &flow;
    if (flow["role"] == "CTS") one.control = &flow;
  }
  std::vector<Connection> connections;
  for (auto& [name, one] : found) {
    if (one.data == nullptr && one.control == nullptr) continue;
    ConnectionConfig& config = one.config;
    config.acknowledge = false;
    if (one.data != nullptr) {
      const auto& frames = capture.frames.at({(*one.data)["dst"], (*one.data)["dest_qpn"]});
      const Json& messages = (*one.data)["messages"];
      config.data = path_from(frames.begin()->second);
      config.data_psn = messages[0]["psn_first"];
      const Json& observed = (*one.data)["pmtu_observed"];  // null where every message fits one packet
      config.path_mtu_bytes = observed.is_null() ? 1024 : observed.get<std::uint32_t>();
      const bool simple = messages[0]["protocol"] == "Simple";
      config.point_to_point = simple;
      (simple ? config.simple : config.ll) = {number(messages[0]["va"]),
                                              static_cast<std::uint32_t>(number(messages[0]["rkey"]))};
      for (const Json& message : messages) {
        if (message["style"] == "ar_write+imm0") config.style = WriteStyle::kWriteThenImmediate;
        if (message["style"] == "ar_per_packet_writes+imm0") config.style = WriteStyle::kPerPacketWrites;
      }
      for (const auto& [psn, frame] : frames)
        if (asks_for_ack(frame)) config.extra_ack_requests.insert(psn);
    }
    if (one.control != nullptr) {
      const auto& frames = capture.frames.at({(*one.control)["dst"], (*one.control)["dest_qpn"]});
      const Json& first = (*one.control)["messages"][0];
      config.control = path_from(frames.begin()->second);
      config.control_psn = first["psn"];
      config.index = first["cts"]["idx"];
      config.tag = first["cts"]["tag"];
      config.fifo = {number(first["va"]), static_cast<std::uint32_t>(number(first["rkey"]))};
      const RemoteBuffer slots{number(first["cts"]["addr"]), static_cast<std::uint32_t>(number(first["cts"]["rkey"]))};
      config.point_to_point = number(first["cts"]["size"]) != 0x10000;
      (config.point_to_point ? config.simple : config.ll) = slots;
    }
    connections.push_back(one);
  }
  return connections;
}

// The data of a message: its packets' payloads at their places, LL's flags taken out.
Bytes data_of(const Connection& connection, const std::map<std::uint32_t, Bytes>& frames, const Json& message) {
  Bytes wire(message["dma_len"].get<std::size_t>());
  std::size_t at = 0;
  for (std::uint32_t psn = message["psn_first"]; psn <= message["psn_last"].get<std::uint32_t>(); ++psn) {
    const auto frame = frames.find(psn);
    if (frame != frames.end()) {
      const ByteSpan payload = payload_of(frame->second);
      REQUIRE(at + payload.size() <= wire.size());
      std::copy(payload.begin(), payload.end(), wire.begin() + static_cast<std::ptrdiff_t>(at));
    }
    at += connection.config.path_mtu_bytes;
    if (at >= wire.size()) break;
  }
  if (connection.config.point_to_point) return wire;
  Bytes data;
  for (std::size_t line = 0; line + 16 <= wire.size(); line += 16) {
    data.insert(data.end(), wire.begin() + static_cast<std::ptrdiff_t>(line),
                wire.begin() + static_cast<std::ptrdiff_t>(line) + 4);
    data.insert(data.end(), wire.begin() + static_cast<std::ptrdiff_t>(line) + 8,
                wire.begin() + static_cast<std::ptrdiff_t>(line) + 12);
  }
  return data;
}

// Every captured frame is there and equal; what was written beyond the capture is what the mirror is known to have
// lost.
void check_equal(const Capture& capture, const Frames& written) {
  std::uint64_t compared = 0;
  for (const auto& [flow, frames] : capture.frames) {
    CAPTURE(flow.target);
    CAPTURE(flow.qpn);
    const auto ours = written.find(flow);
    REQUIRE(ours != written.end());
    for (const auto& [psn, frame] : frames) {
      CAPTURE(psn);
      const auto one = ours->second.find(psn);
      REQUIRE(one != ours->second.end());
      CHECK(hex_of(one->second) == hex_of(frame));
      compared += 1;
    }
  }
  CHECK(compared > 0);
  for (const auto& [flow, frames] : written) {
    CAPTURE(flow.qpn);
    const auto theirs = capture.frames.find(flow);
    REQUIRE(theirs != capture.frames.end());
    std::set<std::uint32_t> lost;
    for (const Json& truth : capture.truth["flows"])
      if (truth["dst"] == flow.target && truth["dest_qpn"] == flow.qpn && truth["role"] == "DATA")
        for (const Json& message : truth["messages"])
          for (const Json& range : message["missing_psns"])
            for (std::uint32_t psn = range[0]; psn <= range[1].get<std::uint32_t>(); ++psn) lost.insert(psn);
    for (const auto& [psn, frame] : frames) {
      CAPTURE(psn);
      CHECK(theirs->second.contains(psn) == !lost.contains(psn));
    }
  }
}

Frames by_connection(const Capture& capture) {
  FlowSink sink;
  for (const Connection& one : connections_of(capture)) {
    NcclConnection connection(0, one.config);
    if (one.control != nullptr)
      for (std::size_t i = 0; i < (*one.control)["messages"].size(); ++i) connection.clear_to_send(1, 0, sink);
    if (one.data == nullptr) continue;
    const auto& frames = capture.frames.at({(*one.data)["dst"], (*one.data)["dest_qpn"]});
    for (const Json& message : (*one.data)["messages"]) connection.send(data_of(one, frames, message), 1, {}, 0, sink);
  }
  return sink.frames;
}

}  // namespace

TEST_CASE("captured traffic: connections write every data and control frame of the five captures") {
  for (const char* name : {"rdma32.pcapng", "allreduce+p2p.pcapng", "iter_40000_p2p.pcapng",
                           "iter_40000_p2p_iter10_2.pcapng", "iter_80000.pcapng"}) {
    CAPTURE(name);
    const auto capture = read_capture(name);
    if (capture) check_equal(*capture, by_connection(*capture));
  }
}

namespace {

// Two ranks: rank 0 is the sender whose CTS tag is 0. Only ring connections, in channel order.
std::vector<ConnectionConfig> ring_of(const Capture& capture, std::uint32_t channels_connected) {
  std::vector<ConnectionConfig> ring(2UL * channels_connected);
  std::vector<Connection> of_rank[2];
  for (const Connection& one : connections_of(capture))
    if (!one.config.point_to_point) of_rank[one.config.tag].push_back(one);
  for (std::size_t rank = 0; rank < 2; ++rank) {
    REQUIRE(of_rank[rank].size() <= channels_connected);
    for (const Connection& one : of_rank[rank]) {
      const std::size_t channel = (*one.data)["messages"][0]["nccl"].value("channel", std::size_t{0});
      ring[rank * channels_connected + channel] = one.config;
    }
  }
  return ring;
}

JobConfig two_ranks(std::uint32_t channels_connected) {
  JobConfig config;
  config.tuning.ranks = 2;
  config.tuning.channels = channels_connected;
  config.tuning.ll_max_bytes = 1 << 20;
  return config;
}

Capture without_point_to_point(Capture capture) {
  for (const Connection& one : connections_of(capture)) {
    if (!one.config.point_to_point) continue;
    for (const Json* flow : {one.data, one.control})
      if (flow != nullptr) capture.frames.erase({(*flow)["dst"], (*flow)["dest_qpn"]});
  }
  return capture;
}

}  // namespace

// What was reduced is known in closed form: both ranks gave i % 10. Nothing of the payload is taken from the capture.
TEST_CASE("captured traffic: a job that reduces i % 10 over two of four channels writes the two int32 captures") {
  for (const char* name : {"rdma32.pcapng", "allreduce+p2p.pcapng"}) {
    CAPTURE(name);
    const auto capture = read_capture(name);
    if (!capture) continue;
    auto job = NcclJob::make(two_ranks(4), ring_of(*capture, 4));
    REQUIRE(job);
    Bytes given, reduced;
    for (std::int32_t i = 0; i < 5000; ++i) {
      for (const auto& [bytes, value] : {std::pair{&given, i % 10}, std::pair{&reduced, 2 * (i % 10)}})
        for (unsigned shift = 0; shift < 32; shift += 8) bytes->push_back(static_cast<std::uint8_t>(value >> shift));
    }
    FlowSink sink;
    const std::vector<ByteSpan> both{given, given};
    REQUIRE(job->all_reduce(ElementType::kInt32, reduced, both, sink));
    check_equal(without_point_to_point(*capture), sink.frames);
  }
}

// DDP's start and 20 all-reduces: the reduced vectors and what was broadcast are taken from the capture's all-gather
// and broadcast messages; partial sums, order, flags, slots and PSNs are the generator's.
TEST_CASE("captured traffic: a job writes the DDP capture of twenty all-reduces") {
  const auto capture = read_capture("iter_40000_p2p_iter10_2.pcapng");
  if (!capture) return;
  const Connection* from[2] = {nullptr, nullptr};
  const auto connections = connections_of(*capture);
  for (const Connection& one : connections)
    if (!one.config.point_to_point) from[one.config.tag] = &one;
  REQUIRE(from[0] != nullptr);
  REQUIRE(from[1] != nullptr);
  auto job = NcclJob::make(two_ranks(1), ring_of(*capture, 1));
  REQUIRE(job);
  const auto data = [&](std::size_t rank, const Json& message) {
    const auto& frames = capture->frames.at({(*from[rank]->data)["dst"], (*from[rank]->data)["dest_qpn"]});
    return data_of(*from[rank], frames, message);
  };
  const Json& first = (*from[0]->data)["messages"];
  const Json& second = (*from[1]->data)["messages"];
  FlowSink sink;
  std::size_t n = 0, m = 0;
  int reductions = 0;
  while (n < first.size()) {
    const std::string what = first[n]["nccl"]["what"];
    CAPTURE(what);
    if (what.starts_with("allgather")) {
      const Bytes one = data(0, first[n++]), two = data(1, second[m++]);
      const std::vector<ByteSpan> blocks{one, two};
      REQUIRE(job->all_gather(blocks, sink));
    } else if (what.starts_with("broadcast")) {
      REQUIRE(job->broadcast(0, data(0, first[n++]), sink));
    } else {
      // Rank 0 passes on chunk 0 in final form, rank 1 chunk 1.
      Bytes reduced = data(0, first[n + 1]);
      const Bytes rest = data(1, second[m + 1]);
      reduced.insert(reduced.end(), rest.begin(), rest.end());
      n += 2;
      m += 2;
      REQUIRE(reduced.size() == 20000);
      // Both ranks gave half: halves are what the generator draws when nothing else is given.
      REQUIRE(job->all_reduce(ElementType::kFloat32, reduced, {}, sink));
      reductions += 1;
    }
  }
  CHECK(m == second.size());
  CHECK(reductions == 20);
  check_equal(without_point_to_point(*capture), sink.frames);
}

}  // namespace gradtap::generator
