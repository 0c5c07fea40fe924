// Faults of the fabric and of the mirror, as stages between a job and a sink.
//
// Retransmission: what a sender does when a packet was lost on the way or an acknowledgement did not come in time: it
// goes back and sends everything from there again (go-back-N). Acknowledgements wait meanwhile, and so do entries that
// clear slots anew: a receiver never acknowledges what it has not got.
// MirrorFaults: what the mirror does to its copies, which nobody ever repairs: loss, duplicates, another order.
// Ownership: copies of the frames that are held, of which there is a bound per connection. Threads: one. Randomness is
// a parameter; the same seed and input give the same output. finish() lets go of what is held.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <vector>

#include "common/random.h"
#include "generator/fabric_frame.h"

namespace gradtap::generator {

struct HeldFrame {
  std::uint64_t time_ns = 0;
  std::vector<std::uint8_t> bytes;
  FrameNote note;
};

struct RetransmissionConfig {
  double probability = 0;          // that a data packet is one from which is sent again
  std::uint32_t max_packets = 16;  // that follow it before the sender goes back
  double lost_probability = 0.5;   // that the first copy of the packet never reaches the mirror
};

class Retransmission final : public FrameSink {
 public:
  Retransmission(const RetransmissionConfig& config, SeededRandom& random, FrameSink& next)
      : config_(config), random_(random), next_(next) {}
  void frame(std::uint64_t time_ns, ByteSpan bytes, const FrameNote& note) override;
  void finish();
  [[nodiscard]] std::uint64_t repeats() const { return repeats_; }

 private:
  struct Episode {
    std::uint32_t packets = 0;  // until the sender goes back
    std::vector<HeldFrame> data;
    std::vector<HeldFrame> answers;  // that the receiver can only give afterwards
  };
  void go_back(Episode& episode, std::uint64_t time_ns);

  RetransmissionConfig config_;
  SeededRandom& random_;
  FrameSink& next_;
  std::map<std::uint32_t, Episode> episodes_;  // by connection
  std::uint64_t repeats_ = 0;
};

struct MirrorFaultsConfig {
  double drop_probability = 0;
  std::uint64_t burst = 1;  // frames in a row that are dropped
  double duplicate_probability = 0;
  double reorder_probability = 0;
  std::uint32_t reorder_distance = 8;  // frames by which one comes late, at most
};

class MirrorFaults final : public FrameSink {
 public:
  MirrorFaults(const MirrorFaultsConfig& config, SeededRandom& random, FrameSink& next)
      : config_(config), random_(random), next_(next) {}
  void frame(std::uint64_t time_ns, ByteSpan bytes, const FrameNote& note) override;
  void finish();
  [[nodiscard]] std::uint64_t dropped() const { return dropped_; }
  [[nodiscard]] std::uint64_t duplicated() const { return duplicated_; }
  [[nodiscard]] std::uint64_t reordered() const { return reordered_; }

 private:
  struct Late {
    std::uint32_t frames_left = 0;
    HeldFrame frame;
  };
  void pass(std::uint64_t time_ns, ByteSpan bytes, const FrameNote& note);

  MirrorFaultsConfig config_;
  SeededRandom& random_;
  FrameSink& next_;
  std::deque<Late> late_;
  std::uint64_t burst_left_ = 0;
  std::uint64_t dropped_ = 0;
  std::uint64_t duplicated_ = 0;
  std::uint64_t reordered_ = 0;
};

}  // namespace gradtap::generator
