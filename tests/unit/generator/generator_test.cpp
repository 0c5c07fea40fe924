// The generator's parts: what a job writes is what it was given, in frames that the dataplane reads; faults do what
// they say; wrapped frames are unwrapped to what they were.
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <map>
#include <set>
#include <string>
#include <vector>

#include <doctest/doctest.h>
#include <unistd.h>

#include "common/interval_set.h"
#include "common/random.h"
#include "dataplane/capture_file.h"
#include "dataplane/encapsulation.h"
#include "dataplane/roce_frame.h"
#include "generator/fabric_faults.h"
#include "generator/mirror_wrap.h"
#include "generator/nccl_job.h"
#include "generator/pcap_writer.h"
#include "generator/side_traffic.h"
#include "tests/unit/generator/generated.h"

namespace gradtap::generator {
namespace {

using Bytes = std::vector<std::uint8_t>;
using dataplane::NcclLayout;

JobConfig job_config(NcclLayout layout, std::uint32_t ranks, std::uint32_t channels, bool v4 = true) {
  JobConfig config;
  config.tuning.layout = layout;
  config.tuning.ranks = ranks;
  config.tuning.channels = channels;
  config.tuning.ll_max_bytes = 1 << 20;
  config.cts = cts_format_of(layout);
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    const std::string text = v4 ? "10.0.0." + std::to_string(rank + 1) : "fe80::" + std::to_string(rank + 1);
    config.hosts.push_back({MacAddress{2, 0, 0, 0, 0, static_cast<std::uint8_t>(rank)}, *dataplane::parse_ip(text)});
  }
  return config;
}

dataplane::RoceFrame read_back(const Bytes& bytes) {
  dataplane::MirroredPacket packet;
  REQUIRE(dataplane::find_packet(bytes, 0, dataplane::ChecksumPolicy::kRequired, packet) ==
          dataplane::FrameDrop::kNone);
  dataplane::RoceFrame frame;
  REQUIRE(dataplane::parse_roce(packet.ip, dataplane::IcrcPolicy::kRequired, frame) == dataplane::FrameDrop::kNone);
  return frame;
}

// The words of LL lines that are data.
Bytes data_of_ll(ByteSpan lines) {
  Bytes data;
  for (std::size_t at = 0; at + 16 <= lines.size(); at += 16) {
    data.insert(data.end(), &lines[at], &lines[at] + 4);
    data.insert(data.end(), &lines[at + 8], &lines[at + 8] + 4);
  }
  return data;
}

}  // namespace

TEST_CASE("job: final payloads are the given values, each link brings all but one chunk, every frame is readable") {
  for (const bool v4 : {true, false}) {
    for (const bool ll : {true, false}) {
      CAPTURE(v4);
      CAPTURE(ll);
      SeededRandom random(7);
      JobConfig config = job_config(NcclLayout::k2_20To2_21, 4, 2, v4);
      config.first_psn = 0xfffff0;  // wraps
      if (!ll) config.tuning.ll_max_bytes = 0;
      auto job = NcclJob::make(config);
      REQUIRE(job);
      const Bytes reduced = floats(30001, random);
      Collector seen;
      REQUIRE(job->all_reduce(ElementType::kFloat32, reduced, {}, seen));
      std::map<std::uint32_t, IntervalSet> of_link;  // by sender
      std::map<std::uint32_t, std::uint32_t> next_psn;
      bool wrapped = false;
      for (const HeldFrame& held : seen.frames) {
        const dataplane::RoceFrame frame = read_back(held.bytes);
        CHECK(frame.psn == held.note.psn);
        if (held.note.kind != FrameKind::kData) continue;
        const auto [expected, first] = next_psn.emplace(held.note.connection, 0xfffff0);
        CHECK(frame.psn == expected->second);
        expected->second = (frame.psn + 1) & kPsnMask;
        wrapped = wrapped || frame.psn == 0;
        if (held.note.end == held.note.begin) continue;
        const Bytes data = ll ? data_of_ll(frame.payload) : Bytes(frame.payload.begin(), frame.payload.end());
        const std::uint64_t length = held.note.end - held.note.begin;
        REQUIRE(length <= data.size());
        CHECK(std::memcmp(data.data(), reduced.data() + held.note.begin, length) == 0);
        CHECK(of_link[held.note.connection / 2].add(held.note.begin, held.note.end) == length);
      }
      CHECK(wrapped);
      std::uint64_t total = 0;
      IntervalSet all;
      for (const auto& [sender, ranges] : of_link) {
        CHECK(ranges.total() < reduced.size());
        total += ranges.total();
        for (const Interval& range : ranges.ranges()) all.add(range.begin, range.end);
      }
      CHECK(total == 3 * reduced.size());
      CHECK(all.contains(0, reduced.size()));
    }
  }
}

