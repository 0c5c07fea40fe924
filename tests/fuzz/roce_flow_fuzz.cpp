// Any sequence of requests through a flow, a survey's program behind it: statements stay in order and in bounds.
#include <array>
#include <cstdint>
#include <cstdlib>
#include <map>

#include "dataplane/nccl_program.h"
#include "dataplane/roce_flow.h"

namespace {

using namespace gradtap;
using namespace gradtap::dataplane;

class CheckingSink final : public RoceSink, public NcclProgramSink {
 public:
  CheckingSink() {
    const NcclTuning tuning{.ranks = 2, .channels = 1};
    std::vector<NcclPattern> patterns;
    for (const std::uint64_t elements : {64U, 200U, 5000U}) {
      const auto op = nccl_plan_on(tuning, NcclProtocol::kLl, NcclCollective::kAllReduce, elements, 4, 1, 512);
      const auto schedule = op ? NcclSchedule::of(*op) : std::nullopt;
      if (schedule) patterns.push_back(NcclPattern::ring(static_cast<std::uint32_t>(elements), *schedule, 0, 0));
    }
    patterns.push_back(NcclPattern::send(1, 700));
    program_ = std::make_unique<NcclProgram>(std::move(patterns));
  }
  void piece(const RocePiece& piece) override {
    if (piece.data == nullptr || piece.bytes == 0 || piece.bytes > kMaxPathMtuBytes) std::abort();
    if (piece.message_bytes != 0 && piece.offset_bytes + piece.bytes > piece.message_bytes) std::abort();
    touched_ += piece.data[0] + piece.data[piece.bytes - 1];
  }
  void message(const RoceMessage& message) override {
    if (message.number != next_number_++ || message.psns.begin < position_ || message.psns.end <= message.psns.begin)
      std::abort();
    position_ = message.psns.end;
    NcclItem item;
    item.psns = message.psns;
    item.message = message;
    item.flag = static_cast<std::uint32_t>(message.number + 1);
    item.seen_data = message.bytes > 0;
    program_->add(item, *this);
  }
  void lost(const PsnRange& psns) override {
    if (psns.begin < position_ || psns.end <= psns.begin) std::abort();
    position_ = psns.end;
    NcclItem item;
    item.hole = true;
    item.psns = psns;
    program_->add(item, *this);
  }
  void keep(const OwnedBytes&) override {}
  void found(const NcclStep&, const NcclItem& item) override { ++told_[item.message.number]; }
  void lost(const NcclStep& step) override {
    if (step.psns.end <= step.psns.begin) std::abort();
  }
  void foreign(const NcclItem& item) override {
    if (!item.hole) ++told_[item.message.number];
  }
  void finish() {
    program_->finish(*this);
    for (const auto& [number, times] : told_)
      if (times != 1) std::abort();
    if (told_.size() != next_number_) std::abort();
  }

 private:
  std::unique_ptr<NcclProgram> program_;
  std::uint64_t next_number_ = 0;
  std::uint64_t position_ = 0;
  std::uint64_t touched_ = 0;
  std::map<std::uint64_t, int> told_;
};

}  // namespace

// Eight bytes a packet: opcode, PSN step, length, address step, immediate, acknowledgement.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static std::array<std::uint8_t, kMaxPathMtuBytes> payload{};
  RoceFlowConfig config;
  config.reorder_window_bytes = 20'000;
  config.reorder_grace_packets = 16;
  config.recent_messages = 8;
  config.max_seen_ranges = 32;
  StoreBudget budget{.limit = 1 << 20};
  RoceFlowCounters counters;
  CheckingSink sink;
  {
    RoceFlow flow(config, budget);
    std::uint32_t psn = 0;
    std::uint64_t address = 0x1000, packets = 0;
    for (; size >= 8; data += 8, size -= 8) {
      static constexpr std::array<std::uint8_t, 12> kOpcodes{6, 7, 8, 9, 10, 11, 11, 10, 7, 4, 12, 9};
      static constexpr std::array<std::size_t, 8> kSizes{0, 16, 32, 256, 1024, 4096, 512, 1000};
      RoceFrame frame;
      frame.opcode = kOpcodes[data[0] % kOpcodes.size()];
      frame.meaning = roce_opcode(frame.opcode);
      psn += static_cast<std::uint32_t>(static_cast<std::int8_t>(data[1]) / 16) + ((data[1] & 8) != 0 ? 1 : 0);
      if (data[7] == 0xff) psn += 1U << 22;
      frame.psn = psn & (kPsnCount - 1);
      frame.payload = ByteSpan(payload).first(kSizes[data[2] % kSizes.size()]);
      if (frame.meaning.address) {
        address += static_cast<std::uint64_t>(data[3]) * 256;
        frame.address = address;
        frame.key = data[3] == 0xee ? 9 : 7;
        frame.dma_bytes = static_cast<std::uint32_t>(frame.payload.size() + (frame.meaning.ends ? 0 : data[4] * 512U));
        if ((data[5] & 1) != 0) frame.dma_bytes = load_le<std::uint32_t>(data + 2);
      }
      frame.immediate = (data[5] & 2) != 0 ? load_le<std::uint32_t>(data + 3) : data[4] * 256U;
      RoceFlowContext context{sink, counters, packets * 1'000'000, ++packets};
      (void)flow.request(frame, context);
      if ((data[6] & 1) != 0) flow.acknowledged((psn + data[6]) & (kPsnCount - 1));
      if ((data[6] & 6) == 6) flow.tick(context);
      if (budget.used > budget.limit) std::abort();
    }
    RoceFlowContext context{sink, counters, packets * 1'000'000, packets};
    (void)flow.missing_psns();
    flow.finish(context);
  }
  if (budget.used != 0) std::abort();
  sink.finish();
  return 0;
}
