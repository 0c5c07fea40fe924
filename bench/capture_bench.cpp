// A capture of a real gloo job through receiving, decoding and assembly, on one core. Run by capture_driver.py.
//
// The capture is read into memory first. Receiving is what a driver that copies does (net_af_packet): each frame goes
// into a buffer of a pool, 32 make a burst, the burst is handed on and given back. "pointers" hands out views and
// touches no byte. Every variant receives; decode also follows packets and flows, checksums verified, and drops what
// comes out; assembly also places it into ops, which are bound as they become whole and given up. Times are CPU time of
// the thread.
#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include <sched.h>
#include <time.h>

#include "common/clock.h"
#include "common/random.h"
#include "dataplane/capture_file.h"
#include "dataplane/gloo_decoder.h"
#include "dataplane/gloo_ring.h"
#include "dataplane/op_window.h"

namespace {

using namespace gradtap;
using namespace gradtap::dataplane;

constexpr std::size_t kBurst = 32;
constexpr std::size_t kPoolFrames = 4096;  // as many as a receive ring has
constexpr std::size_t kBufferBytes = 2048;
constexpr int kRepetitions = 5;
constexpr double kWarmShare = 0.3;

enum Mode : int { kPointers, kReceive, kDecode, kAssembly, kModes };
constexpr const char* kNames[kModes] = {"pointers alone", "receive only", "receive, decode",
                                        "receive, decode, assemble"};

struct Job {
  std::vector<Frame> frames;
  std::size_t first_timed = 0;  // frames before it fill the op buffers that every later step takes again
  std::uint64_t timed_bytes = 0;
  std::vector<IpAddress> ranks;
  SizeTable sizes;
  std::uint64_t expected = 0;  // bytes of all ops
};

// What came out of one pass, to be compared with what the job says it sent.
struct Outcome {
  double seconds = 0;
  std::uint64_t segment_bytes = 0;
  std::uint64_t drops = 0;
  std::uint64_t ops = 0;
  std::uint64_t op_bytes = 0;
  std::uint64_t shed = 0;
  std::uint64_t conflicts = 0;
  std::size_t warm_frames = 0;  // when kWarmShare of the op bytes were out
};

double thread_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

class Sink final : public SegmentSink {
 public:
  Sink(OpWindow* window, Outcome& outcome) : window_(window), outcome_(outcome) {}
  void segment(const Segment& segment) override {
    outcome_.segment_bytes += segment.bytes;
    if (window_ != nullptr) window_->add(segment);
  }
  void keep(const OwnedBytes&) override {}
  void hand_over(std::uint16_t, std::uint32_t) override {}

  // As a node does after a burst: what became whole is bound and, here, given up at once.
  void collect() {
    for (const OpSummary& summary : window_->summaries_changed()) {
      if (summary.closed || !summary.complete) continue;
      const auto bytes = window_->bind(summary.op, summary.lengths.front());
      if (!bytes) continue;
      ++outcome_.ops;
      outcome_.op_bytes += (*bytes)->bytes().size();
      window_->abandon(summary.op);
    }
    outcome_.shed += window_->take_shed().size();
    outcome_.conflicts += window_->take_conflicts().size();
    (void)window_->take_proven_flows();
  }

