#include "bench/roce_tap.h"

#include <cstring>
#include <utility>
#include <vector>

#include "common/clock.h"
#include "dataplane/nccl_decoder.h"
#include "dataplane/nccl_ring.h"
#include "dataplane/op_window.h"
#include "dataplane/roce_frame.h"

namespace gradtap::bench {
namespace {

using namespace gradtap::dataplane;

class ReceiveTap final : public RoceTap {
 public:
  void burst(std::span<const Frame> /*frames*/) override {}
};

// The payloads one behind the other, as far as a buffer of the size of a pass's all-reduces goes; then from its start.
class CopyTap final : public RoceTap {
 public:
  explicit CopyTap(std::size_t bytes) : buffer_(bytes + kMaxPathMtuBytes) {}
  void burst(std::span<const Frame> frames) override {
    constexpr std::size_t kBth = 14 + 20 + 8, kReth = 16;
    for (const Frame& frame : frames) {
      const RoceOpcode opcode = roce_opcode(frame.data[kBth]);
      if (opcode.kind != RoceKind::kWrite) continue;
      const std::size_t header = kBth + kBthBytes + (opcode.address ? kReth : 0) + (opcode.immediate ? 4 : 0);
      const std::size_t bytes = frame.bytes - header - kIcrcBytes;
      if (at_ + bytes > buffer_.size()) at_ = 0;
      std::memcpy(buffer_.data() + at_, frame.data + header, bytes);
      at_ += bytes;
      copied_ += bytes;
    }
  }
  void pass_over() override { expected_ += pass_bytes_; }
  [[nodiscard]] std::string wrong() override { return copied_ == expected_ ? "" : "not all of the payload was copied"; }
  void expect(std::uint64_t pass_bytes) { pass_bytes_ = pass_bytes; }

 private:
  std::vector<std::uint8_t> buffer_;
  std::size_t at_ = 0;
  std::uint64_t copied_ = 0;
  std::uint64_t pass_bytes_ = 0;
  std::uint64_t expected_ = 0;
};

class DecodeTap : public RoceTap, protected SegmentSink {
 public:
  DecodeTap(const RoceTraffic& traffic, bool verify_icrc)
      : traffic_(traffic), decoder_(config_of(traffic.job(), verify_icrc), directory_, clock_) {
    std::vector<IpAddress> endpoints;
    for (const generator::JobHost& host : traffic.job().hosts) endpoints.push_back(host.address);
    (void)directory_.set_endpoints(endpoints).value();
    for (const auto& values : traffic.reduced()) (void)sizes_.add({values.size(), 4}).value();
  }
  void burst(std::span<const Frame> frames) override {
    clock_.advance_ns(1000);
    decoder_.decode(frames, *this);
    kept_.clear();
  }
  // A live node ticks between bursts. The first pass ends unnumbered: channels are numbered when all had time to
  // appear.
  void pass_over() override {
    clock_.advance_ms(passes_ == 0 ? 100 : 1);
    decoder_.tick(*this);
    if (passes_ == 0) decoder_.set_sizes(sizes_, *this), decoder_.tick(*this);
    kept_.clear();
    ++passes_;
    const std::size_t all_reduces = traffic_.reduced().size();
    for (std::size_t i = 0; i < all_reduces; ++i) all_reduce_over(next_tag_++, traffic_.reduced()[i]);
    decoder_.forget_tags_below(0, next_tag_);
  }
  [[nodiscard]] std::string wrong() override {
    const NcclCounters& counters = decoder_.nccl_counters();
    if (counters.lost_parses + counters.bad_lines + counters.dropped_bytes + counters.foreign_messages > 0)
      return "messages were not understood";
    for (std::size_t drop = 1; drop < kFrameDropCount; ++drop)
      if (decoder_.counters().drops[drop] > 0) return "frames were dropped";
    const std::uint64_t expected = passes_ * traffic_.reduced().size() * traffic_.job().tuning.ranks;
    std::uint64_t found = 0;
    for (const NcclConnectionReport& connection : decoder_.connections())
      found += connection.channel == 0U ? connection.all_reduces : 0;
    return found == expected ? "" : "not all of the all-reduces were found";
  }

 protected:
  void segment(const Segment& /*segment*/) override {}
  void keep(const OwnedBytes& bytes) override { kept_.push_back(bytes); }
  void hand_over(std::uint16_t /*queue*/, std::uint32_t /*frame_index*/) override {}
  virtual void all_reduce_over(std::uint32_t /*tag*/, const std::vector<std::uint8_t>& /*values*/) {}

  const RoceTraffic& traffic_;
  SizeTable sizes_;

 private:
  static NcclDecoderConfig config_of(const generator::JobConfig& job, bool verify_icrc) {
    NcclDecoderConfig config;
    config.comm.tuning = job.tuning;
    config.icrc = verify_icrc ? IcrcPolicy::kRequired : IcrcPolicy::kIgnored;
    return config;
  }
  ManualClock clock_;
  FlowDirectory directory_;
  NcclDecoder decoder_;
  std::vector<OwnedBytes> kept_;
  std::uint64_t passes_ = 0;
  std::uint32_t next_tag_ = 0;
};

class PlaceTap final : public DecodeTap {
 public:
  PlaceTap(const RoceTraffic& traffic, bool verify_icrc)
      : DecodeTap(traffic, verify_icrc),
        window_({}, std::make_shared<const NcclRing>(NcclRing::make(traffic.job().tuning).value())) {
    window_.set_sizes(sizes_);
  }
  [[nodiscard]] std::string wrong() override {
    for (const auto& [bytes, values] : whole_)
      if (bytes->size() != values->size() || std::memcmp(bytes->data(), values->data(), values->size()) != 0)
        return "an all-reduce has other bytes";
    whole_.clear();
    if (missing_ > 0) return "an all-reduce is not whole";
    return DecodeTap::wrong();
  }

 private:
  void segment(const Segment& segment) override { window_.add(segment); }
  void all_reduce_over(std::uint32_t tag, const std::vector<std::uint8_t>& values) override {
    const OpKey op{0, tag};
    auto bytes = window_.bind(op, values.size());
    if (bytes)
      whole_.emplace_back(std::move(*bytes), &values);
    else
      ++missing_;
    window_.abandon(op);
    (void)window_.summaries_changed();
  }

  OpWindow window_;
  std::vector<std::pair<std::shared_ptr<const OpBytes>, const std::vector<std::uint8_t>*>> whole_;
  std::uint64_t missing_ = 0;
};

}  // namespace

std::unique_ptr<RoceTap> make_roce_tap(TapDepth depth, bool verify_icrc, const RoceTraffic& traffic) {
  switch (depth) {
    case TapDepth::kReceive:
      return std::make_unique<ReceiveTap>();
    case TapDepth::kCopy: {
      std::size_t bytes = 0;
      for (const auto& values : traffic.reduced()) bytes += values.size();
      auto tap = std::make_unique<CopyTap>(bytes);
      tap->expect(traffic.payload_bytes());
      return tap;
    }
    case TapDepth::kDecode:
      return std::make_unique<DecodeTap>(traffic, verify_icrc);
    case TapDepth::kPlace:
      return std::make_unique<PlaceTap>(traffic, verify_icrc);
  }
  return nullptr;
}

}  // namespace gradtap::bench
