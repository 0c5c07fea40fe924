// From the frames of real jobs to bound gradients: decoder, op window, binder and inspector together. The truth is what
// rank 0 really had (grads.f32, meta.json).
#include <cstring>
#include <fstream>
#include <iterator>
#include <sstream>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "common/sha256.h"
#include "common/witness.h"
#include "dataplane/binding.h"
#include "dataplane/gloo_ring.h"
#include "dataplane/inspect.h"
#include "dataplane/inspect_json.h"
#include "dataplane/op_window.h"
#include "tests/unit/dataplane/decode_harness.h"

namespace gradtap::dataplane {
namespace {

using namespace testing;

struct Job {
  std::string path;
  std::size_t steps = 0;
  std::size_t total = 0;
  bool two_byte = false;
  std::vector<std::size_t> numel, begin;          // of the parameters, in registration order
  std::vector<std::vector<std::size_t>> rebuilt;  // parameters of each bucket from step 2 on
  std::vector<std::uint8_t> grads;                // steps x total float32

  [[nodiscard]] std::size_t element() const { return two_byte ? 2 : 4; }
  [[nodiscard]] std::vector<std::vector<std::size_t>> layout(std::size_t step) const {
    if (step > 1) return rebuilt;
    std::vector<std::size_t> all;
    for (std::size_t i = 0; i < numel.size(); ++i) all.push_back(i);
    return {all};
  }
  [[nodiscard]] std::uint64_t bucket_numel(const std::vector<std::size_t>& bucket) const {
    std::uint64_t sum = 0;
    for (const std::size_t p : bucket) sum += numel[p];
    return sum;
  }
  // What the wire must carry for a bucket.
  [[nodiscard]] std::vector<std::uint8_t> bucket(std::size_t step, const std::vector<std::size_t>& parameters) const {
    std::vector<std::uint8_t> bytes;
    for (const std::size_t p : parameters) {
      for (std::size_t e = 0; e < numel[p]; ++e) {
        const std::uint8_t* value = grads.data() + 4 * ((step - 1) * total + begin[p] + e);
        // A bfloat16 is the upper half of its float32.
        bytes.insert(bytes.end(), value + (two_byte ? 2 : 0), value + 4);
      }
    }
    return bytes;
  }
};

std::optional<Job> load(const std::string& name) {
  const std::string path = capture_path(name + "/mon.pcap", "assembly_captures");
  if (path.empty()) return std::nullopt;
  Job job;
  job.path = path;
  const std::string folder = path.substr(0, path.rfind('/'));
  const auto meta = nlohmann::json::parse(std::ifstream(folder + "/meta.json"));
  job.steps = meta["steps"];
  job.total = meta["total"];
  job.two_byte = meta.value("prec", "f32") == "bf16";
  std::size_t at = 0;
  for (const auto& shape : meta["shapes"]) {
    std::size_t numel = 1;
    for (const std::size_t dim : shape) numel *= dim;
    job.numel.push_back(numel);
    job.begin.push_back(at);
    at += numel;
  }
  REQUIRE(at == job.total);
  std::istringstream buckets(meta["ddp"].back()["rebuilt_per_bucket_param_indices"].get<std::string>());
  for (std::string text; std::getline(buckets, text, ',');) {
    std::istringstream words(text);
    job.rebuilt.emplace_back(std::istream_iterator<std::size_t>(words), std::istream_iterator<std::size_t>());
  }
  std::ifstream grads(folder + "/grads.f32", std::ios::binary);
  job.grads.assign(std::istreambuf_iterator<char>(grads), {});
  REQUIRE(job.grads.size() == job.steps * job.total * 4);
  return job;
}

template <class Target>
struct Feed final : SegmentSink {
  explicit Feed(Target& to) : target(to) {}
  void segment(const Segment& segment) override { target.add(segment); }
  void keep(const OwnedBytes& bytes) override { kept.push_back(bytes); }
  void hand_over(std::uint16_t, std::uint32_t) override { FAIL("one queue only"); }
  Target& target;
  std::vector<OwnedBytes> kept;
};

// Decodes all frames into `target`, telling the decoder which ops were proven, as an assembler does.
template <class Target>
void decode(const std::vector<MemoryFrame>& frames, Target& target, bool two_byte) {
  GlooDecoderConfig config = rig_config();
  config.flow.emit_all_payload = false;
  if (two_byte) config.flow.resync_step_bytes = 2;
  ManualClock clock;
  FlowDirectory directory;
  REQUIRE(directory.set_endpoints(rig_endpoints(4)).has_value());
  GlooDecoder decoder(config, directory, clock, 0);
  Feed<Target> feed(target);
  const std::vector<Frame> all = views(frames);
  for (std::size_t i = 0; i < all.size(); i += 32) {
    clock.advance_ms(1);
    decoder.decode(std::span(all).subspan(i, std::min<std::size_t>(32, all.size() - i)), feed);
    decoder.tick(feed);
    feed.kept.clear();
    for (const ProvenFlow& proven : target.take_proven_flows()) decoder.op_closed(proven.flow, proven.op.tag, true);
  }
  decoder.flush_holes(feed);
}

std::unique_ptr<OpWindow> window_for(const Job& job) {
  auto window = std::make_unique<OpWindow>(OpWindowConfig{}, std::make_shared<const GlooRing>(4));
  SizeTable sizes;
  for (std::size_t step = 1; step <= 2; ++step)
    for (const auto& bucket : job.layout(step))
      REQUIRE(sizes.add({job.bucket_numel(bucket) * job.element(), static_cast<std::uint32_t>(job.element())}));
  window->set_sizes(sizes);
  return window;
}

// The all-reduces of a capture in order of their tag, as rounds of the layouts.
struct Round {
  std::size_t step;
  std::vector<OpKey> ops;
};
std::vector<Round> rounds(const Job& job, const OpWindow& window) {
  std::vector<OpKey> all;
  for (const OpKey op : window.open_ops())
    if (window.summary(op)->type == CollectiveType::kAllReduce) all.push_back(op);
  std::sort(all.begin(), all.end());
  std::vector<Round> out;
  std::size_t next = 0;
  for (std::size_t step = 1; step <= job.steps; ++step) {
    const std::size_t count = job.layout(step).size();
    REQUIRE(next + count <= all.size());
    out.push_back(
        {step,
         {all.begin() + static_cast<std::ptrdiff_t>(next), all.begin() + static_cast<std::ptrdiff_t>(next + count)}});
    next += count;
  }
  REQUIRE(next == all.size());
  return out;
}

void check_whole(const std::string& name) {
  const auto job = load(name);
  if (!job) return;
  const auto frames = read_capture(job->path);
  REQUIRE(frames.has_value());
  const auto held = window_for(*job);
  OpWindow& window = *held;
  decode(*frames, window, job->two_byte);
  for (const Round& round : rounds(*job, window)) {
    const auto layout = job->layout(round.step);
    for (std::size_t i = 0; i < layout.size(); ++i) {
      const auto expected = job->bucket(round.step, layout[i]);
      CHECK(window.copies(round.ops[i])->min == 2);
      const auto bytes = window.bind(round.ops[i], expected.size());
      REQUIRE(bytes.has_value());
      REQUIRE((*bytes)->size() == expected.size());
      CHECK(std::memcmp((*bytes)->data(), expected.data(), expected.size()) == 0);
    }
  }
  CHECK(window.counters().conflicts == 0);
  CHECK(window.limbo().used() == 0);
}

}  // namespace

TEST_CASE("gradients of a real job, bit for bit: torch 1.13 float32") {
  check_whole("gloo-n4");
}
TEST_CASE("gradients of a real job, bit for bit: torch 2.6 float32") {
  check_whole("gloo-torch2/f32");
}
TEST_CASE("gradients of a real job, bit for bit: torch 2.6 bfloat16") {
  check_whole("gloo-torch2/bf16");
}
TEST_CASE("gradients of a real job, bit for bit: torch 2.6 fp16 autocast with skipped steps") {
  check_whole("gloo-torch2/amp");
}

namespace {

LayoutId layout_id(std::size_t step) {
  return sha256(step > 1 ? "rebuilt" : "first");
}

// Plays the step coordinator: sequence numbers are tags plus 5000.
struct Coordinator {
  const Job& job;
  OpWindow& window;
  Binder binder;
  std::vector<Round> truth;