 private:
  OpWindow* window_;
  Outcome& outcome_;
};

// Address resolution also crosses a mirror; every other reason takes bytes of the job.
bool is_loss(FrameDrop drop) {
  return drop != FrameDrop::kNone && drop != FrameDrop::kNotIp;
}

Outcome pass(const Job& job, Mode mode, std::vector<std::uint8_t>& pool) {
  Outcome outcome;
  SystemClock clock;
  FlowDirectory directory;
  if (!directory.set_endpoints(job.ranks)) return outcome;
  GlooDecoderConfig config;
  config.checksum = ChecksumPolicy::kRequired;
  GlooDecoder decoder(config, directory, clock, 0);
  const auto ring = std::make_shared<const GlooRing>(static_cast<std::uint32_t>(job.ranks.size()));
  OpWindow window(OpWindowConfig{}, ring);
  window.set_sizes(job.sizes);
  Sink sink(mode == kAssembly ? &window : nullptr, outcome);
  Frame burst[kBurst];
  std::size_t slot = 0;
  std::uint64_t released = 0;
  double begun = thread_seconds();
  for (std::size_t at = 0; at < job.frames.size(); at += kBurst) {
    const std::size_t count = std::min(kBurst, job.frames.size() - at);
    if (at == job.first_timed) begun = thread_seconds();
    for (std::size_t i = 0; i < count; ++i) {
      burst[i] = job.frames[at + i];
      if (mode == kPointers) continue;
      std::uint8_t* const buffer = pool.data() + slot * kBufferBytes;
      slot = (slot + 1) % kPoolFrames;
      std::memcpy(buffer, burst[i].data, burst[i].bytes);
      burst[i].data = buffer;
    }
    if (mode >= kDecode) decoder.decode(std::span(burst, count), sink);
    if (mode == kAssembly) sink.collect();
    if (outcome.warm_frames == 0 && outcome.op_bytes >= job.expected * kWarmShare) outcome.warm_frames = at + count;
    released += count;
    asm volatile("" : : "r"(burst), "r"(&released) : "memory");
  }
  outcome.seconds = thread_seconds() - begun;
  for (std::size_t i = 0; i < kFrameDropCount; ++i)
    if (is_loss(static_cast<FrameDrop>(i))) outcome.drops += decoder.counters().drops[i];
  return outcome;
}

int usage() {
  std::fputs("usage: capture_bench CAPTURE RANK,RANK,... OP_BYTES,OP_BYTES,... BYTES_OF_ALL_OPS\n", stderr);
  return 2;
}

std::vector<std::string> words(const std::string& text) {
  std::vector<std::string> out;
  for (std::size_t at = 0; at <= text.size();) {
    const std::size_t end = std::min(text.find(',', at), text.size());
    out.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  return out;
}

bool number(const std::string& text, std::uint64_t& value) {
  return std::from_chars(text.data(), text.data() + text.size(), value).ec == std::errc{};
}

}  // namespace

// CAPTURE RANKS SIZES EXPECTED_BYTES: addresses of the ranks, lengths that an all-reduce may have, and the bytes that
// all of them together have.
int main(int argc, char** argv) {
  if (argc != 5) return usage();
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(sched_getcpu(), &one);
  (void)sched_setaffinity(0, sizeof one, &one);

  Job job;
  for (const std::string& text : words(argv[2])) {
    const auto address = parse_ip(text);
    if (!address) return usage();
    job.ranks.push_back(*address);
  }
  for (const std::string& text : words(argv[3])) {
    std::uint64_t bytes = 0;
    if (!number(text, bytes) || !job.sizes.add({bytes, 4})) return usage();
  }
  if (!number(argv[4], job.expected)) return usage();
  const auto file = CaptureFile::open(argv[1]);
  if (!file) {
    std::fprintf(stderr, "%s\n", file.error().text().c_str());
    return 1;
  }
  auto walker = file->walk();
  if (!walker) return 1;
  CaptureRecord record;
  std::vector<std::uint8_t> pool(kPoolFrames * kBufferBytes);
  std::uint64_t left_out = 0;
  std::uint64_t sum = 0;
  while (true) {
    const auto more = walker->next(record);
    if (!more || !*more) break;
    if (record.bytes.size() > kBufferBytes || record.bytes.size() < record.wire_bytes) {
      ++left_out;
      continue;
    }
    for (std::size_t i = 0; i < record.bytes.size(); i += 512)
      sum += record.bytes[i];  // pages of the file are here now
    job.frames.push_back(
        {record.bytes.data(), static_cast<std::uint32_t>(record.bytes.size()), record.wire_bytes, nullptr});
  }
  asm volatile("" : : "r"(sum));
  if (job.frames.empty()) return usage();

  job.first_timed = pass(job, kAssembly, pool).warm_frames / kBurst * kBurst;
  if (job.first_timed >= job.frames.size()) job.first_timed = 0;
  for (std::size_t i = job.first_timed; i < job.frames.size(); ++i) job.timed_bytes += job.frames[i].bytes;
  const double timed_frames = static_cast<double>(job.frames.size() - job.first_timed);

  std::vector<int> order;
  for (int mode = 0; mode < kModes; ++mode) order.insert(order.end(), kRepetitions, mode);
  SeededRandom random(static_cast<std::uint64_t>(job.frames.size()));
  for (std::size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random.next() % i]);
  std::vector<Outcome> found[kModes];
  for (const int mode : order) found[mode].push_back(pass(job, static_cast<Mode>(mode), pool));

  const double gib = static_cast<double>(job.timed_bytes) / (1U << 30);
  std::printf("   %.2f GiB in %zu frames of %.0f bytes timed, %lu left out\n", gib, job.frames.size() - job.first_timed,
              static_cast<double>(job.timed_bytes) / timed_frames, static_cast<unsigned long>(left_out));
  bool right = left_out == 0;
  double rates[kModes] = {};
  for (int mode = 0; mode < kModes; ++mode) {
    auto& runs = found[mode];
    for (const Outcome& run : runs) {
      if (mode >= kDecode && (run.drops != 0 || run.segment_bytes < job.expected)) right = false;
      if (mode == kAssembly && (run.op_bytes != job.expected || run.shed != 0 || run.conflicts != 0)) right = false;
    }
    std::sort(runs.begin(), runs.end(), [](const Outcome& a, const Outcome& b) { return a.seconds < b.seconds; });
    const auto rate = [&](const Outcome& run) { return static_cast<double>(job.timed_bytes) / run.seconds / 1e9; };
    rates[mode] = rate(runs[kRepetitions / 2]);
    std::printf("   %-28s %7.2f GB/s (%.2f to %.2f), %.0f ns a frame\n", kNames[mode], rates[mode], rate(runs.back()),
                rate(runs.front()), runs[kRepetitions / 2].seconds / timed_frames * 1e9);
  }
  const Outcome& whole = found[kAssembly].front();
  std::printf("   assembled: %lu all-reduces, %lu bytes (expected %lu), %lu shed, %lu conflicts, %lu frames dropped\n",
              static_cast<unsigned long>(whole.ops), static_cast<unsigned long>(whole.op_bytes),
              static_cast<unsigned long>(job.expected), static_cast<unsigned long>(whole.shed),
              static_cast<unsigned long>(whole.conflicts), static_cast<unsigned long>(whole.drops));
  std::printf("   assembly / receive only %.2f (at least 0.5: %s); / pointers alone %.3f; decode / receive only %.2f\n",
              rates[kAssembly] / rates[kReceive], rates[kAssembly] >= 0.5 * rates[kReceive] ? "yes" : "NO",
              rates[kAssembly] / rates[kPointers], rates[kDecode] / rates[kReceive]);
  if (!right) std::printf("   WRONG: bytes are missing, or were dropped, shed or in conflict\n");
  return right ? 0 : 1;
}