TEST_CASE("job: partial sums add up in ring order, from what the ranks give") {
  // Three ranks, one channel, 3 x 1024 floats: chunk c is [1024 c, 1024 (c + 1)), begun by rank c + 1.
  SeededRandom random(3);
  JobConfig config = job_config(NcclLayout::kUpTo2_19, 3, 1);
  config.path_mtu_bytes = 4096;
  auto job = NcclJob::make(config);
  REQUIRE(job);
  const Bytes given[3] = {floats(3072, random), floats(3072, random), floats(3072, random)};
  const Bytes reduced = floats(3072, random);
  const std::vector<ByteSpan> spans{given[0], given[1], given[2]};
  Collector seen;
  REQUIRE(job->all_reduce(ElementType::kFloat32, reduced, spans, seen));
  std::map<std::pair<std::uint32_t, std::uint64_t>, Bytes> messages;  // sender, number
  for (const HeldFrame& held : seen.frames) {
    if (held.note.kind != FrameKind::kData) continue;
    const Bytes data = data_of_ll(read_back(held.bytes).payload);
    Bytes& message = messages[{held.note.connection, held.note.message}];
    message.insert(message.end(), data.begin(), data.end());
  }
  for (std::uint32_t chunk = 0; chunk < 3; ++chunk) {
    const std::uint32_t first = (chunk + 1) % 3, second = (chunk + 2) % 3;
    const Bytes& begun = messages.at({first, 0});
    const Bytes& passed_on = messages.at({second, 1});
    for (std::size_t i = 0; i < 1024; ++i) {
      float a, b, sum;
      std::memcpy(&a, given[first].data() + 4 * (1024 * chunk + i), 4);
      std::memcpy(&b, given[second].data() + 4 * (1024 * chunk + i), 4);
      std::memcpy(&sum, passed_on.data() + 4 * i, 4);
      REQUIRE(std::memcmp(begun.data() + 4 * i, &a, 4) == 0);
      REQUIRE(sum == a + b);
    }
    const Bytes& reduced_chunk = messages.at({chunk, 2});
    CHECK(std::memcmp(reduced_chunk.data(), reduced.data() + 4096 * chunk, 4096) == 0);
  }
}

