#include "actors/ingress.h"

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "common/log.h"
#include "dataplane/dpdk/eal.h"

namespace gradtap::actors {

namespace {

using dataplane::Frame;
using dataplane::Segment;

// Sorts the segments of one burst by assembler.
class BurstSink final : public dataplane::SegmentSink {
 public:
  void start(std::size_t assemblers) {
    per_assembler_.resize(assemblers);
    for (auto& segments : per_assembler_) segments.clear();
    kept_.clear();
    handed_over_.clear();
  }
  void segment(const Segment& segment) override {
    per_assembler_[segment.op.tag % per_assembler_.size()].push_back(segment);
  }
  void keep(const dataplane::OwnedBytes& bytes) override { kept_.push_back(bytes); }
  void hand_over(std::uint16_t queue, std::uint32_t frame_index) override {
    handed_over_.emplace_back(queue, frame_index);
  }

  std::vector<std::vector<Segment>> per_assembler_;
  std::vector<dataplane::OwnedBytes> kept_;
  std::vector<std::pair<std::uint16_t, std::uint32_t>> handed_over_;
};

struct IngressState {
  static inline const char* name = "ingress";
  IngressOptions options;
  std::unique_ptr<dataplane::Decoder> decoder;
  WiringPtr wiring;
  LineageId lineage = 0;
  BurstSink sink;
  // Bursts are made once and reused; `free_` holds those that nobody has.
  std::vector<std::unique_ptr<FrameBurst>> frame_bursts;
  std::vector<FrameBurst*> free_frames;
  std::vector<std::unique_ptr<SegmentBurst>> segment_bursts;
  std::vector<SegmentBurst*> free_segments;
  std::uint32_t lent = 0;
  std::uint64_t sleep_us = 0;
  bool thread_registered = false;
  std::vector<caf::typed_response_promise<DrainReport>> draining;
  // counters
  std::uint64_t polls = 0;
  std::uint64_t frames = 0;
  std::uint64_t bursts_lent = 0;
  std::uint64_t lent_peak = 0;
  std::uint64_t without_credit_since_ns = 0;  // 0: there is credit
  std::uint64_t credit_waits = 0;
  std::uint64_t dropped_without_credit_segments = 0;
  std::uint64_t dropped_without_credit_bytes = 0;
  std::uint64_t handed_over = 0;
  std::uint64_t taken_over = 0;
};

using IngressPointer = IngressActor::stateful_pointer<IngressState>;

FrameBurst* take_frame_burst(IngressState& state) {
  if (state.free_frames.empty()) {
    state.frame_bursts.push_back(std::make_unique<FrameBurst>());
    return state.frame_bursts.back().get();
  }
  FrameBurst* burst = state.free_frames.back();
  state.free_frames.pop_back();
  return burst;
}

SegmentBurst* take_segment_burst(IngressState& state) {
  if (state.free_segments.empty()) {
    state.segment_bursts.push_back(std::make_unique<SegmentBurst>());
    return state.segment_bursts.back().get();
  }
  SegmentBurst* burst = state.free_segments.back();
  state.free_segments.pop_back();
  return burst;
}

void release_frames(IngressState& state, FrameBurst* burst) {
  if (burst->count > 0) state.options.port->release(std::span(burst->frames.data(), burst->count));
  burst->count = 0;
  state.free_frames.push_back(burst);
}

// Lends what the sink holds. The burst's frames are released at once when nothing refers to them.
void lend(IngressPointer self, FrameBurst* frames) {
  IngressState& state = self->state;
  frames->references = 0;
  for (std::size_t i = 0; i < state.sink.per_assembler_.size(); ++i) {
    auto& segments = state.sink.per_assembler_[i];
    if (segments.empty()) continue;
    // A file can wait, so nothing of it is dropped: one burst more than the credits, and polling stops.
    if (state.lent >= state.options.credits && state.options.port->live()) {
      state.dropped_without_credit_segments += segments.size();
      for (const Segment& segment : segments) state.dropped_without_credit_bytes += segment.bytes;
      continue;
    }
    SegmentBurst* burst = take_segment_burst(state);
    burst->frames = frames;
    burst->home_queue = state.options.queue;
    burst->assembler = static_cast<std::uint16_t>(i);
    burst->segments.swap(segments);
    burst->kept = state.sink.kept_;
    ++frames->references;
    ++state.lent;
    ++state.bursts_lent;
    state.lent_peak = std::max<std::uint64_t>(state.lent_peak, state.lent);
    self->send(state.wiring->assemblers[i], segments_atom_v, SegmentBurstRef{burst});
  }
  if (frames->references == 0) release_frames(state, frames);
}

void hand_over(IngressPointer self, FrameBurst* burst) {
  IngressState& state = self->state;
  auto& list = state.sink.handed_over_;
  if (list.empty()) return;
  for (std::uint16_t queue = 0; queue < state.wiring->ingress.size(); ++queue) {
    auto frames = std::make_shared<HandOver>();
    for (const auto& [target, index] : list)
      if (target == queue && index < burst->count) frames->frames.push_back(burst->frames[index]);
    if (frames->frames.empty()) continue;
    state.handed_over += frames->frames.size();
    self->send(state.wiring->ingress[queue], handover_atom_v, HandOverPtr(std::move(frames)));
  }
  // The handed frames are no longer this burst's to release.
  std::uint16_t kept = 0;
  for (std::uint16_t i = 0; i < burst->count; ++i) {
    const bool gone = std::any_of(list.begin(), list.end(), [i](const auto& entry) { return entry.second == i; });
    if (!gone) burst->frames[kept++] = burst->frames[i];
  }
  burst->count = kept;
}

void decode(IngressPointer self, FrameBurst* burst) {
  IngressState& state = self->state;
  state.sink.start(state.wiring->assemblers.size());
  state.decoder->decode(std::span<const Frame>(burst->frames.data(), burst->count), state.sink);
  hand_over(self, burst);
  lend(self, burst);
}

// Whatever the decoder has to say without new frames (timers, given-up holes) goes out with an empty burst.
template <class F>
void decode_without_frames(IngressPointer self, F call) {
  IngressState& state = self->state;
  state.sink.start(state.wiring->assemblers.size());
  call(*state.decoder, state.sink);
  FrameBurst* burst = take_frame_burst(state);
  burst->count = 0;
  lend(self, burst);
}

// Without credit a file is left alone. A live port is left alone for credit_wait_ms, while its ring takes what comes;
// after that it is polled and what it brings is dropped, so that the ring never runs over uncounted.
bool may_poll_now(IngressState& state) {
  if (state.lent < state.options.credits) {
    state.without_credit_since_ns = 0;
    return true;
  }
  if (!state.options.port->live()) return false;
  const std::uint64_t now = state.options.clock->monotonic_ns();
  if (state.without_credit_since_ns == 0) {
    state.without_credit_since_ns = now;
    ++state.credit_waits;
  }
  return now - state.without_credit_since_ns > state.options.credit_wait_ms * 1'000'000;
}

void poll(IngressPointer self) {
  IngressState& state = self->state;
  if (!state.wiring || state.options.port == nullptr) {
    self->delayed_send(self, std::chrono::milliseconds(1), poll_atom_v);
    return;
  }
  if (!state.thread_registered) {
    state.thread_registered = true;
    if (const Status done = dataplane::Eal::register_thread(); !done)
      log_warn("the poller has no DPDK thread id: buffers are allocated without a cache",
               {{"error", done.error().text()}});
  }
  ++state.polls;
  bool idle = true;
  const bool may_poll = may_poll_now(state);
  for (int i = 0; may_poll && i < 8; ++i) {
    FrameBurst* burst = take_frame_burst(state);
    burst->count = state.options.port->rx_burst(state.options.queue, burst->frames);
    if (burst->count == 0) {
      release_frames(state, burst);
      break;
    }
    idle = false;
    state.frames += burst->count;
    decode(self, burst);
    if (state.lent >= state.options.credits && !may_poll_now(state)) break;
  }
  // What waits in the decoder is given out when it can be lent: there it is safe.
  const bool may_lend = state.lent < state.options.credits;
  if (may_lend) decode_without_frames(self, [](dataplane::Decoder& decoder, BurstSink& sink) { decoder.tick(sink); });
  if (idle && may_poll && may_lend && !state.draining.empty()) {
    decode_without_frames(self, [](dataplane::Decoder& decoder, BurstSink& sink) { decoder.flush_holes(sink); });
    for (auto& promise : std::exchange(state.draining, {}))
      promise.deliver(DrainReport{state.options.queue, state.frames});
  }
  if (!idle) {
    state.sleep_us = 0;
    self->send(self, poll_atom_v);
  } else {
    state.sleep_us =
        std::min<std::uint64_t>(state.options.idle_sleep_us_max, state.sleep_us == 0 ? 20 : state.sleep_us * 2);
    self->delayed_send(self, std::chrono::microseconds(state.sleep_us), poll_atom_v);
  }
}

IngressActor::behavior_type ingress(IngressPointer self, const IngressOptions& options) {
  self->state.options = options;
  self->state.decoder = options.make_decoder(options.queue);
  self->send(self, poll_atom_v);
  return {
      [self](poll_atom) { poll(self); },
      [self](credit_atom, const SegmentBurstRef& returned) {
        IngressState& state = self->state;
        SegmentBurst* burst = returned.burst;
        burst->segments.clear();
        burst->kept.clear();
        --state.lent;
        if (--burst->frames->references == 0) release_frames(state, burst->frames);
        state.free_segments.push_back(burst);
      },
      [self](handover_atom, const HandOverPtr& frames) {
        IngressState& state = self->state;
        state.taken_over += frames->frames.size();
        for (std::size_t begin = 0; begin < frames->frames.size(); begin += kBurstFrames) {
          FrameBurst* burst = take_frame_burst(state);
          const std::size_t count = std::min(kBurstFrames, frames->frames.size() - begin);
          std::copy_n(frames->frames.begin() + static_cast<std::ptrdiff_t>(begin), count, burst->frames.begin());
          burst->count = static_cast<std::uint16_t>(count);
          decode(self, burst);
        }
      },
      [self](drain_atom) -> caf::result<DrainReport> {
        IngressState& state = self->state;
        auto promise = self->make_response_promise<DrainReport>();
        state.draining.push_back(promise);
        return promise;
      },
      [self](closed_atom, const ProvenFlowsPtr& proven) {
        for (const auto& flow : *proven) self->state.decoder->op_closed(flow.flow, flow.op.tag, true);
      },
      [self](forget_atom, std::uint32_t comm, std::uint32_t tag) { self->state.decoder->forget_tags_below(comm, tag); },
      [self](sizes_atom, const OpSizesPtr& sizes) {
        if (!self->state.wiring) return;  // the coordinator comes with it
        decode_without_frames(
            self, [&sizes](dataplane::Decoder& decoder, BurstSink& sink) { decoder.set_sizes(*sizes, sink); });
      },
      [self](wire_atom, const WiringPtr& wiring) {
        IngressState& state = self->state;
        state.wiring = wiring;
        if (!wiring->plan || state.lineage == wiring->plan->lineage) return;
        const bool another = std::exchange(state.lineage, wiring->plan->lineage) != 0;
        if (another)
          decode_without_frames(self,
                                [](dataplane::Decoder& decoder, BurstSink& sink) { decoder.begin_lineage(sink); });
      },
      [self](status_atom) {
        const IngressState& state = self->state;
        const dataplane::PortCounters port = state.options.port->counters();
        nlohmann::json body = state.decoder->status();
        body.update({{"queue", state.options.queue},
                     {"port", state.options.port->describe()},
                     {"frames", state.frames},
                     {"oversized", port.oversized},
                     {"no_buffers", port.no_buffers},
                     {"polls", state.polls},
                     {"lent", state.lent},
                     {"lent_peak", state.lent_peak},
                     {"credits", state.options.credits},
                     {"credit_waits", state.credit_waits},
                     {"bursts_lent", state.bursts_lent},
                     {"dropped_without_credit_segments", state.dropped_without_credit_segments},
                     {"dropped_without_credit_bytes", state.dropped_without_credit_bytes},
                     {"handed_over", state.handed_over},
                     {"taken_over", state.taken_over}});
        return ActorStatus{std::string(IngressState::name) + "." + std::to_string(state.options.queue), body.dump()};
      },
  };
}

}  // namespace

IngressActor spawn_ingress(caf::actor_system& system, IngressOptions options) {
  return system.spawn<caf::detached>(ingress, std::move(options));
}

}  // namespace gradtap::actors
