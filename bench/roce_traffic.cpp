#include "bench/roce_traffic.h"

#include <cstdlib>
#include <cstring>
#include <string>
#include <unordered_map>

#include "common/random.h"
#include "dataplane/encapsulation.h"
#include "dataplane/icrc.h"
#include "dataplane/roce_frame.h"

namespace gradtap::bench {
namespace {

using namespace gradtap::dataplane;

generator::JobConfig job_of(const RoceTrafficConfig& config) {
  generator::JobConfig job;
  job.tuning.layout = NcclLayout::kFrom2_22;
  job.tuning.ranks = config.ranks;
  job.tuning.channels = config.channels;
  job.tuning.ll_max_bytes = config.protocol == NcclProtocol::kLl ? ~std::uint64_t{0} : 0;
  job.cts = generator::cts_format_of(job.tuning.layout);
  job.path_mtu_bytes = config.path_mtu_bytes;
  for (std::uint32_t rank = 0; rank < config.ranks; ++rank)
    job.hosts.push_back({generator::MacAddress{2, 0, 0, 0, 0, static_cast<std::uint8_t>(rank)},
                         parse_ip("10.0.0." + std::to_string(rank + 1)).value()});
  return job;
}

struct Read {
  MirroredPacket packet;
  RoceFrame roce;
  ByteSpan udp;
};

Read read(ByteSpan frame) {
  Read read;
  if (find_packet(frame, 0, ChecksumPolicy::kRequired, read.packet) != FrameDrop::kNone ||
      parse_roce(read.packet.ip, IcrcPolicy::kRequired, read.roce) != FrameDrop::kNone)
    std::abort();
  read.udp = roce_datagram(read.packet.ip);
  return read;
}

constexpr std::size_t kPsnInBth = 9;

}  // namespace

class RoceTraffic::Recorder final : public generator::FrameSink {
 public:
  explicit Recorder(RoceTraffic& traffic) : traffic_(traffic) {}
  void frame(std::uint64_t /*time_ns*/, ByteSpan bytes, const generator::FrameNote& /*note*/) override {
    Numbered numbered;
    numbered.offset = traffic_.bytes_.size();
    numbered.size = static_cast<std::uint16_t>(bytes.size());
    traffic_.numbered_.push_back(numbered);
    traffic_.bytes_.insert(traffic_.bytes_.end(), bytes.begin(), bytes.end());
  }

 private:
  RoceTraffic& traffic_;
};

RoceTraffic::RoceTraffic(const RoceTrafficConfig& config) : job_(job_of(config)) {
  auto job = generator::NcclJob::make(job_).value();
  Recorder recorder(*this);
  SeededRandom random(1);
  for (const std::uint64_t elements : config.elements) {
    std::vector<std::uint8_t>& values = reduced_.emplace_back(elements * 4);
    for (std::uint64_t at = 0; at < elements; ++at) {
      const float value = static_cast<float>(random.below(2'000'001)) / 65536.0F - 15.0F;
      std::memcpy(&values[4 * at], &value, 4);
    }
    if (!job.all_reduce(generator::ElementType::kFloat32, values, {}, recorder)) std::abort();
  }
  for (const Numbered& frame : numbered_) views_.emplace_back(bytes_.data() + frame.offset, frame.size);
  find_numbers();
}

// How many numbers each queue pair uses in a pass. An acknowledgement has the number of the data that go to the other
// queue pair of its connection: the generator gives a connection two numbers that differ in the last bit.
void RoceTraffic::find_numbers() {
  std::unordered_map<std::uint32_t, std::uint32_t> strides;
  for (const ByteSpan frame : views_) {
    const Read seen = read(frame);
    if (seen.roce.meaning.kind != RoceKind::kWrite) continue;
    ++strides[seen.roce.target_qp];
    payload_bytes_ += seen.roce.payload.size();
  }
  for (std::size_t i = 0; i < views_.size(); ++i) {
    const Read seen = read(views_[i]);
    const bool acknowledges = seen.roce.meaning.kind == RoceKind::kAcknowledgement;
    numbered_[i].psn_at = static_cast<std::uint16_t>(seen.udp.data() + kUdpBytes + kPsnInBth - views_[i].data());
    numbered_[i].first = seen.roce.psn;
    numbered_[i].stride = strides.at(seen.roce.target_qp ^ (acknowledges ? 1 : 0));
  }
}

void RoceTraffic::number(std::size_t begin, std::size_t end, std::uint32_t pass, bool check_values) {
  for (std::size_t i = begin; i < end; ++i) {
    const Numbered& frame = numbered_[i];
    std::uint8_t* const at = bytes_.data() + frame.offset + frame.psn_at;
    const std::uint32_t psn = frame.first + pass * frame.stride;
    at[0] = static_cast<std::uint8_t>(psn >> 16);
    at[1] = static_cast<std::uint8_t>(psn >> 8);
    at[2] = static_cast<std::uint8_t>(psn);
    if (!check_values) continue;
    MirroredPacket packet;
    if (find_packet(views_[i], 0, ChecksumPolicy::kRequired, packet) != FrameDrop::kNone) std::abort();
    const ByteSpan udp = roce_datagram(packet.ip);
    const std::uint32_t value = icrc_of(packet.ip, udp);
    std::memcpy(const_cast<std::uint8_t*>(udp.data()) + udp.size() - kIcrcBytes, &value, kIcrcBytes);
  }
}

}  // namespace gradtap::bench