TEST_CASE("job: LL and Simple share the step counter; the control entries name the slot of each message") {
  JobConfig config = job_config(NcclLayout::kFrom2_22, 2, 1);
  config.tuning.ll_max_bytes = 4000;
  config.first_step = 0x7ffffff6;  // the third LL message cleans its whole slot
  auto job = NcclJob::make(config);
  REQUIRE(job);
  SeededRandom random(5);
  Collector seen;
  for (int i = 0; i < 3; ++i) REQUIRE(job->all_reduce(ElementType::kFloat32, floats(101, random), {}, seen));
  REQUIRE(job->all_reduce(ElementType::kFloat32, floats(5001, random), {}, seen));
  std::map<std::uint32_t, std::map<std::uint64_t, std::uint64_t>> cleared;  // address by message
  std::map<std::uint32_t, std::uint64_t> step;
  std::uint64_t cleaned = 0;
  for (const HeldFrame& held : seen.frames) {
    const dataplane::RoceFrame frame = read_back(held.bytes);
    if (held.note.kind == FrameKind::kClearToSend) {
      REQUIRE(frame.payload.size() == 64);
      CHECK(load_le<std::uint64_t>(&frame.payload[32]) == held.note.message + 1);
      CHECK(load_le<std::uint32_t>(&frame.payload[24]) == held.note.connection);
      cleared[held.note.connection][held.note.message] = load_le<std::uint64_t>(frame.payload.data());
    }
    if (held.note.kind != FrameKind::kData || !frame.meaning.address) continue;
    CHECK(frame.address == cleared[held.note.connection].at(held.note.message));
    const std::uint64_t base = job_connections(config)[held.note.connection].ll.address;
    // Messages 0 to 5 are LL ones (two an op), the Simple op begins at the next multiple of four.
    if (held.note.message < 6) {
      const std::uint64_t at = 0x7ffffff6 + held.note.message;
      CHECK(frame.address == base + at % 8 * 0x10000);
      const bool cleans = at >= 0x7ffffff8 && at <= 0x7fffffff;
      CHECK((frame.dma_bytes == 0x10000) == cleans);
      cleaned += cleans ? 1 : 0;
      CHECK(load_le<std::uint32_t>(&frame.payload[4]) == static_cast<std::uint32_t>(at + 1));
    } else {
      const std::uint64_t at = 0x7ffffffc + 2 * (held.note.message - 6);
      const std::uint64_t simple = job_connections(config)[held.note.connection].simple.address;
      CHECK(frame.address == simple + at % 8 * 0x80000);
    }
  }
  CHECK(cleaned == 8);
}

TEST_CASE("job: what cannot be is refused") {
  JobConfig config = job_config(NcclLayout::kUpTo2_19, 2, 1);
  Collector seen;
  config.path_mtu_bytes = 1000;
  CHECK_FALSE(NcclJob::make(config).has_value());
  config.path_mtu_bytes = 1024;
  config.hosts.pop_back();
  CHECK_FALSE(NcclJob::make(config).has_value());
  config = job_config(NcclLayout::kUpTo2_19, 2, 1);
  auto job = NcclJob::make(config);
  REQUIRE(job);
  const Bytes bytes(10);
  CHECK_FALSE(job->all_reduce(ElementType::kFloat32, bytes, {}, seen).has_value());
  CHECK_FALSE(job->all_reduce(ElementType::kFloat32, {}, {}, seen).has_value());
  const std::vector<ByteSpan> one{bytes};
  CHECK_FALSE(job->all_reduce(ElementType::kUint8, bytes, one, seen).has_value());
  CHECK_FALSE(job->all_gather(one, seen).has_value());
  CHECK_FALSE(job->broadcast(2, bytes, seen).has_value());
  CHECK(seen.frames.empty());
}

TEST_CASE("halves and wholes add up exactly, in every type") {
  SeededRandom random(11);
  for (const auto type : {ElementType::kFloat32, ElementType::kFloat64, ElementType::kFloat16, ElementType::kBfloat16,
                          ElementType::kInt32, ElementType::kInt64, ElementType::kUint8}) {
    Bytes whole(8 * 4096);
    for (auto& byte : whole) byte = static_cast<std::uint8_t>(random.next());
    Bytes half(whole.size());
    halve_elements(type, half, whole);
    if (type == ElementType::kFloat32) {
      for (std::size_t i = 0; i < whole.size(); i += 4) {
        float w, h;
        std::memcpy(&w, &whole[i], 4);
        std::memcpy(&h, &half[i], 4);
        if (w != w) continue;
        REQUIRE((h == w / 2 || h == w));
        REQUIRE(h + (w - h) == w);
      }
    }
    if (type == ElementType::kInt32) {
      Bytes rest = whole;
      for (std::size_t i = 0; i < whole.size(); i += 4) {
        std::int32_t w, h;
        std::memcpy(&w, &whole[i], 4);
        std::memcpy(&h, &half[i], 4);
        REQUIRE(h == w / 2);
        const std::int32_t r = w - h;
        std::memcpy(&rest[i], &r, 4);
      }
      add_elements(type, half, rest);
      CHECK(half == whole);
    }
  }
  // bfloat16 rounds to nearest even: 1 + 2^-8 lies half way between 1 and the next number, 1.0078125.
  Bytes one{0x80, 0x3f, 0x81, 0x3f};
  const Bytes small{0x80, 0x3b, 0x80, 0x3b};
  add_elements(ElementType::kBfloat16, one, small);
  CHECK(one == Bytes{0x80, 0x3f, 0x82, 0x3f});
}

