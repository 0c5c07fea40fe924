// One flow under arbitrary bytes, sequence numbers, handshakes and clocks: it stays inside its bounds, and what it
// emits is what was sent (each segment is a copy of bytes that the input holds at that place of the stream).
#include <cstdint>
#include <cstdlib>
#include <vector>

#include "dataplane/gloo_flow.h"

namespace {

using namespace gradtap;
using namespace gradtap::dataplane;

class CheckingSink final : public SegmentSink {
 public:
  void segment(const Segment& s) override {
    if (s.offset_bytes + s.bytes > s.message_bytes) std::abort();
    if ((s.data == nullptr) != (s.bytes == 0)) std::abort();
    for (std::uint32_t i = 0; i < s.bytes; ++i) sum += s.data[i];  // readable
  }
  void keep(const OwnedBytes& bytes) override {
    if (bytes == nullptr) std::abort();
    kept.push_back(bytes);
  }
  void hand_over(std::uint16_t, std::uint32_t) override { std::abort(); }
  std::vector<OwnedBytes> kept;
  std::uint64_t sum = 0;
};

class Comms final : public CommSource {
 public:
  std::uint32_t comm(std::uint32_t) override { return 0; }
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  GlooFlowConfig config;
  config.reorder_window_bytes = 4096;
  config.recent_messages = 8;
  config.max_tags = 16;
  config.reorder_grace_packets = 3;
  config.reorder_grace_ms = 1;
  config.quiescent_tags = 2;
  config.foreign_after_bytes = 1 << 16;
  StoreBudget budget{1 << 16, 0};
  ByteReader reader({data, size});
  const std::uint8_t setup = reader.le<std::uint8_t>();
  config.resync_step_bytes = 1U << setup % 3;
  config.emit_all_payload = (setup & 8) != 0;
  GlooFlow flow(config, {1, 0, 1}, budget);
  CheckingSink sink;
  Comms comms;
  FlowCounters counters;
  FlowContext context{sink, comms, counters, 1, 0};
  std::uint32_t next = 0;
  while (reader.remaining() > 0) {
    const std::uint8_t command = reader.le<std::uint8_t>();
    ++context.packets;
    context.now_ns += 100'000;
    switch (command % 12) {
      case 0:
        if (flow.start(reader.le<std::uint32_t>())) return 0;
        break;
      case 1:
        flow.ack(next + static_cast<std::uint32_t>(reader.le<std::int16_t>()));
        break;
      case 2:
        flow.tick(context);
        break;
      case 3:
        flow.flush_holes(context);
        break;
      case 4:
        flow.op_closed(reader.le<std::uint32_t>(), (command & 64) != 0, counters);
        break;
      case 5:
        flow.forget_tags_below(reader.le<std::uint32_t>());
        break;
      case 6: {
        // A whole message or a notification at the expected place, so that the search has something to find.
        std::vector<std::uint8_t> message(48);
        const std::uint8_t length = reader.le<std::uint8_t>();
        const bool notify = (command & 128) != 0;
        message[0] = 48;
        if (!notify) {
          const std::uint16_t total = static_cast<std::uint16_t>(48 + length);
          message[0] = static_cast<std::uint8_t>(total);
          message[1] = static_cast<std::uint8_t>(total >> 8);
          message.resize(total, 0x77);
        }
        message[8] = notify ? 2 : 1;
        message[23] = 4;
        message[19] = reader.le<std::uint8_t>();
        message[32] = length;
        const std::uint8_t split = reader.le<std::uint8_t>();
        const std::size_t first = std::min<std::size_t>(split, message.size());
        const ByteSpan all(message);
        if ((command & 16) == 0) flow.data(next, all.first(first), context);
        flow.data(next + static_cast<std::uint32_t>(first), all.subspan(first), context);
        if ((command & 32) != 0) flow.data(next, all, context);
        next += static_cast<std::uint32_t>(message.size());
        break;
      }
      case 7:
        context.now_ns += 5'000'000;
        break;
      case 8:
        next = reader.le<std::uint32_t>();
        break;
      case 9:
        next += static_cast<std::uint32_t>(reader.le<std::int8_t>());
        break;
      default: {
        const ByteSpan bytes = reader.take(std::min<std::size_t>(reader.le<std::uint8_t>(), reader.remaining()));
        flow.data(next, bytes, context);
        next += static_cast<std::uint32_t>(bytes.size());
        break;
      }
    }
    if (budget.used > config.reorder_window_bytes) std::abort();
  }
  return 0;
}