  Coordinator(const Job& j, OpWindow& w) : job(j), window(w), truth(rounds(j, w)) {
    for (std::size_t step = 1; step <= 2; ++step) {
      std::vector<std::uint64_t> bytes;
      for (const auto& bucket : job.layout(step)) bytes.push_back(job.bucket_numel(bucket) * 4);
      REQUIRE(binder.add_layout(layout_id(step), bytes, 1).has_value());
    }
    for (const OpSummary& summary : window.summaries_changed()) binder.update(summary);
  }
  StepEvidence evidence(std::size_t step) const {
    StepEvidence e;
    e.step = step;
    e.layout = layout_id(step);
    const std::uint32_t first = step == 1 ? truth[0].ops.front().tag : truth[step - 2].ops.back().tag + 1;
    e.begin = 5000ULL + first;
    e.end = 5000ULL + truth[step - 1].ops.back().tag + 1;
    return e;
  }
  std::vector<std::vector<WitnessOutcome>> probe(const Assignments& found, std::size_t step, std::size_t witness_step,
                                                 const std::vector<std::vector<std::size_t>>& layout) const {
    std::vector<std::vector<WitnessOutcome>> out;
    for (const Assignment& assignment : found.list) {
      std::vector<WitnessOutcome> row;
      for (std::uint32_t i = 0; i < layout.size(); ++i) {
        const auto truth_bytes = job.bucket(witness_step, layout[i]);
        const auto positions = witness_positions(layout_id(step), step, i, truth_bytes.size() / 4);
        WitnessOutcome outcome{WitnessResult::kAllZero, 0};
        for (std::uint32_t j = 0; j < positions.size(); ++j) {
          std::uint32_t expected = 0;
          std::memcpy(&expected, truth_bytes.data() + 4 * positions[j], 4);
          const auto value = window.read(assignment.buckets[i].op, truth_bytes.size(), 4 * positions[j]);
          if (!value) {
            outcome = {WitnessResult::kUnknown, 0};
            break;
          }
          if (*value != expected) {
            outcome = {WitnessResult::kMismatched, j};
            break;
          }
          if (expected << 1 != 0) outcome.result = WitnessResult::kMatched;
        }
        row.push_back(outcome);
      }
      out.push_back(std::move(row));
    }
    return out;
  }
};

}  // namespace

TEST_CASE("steps of a real job bind by count, interval and witness; wrong step or layout never") {
  for (const char* name : {"gloo-n4", "gloo-torch2/f32", "gloo-torch2/amp"}) {
    CAPTURE(name);
    const auto job = load(name);
    if (!job) return;
    const auto frames = read_capture(job->path);
    REQUIRE(frames.has_value());
    const auto held = window_for(*job);
    OpWindow& window = *held;
    decode(*frames, window, false);
    Coordinator coordinator(*job, window);
    Binder& binder = coordinator.binder;
    for (std::size_t step = 1; step <= job->steps; ++step) {
      const StepEvidence evidence = coordinator.evidence(step);
      const auto found = binder.assignments(evidence);
      REQUIRE(found.list.size() >= 1);
      const auto layout = job->layout(step);
      // The witness of another step.
      const std::size_t wrong = step == job->steps ? step - 1 : step + 1;
      CHECK(binder.judge(evidence, found, coordinator.probe(found, step, wrong, layout)).verdict ==
            BindVerdict::kWitnessMismatch);
      // The layout with its parameters in another order and the same sizes.
      auto permuted = layout;
      for (auto& bucket : permuted) std::reverse(bucket.begin(), bucket.end());
      CHECK(binder.judge(evidence, found, coordinator.probe(found, step, step, permuted)).verdict ==
            BindVerdict::kWitnessMismatch);
      const auto judgement = binder.judge(evidence, found, coordinator.probe(found, step, step, layout));
      REQUIRE(judgement.verdict == BindVerdict::kBound);
      const Assignment& chosen = found.list[judgement.assignment];
      for (std::size_t i = 0; i < layout.size(); ++i) CHECK(chosen.buckets[i].op == coordinator.truth[step - 1].ops[i]);
      REQUIRE(binder.commit(evidence, chosen).has_value());
    }
    CHECK(binder.deltas() == std::vector<std::int64_t>{-5000});
  }
}

TEST_CASE("lost, duplicated and flipped frames: every byte that is there is right, the rest is named") {
  const auto job = load("gloo-n4");
  if (!job) return;
  const auto frames = read_capture(job->path);
  REQUIRE(frames.has_value());
  std::size_t complete_light = 0, complete_heavy = 0;
  for (const std::uint64_t one_in : {500, 20}) {
    SeededRandom random(one_in);
    std::vector<MemoryFrame> kept;
    for (const MemoryFrame& frame : *frames) {
      if (random.below(one_in) == 0) continue;
      kept.push_back(frame);
      if (random.below(one_in) == 0) kept.push_back(frame);
    }
    const auto held = window_for(*job);
    OpWindow& window = *held;
    decode(kept, window, false);
    const auto all = rounds(*job, window);
    for (const Round& round : all) {
      const auto layout = job->layout(round.step);
      for (std::size_t i = 0; i < layout.size(); ++i) {
        const auto expected = job->bucket(round.step, layout[i]);
        for (std::uint64_t at = 0; at + 4 <= expected.size(); at += 4) {
          const auto value = window.read(round.ops[i], expected.size(), at);
          if (value) REQUIRE(std::memcmp(&*value, expected.data() + at, 4) == 0);
        }
        if (window.bind(round.ops[i], expected.size())) ++(one_in == 500 ? complete_light : complete_heavy);
      }
    }
    CHECK(window.counters().conflicts == 0);
  }
  CHECK(complete_light == 10);  // one bucket, then three times three
  CHECK(complete_heavy < 10);
}

TEST_CASE("one changed payload byte in one of three copies is a CONFLICT") {
  const auto job = load("gloo-n4");
  if (!job) return;
  auto frames = read_capture(job->path);
  REQUIRE(frames.has_value());
  // The last full-size data frame lies in the all-gather of the last step on some edge.
  const auto big = std::find_if(frames->rbegin(), frames->rend(),
                                [](const MemoryFrame& frame) { return frame.bytes.size() >= 1514; });
  REQUIRE(big != frames->rend());
  big->bytes[1000] ^= 0x10;
  const auto held = window_for(*job);
  OpWindow& window = *held;
  decode(*frames, window, false);
  CHECK(window.counters().conflicts >= 1);
  const auto conflicts = window.take_conflicts();
  REQUIRE_FALSE(conflicts.empty());
  CHECK_FALSE(conflicts[0].other_flows.empty());
  const auto bytes = window.bind(conflicts[0].op, window.summary(conflicts[0].op)->lengths.front());
  REQUIRE_FALSE(bytes.has_value());
  CHECK(bytes.error().code == ErrorCode::kOpConflict);
}

TEST_CASE("inspection finds the same gradients without being told any size") {
  for (const char* name : {"gloo-n4", "gloo-torch2/f32", "gloo-torch2/bf16", "gloo-torch2/amp"}) {
    CAPTURE(name);
    const auto job = load(name);
    if (!job) return;
    const auto frames = read_capture(job->path);
    REQUIRE(frames.has_value());
    CaptureInspector inspector({}, std::make_shared<const GlooRing>(4));
    decode(*frames, inspector, job->two_byte);
    const InspectReport report = inspector.report();
    std::size_t at = 0;
    for (std::size_t step = 1; step <= job->steps; ++step) {
      for (const auto& bucket : job->layout(step)) {
        REQUIRE(at < report.ops.size());
        const InspectedOp& op = report.ops[at++];
        const auto expected = job->bucket(step, bucket);
        CHECK(op.bytes == expected.size());
        CHECK(op.complete);
        CHECK(op.missing.empty());
        CHECK(op.sha256 == sha256(expected));
      }
    }
    CHECK(at == report.ops.size());
    CHECK(report.ops.back().index >= job->steps - 1);
    CHECK_FALSE(report.other_ops.empty());
    CHECK(report.other_ops[0].type == CollectiveType::kAllGather);
    CHECK(report.flows.size() >= 8);
    const auto json = inspect_json(report);
    CHECK(json["ops"].size() == report.ops.size());
    CHECK(json["ops"][0]["sha256"] == to_hex(*report.ops[0].sha256));
  }
}

}  // namespace gradtap::dataplane