TEST_CASE("retransmission: everything comes, some of it twice, and no answer before what it answers") {
  JobConfig config = job_config(NcclLayout::kUpTo2_19, 3, 2);
  auto job = NcclJob::make(config);
  REQUIRE(job);
  SeededRandom random(9);
  Collector clean, seen;
  REQUIRE(job->all_reduce(ElementType::kFloat32, floats(90001, random), {}, clean));
  RetransmissionConfig faults;
  faults.probability = 0.05;
  Retransmission retransmission(faults, random, seen);
  for (const HeldFrame& held : clean.frames) retransmission.frame(held.time_ns, held.bytes, held.note);
  retransmission.finish();
  CHECK(retransmission.repeats() > 20);
  CHECK(seen.frames.size() > clean.frames.size());
  std::set<std::pair<std::uint32_t, std::uint32_t>> there;  // connection, PSN
  std::map<std::uint32_t, std::uint32_t> received;          // connection -> next PSN that the receiver expects
  std::size_t lost_first = 0;
  for (const HeldFrame& held : seen.frames) {
    std::uint32_t& next = received[held.note.connection];
    if (held.note.kind == FrameKind::kData) {
      there.insert({held.note.connection, held.note.psn});
      if (held.note.psn == next) ++next;
      if (held.note.psn > next) ++lost_first;
    }
    if (held.note.kind == FrameKind::kAcknowledge) CHECK(held.note.psn < next);
  }
  CHECK(lost_first > 0);
  for (const HeldFrame& held : clean.frames)
    if (held.note.kind == FrameKind::kData) CHECK(there.contains({held.note.connection, held.note.psn}));
}

TEST_CASE("mirror faults: as many as asked for, the same for the same seed") {
  Collector clean;
  auto job = NcclJob::make(job_config(NcclLayout::kUpTo2_19, 2, 1));
  REQUIRE(job);
  SeededRandom values(1);
  REQUIRE(job->all_reduce(ElementType::kFloat32, floats(100001, values), {}, clean));
  MirrorFaultsConfig faults;
  faults.drop_probability = 0.02;
  faults.burst = 2;
  faults.duplicate_probability = 0.03;
  faults.reorder_probability = 0.05;
  std::vector<Bytes> first;
  for (int round = 0; round < 2; ++round) {
    SeededRandom random(77);
    Collector seen;
    MirrorFaults mirror(faults, random, seen);
    for (const HeldFrame& held : clean.frames) mirror.frame(held.time_ns, held.bytes, held.note);
    mirror.finish();
    CHECK(mirror.dropped() > 0);
    CHECK(mirror.duplicated() > 0);
    CHECK(mirror.reordered() > 0);
    CHECK(seen.frames.size() == clean.frames.size() - mirror.dropped() + mirror.duplicated());
    std::vector<Bytes> frames;
    for (HeldFrame& held : seen.frames) frames.push_back(std::move(held.bytes));
    if (round == 0)
      first = frames;
    else
      CHECK(first == frames);
  }
}

TEST_CASE("wrapped frames are unwrapped to the packet that was mirrored") {
  Collector clean;
  auto job = NcclJob::make(job_config(NcclLayout::kUpTo2_19, 2, 1));
  REQUIRE(job);
  SeededRandom values(1);
  REQUIRE(job->all_reduce(ElementType::kFloat32, floats(1000, values), {}, clean));
  for (const char* name : {"none", "vlan", "qinq", "gre", "erspan1", "erspan2", "erspan3", "vxlan"}) {
    CAPTURE(name);
    WrapConfig config;
    config.wrapping = wrapping_of(name).value();
    Collector seen;
    MirrorWrap mirror(config, seen);
    for (const HeldFrame& held : clean.frames) mirror.frame(held.time_ns, held.bytes, held.note);
    REQUIRE(seen.frames.size() == clean.frames.size());
    for (std::size_t i = 0; i < seen.frames.size(); ++i) {
      const dataplane::RoceFrame inner = read_back(seen.frames[i].bytes);
      const dataplane::RoceFrame plain = read_back(clean.frames[i].bytes);
      CHECK(inner.psn == plain.psn);
      CHECK(inner.target_qp == plain.target_qp);
      CHECK(Bytes(inner.payload.begin(), inner.payload.end()) == Bytes(plain.payload.begin(), plain.payload.end()));
    }
  }
  CHECK_FALSE(wrapping_of("mpls").has_value());
}

TEST_CASE("side traffic: of every kind, and nothing that is data of the job's connections") {
  const auto connections = job_connections(job_config(NcclLayout::kUpTo2_19, 2, 1));
  SideTraffic side({connections[0].data, connections[1].data}, 5);
  Collector seen;
  for (int i = 0; i < 600; ++i) side.write(0, seen);
  std::map<dataplane::RoceKind, int> kinds;
  int bad = 0, other = 0;
  for (const HeldFrame& held : seen.frames) {
    dataplane::MirroredPacket packet;
    dataplane::RoceFrame frame;
    if (dataplane::find_packet(held.bytes, 0, dataplane::ChecksumPolicy::kRequired, packet) !=
        dataplane::FrameDrop::kNone) {
      ++other;
      continue;
    }
    const auto drop = dataplane::parse_roce(packet.ip, dataplane::IcrcPolicy::kRequired, frame);
    if (drop == dataplane::FrameDrop::kBadIcrc) ++bad;
    if (drop != dataplane::FrameDrop::kNone) continue;
    ++kinds[frame.meaning.kind];
    if (frame.meaning.kind == dataplane::RoceKind::kWrite)
      for (const ConnectionConfig& c : connections) CHECK(frame.target_qp != c.data.target_qpn);
  }
  CHECK(bad > 20);
  CHECK(other > 20);
  CHECK(kinds[dataplane::RoceKind::kWrite] > 20);
  CHECK(kinds[dataplane::RoceKind::kRequest] > 20);
  CHECK(kinds[dataplane::RoceKind::kResponse] > 20);
  CHECK(kinds[dataplane::RoceKind::kDatagram] > 20);
  CHECK(kinds[dataplane::RoceKind::kCongestion] > 20);
}

TEST_CASE("pcap files hold what was written") {
  const std::string path =
      std::filesystem::temp_directory_path() / ("gradtap-generator-" + std::to_string(getpid()) + ".pcap");
  Collector clean;
  auto job = NcclJob::make(job_config(NcclLayout::kUpTo2_19, 2, 1));
  REQUIRE(job);
  job->wait_until(1'234'567'890'123'456'789);
  SeededRandom values(1);
  REQUIRE(job->all_reduce(ElementType::kFloat32, floats(1000, values), {}, clean));
  {
    auto writer = PcapWriter::create(path);
    REQUIRE(writer);
    for (const HeldFrame& held : clean.frames) (*writer)->frame(held.time_ns, held.bytes, held.note);
    REQUIRE((*writer)->close());
  }
  const auto file = dataplane::CaptureFile::open(path);
  REQUIRE(file);
  auto walker = file->walk();
  REQUIRE(walker);
  dataplane::CaptureRecord record;
  std::size_t at = 0;
  while (walker->next(record).value()) {
    REQUIRE(at < clean.frames.size());
    CHECK(record.time_ns == clean.frames[at].time_ns);
    CHECK(Bytes(record.bytes.begin(), record.bytes.end()) == clean.frames[at].bytes);
    ++at;
  }
  CHECK(at == clean.frames.size());
  std::remove(path.c_str());
  CHECK_FALSE(PcapWriter::create("/nowhere/at/all.pcap").has_value());
}

}  // namespace gradtap::generator
