// Whole fabrics and live sources: several jobs in time order, hostile requests, a mirror that is changed or blinded.
#include "generator/live_source.h"

#include <array>
#include <cstring>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include <doctest/doctest.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/interval_set.h"
#include "generator/request_stream.h"
#include "generator/traffic.h"
#include "tests/unit/generator/generated.h"

namespace gradtap::generator {
namespace {

using Bytes = std::vector<std::uint8_t>;

TrafficConfig small_traffic() {
  TrafficConfig config;
  config.job.tuning.ranks = 3;
  config.job.tuning.channels = 2;
  config.job.tuning.ll_max_bytes = 1 << 16;
  config.job.hosts = invented_hosts(1, 3, false);
  config.elements = {700, 9000};
  config.steps = 3;
  return config;
}

template <class T>
void put_le(Bytes& to, T value) {
  for (std::size_t i = 0; i < sizeof(T); ++i) to.push_back(static_cast<std::uint8_t>(value >> (8 * i)));
}

// As docs/generate.md says it.
Bytes request_bytes(std::uint8_t kind, std::uint8_t type, std::uint32_t root, std::uint64_t sequence,
                    const Bytes& payload) {
  Bytes bytes{'G', 'T', 'G', '1', kind, type, 0, 0};
  put_le(bytes, root);
  put_le(bytes, std::uint32_t{0});
  put_le(bytes, sequence);
  put_le(bytes, std::uint64_t{payload.size()});
  bytes.insert(bytes.end(), payload.begin(), payload.end());
  return bytes;
}

// A port that outlives the source's: frames by interface.
using Seen = std::map<std::string, Collector>;
OpenPort open_into(Seen& seen) {
  class Port final : public FrameSink {
   public:
    explicit Port(Collector& to) : to_(to) {}
    void frame(std::uint64_t time_ns, ByteSpan bytes, const FrameNote& note) override {
      to_.frame(time_ns, bytes, note);
    }

   private:
    Collector& to_;
  };
  return [&seen](const std::string& interface) -> Result<std::unique_ptr<FrameSink>> {
    if (interface == "absent") return fail(ErrorCode::kPortOpen, "the interface to send on is not there", interface);
    return std::make_unique<Port>(seen[interface]);
  };
}

// Runs a source over what a script wrote; the script's end is closed behind it.
struct Served {
  Status status;
  std::vector<std::uint64_t> answers;
  LiveReport report;
};
Served serve(const Bytes& written, Seen& seen, std::uint64_t max_payload = 1 << 20) {
  int ends[2];
  REQUIRE(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
  std::thread script([&] {
    std::size_t done = 0;
    while (done < written.size()) {
      const ssize_t count = ::send(ends[1], written.data() + done, written.size() - done, MSG_NOSIGNAL);
      if (count <= 0) break;
      done += static_cast<std::size_t>(count);
    }
    ::shutdown(ends[1], SHUT_WR);
  });
  LiveConfig config;
  config.traffic = small_traffic();
  config.interface = "first";
  auto source = LiveSource::create(config, open_into(seen));
  REQUIRE(source);
  RequestStream requests(ends[0], max_payload);
  Served served;
  served.status = (*source)->run(requests, [&](std::uint64_t sequence) {
    served.answers.push_back(sequence);
    return true;
  });
  served.report = (*source)->report();
  ::close(ends[0]);
  script.join();
  ::close(ends[1]);
  return served;
}

}  // namespace

TEST_CASE("traffic: two jobs at the same time, in time order, each with all its values") {
  TrafficConfig config = small_traffic();
  config.jobs = 2;
  config.ddp_start = true;
  DrawnValues drawn(config.type, 42);
  const auto values = [&](std::uint32_t job, std::uint64_t step, std::size_t bucket) -> Result<ByteSpan> {
    return drawn.draw(job, step, bucket, config.elements[bucket]);
  };
  Collector seen;
  const auto report = write_traffic(config, values, seen);
  REQUIRE(report);
  // An all-gather, a broadcast of shapes, one a bucket; then a reduction for each bucket and step.
  CHECK(report->ops == 2 * (2 + 2 + 2 * 3));
  std::uint64_t last = 0;
  std::map<std::pair<std::uint32_t, std::uint32_t>, IntervalSet> ops;  // job, op
  std::uint64_t switches = 0, previous = 0;
  for (const HeldFrame& held : seen.frames) {
    CHECK(held.time_ns >= last);
    last = held.time_ns;
    const std::uint32_t job = held.note.connection / 0x4000;
    switches += job != previous ? 1 : 0;
    previous = job;
    if (held.note.end > held.note.begin) ops[{job, held.note.op}].add(held.note.begin, held.note.end);
  }
  CHECK(switches > 50);
  for (std::uint32_t job = 0; job < 2; ++job)
    for (std::uint32_t op = 4; op < 10; ++op) CHECK(ops[{job, op}].contains(0, config.elements[op % 2] * 4));

  Collector again;
  REQUIRE(write_traffic(config, values, again));
  REQUIRE(again.frames.size() == seen.frames.size());
  bool same = true;
  for (std::size_t i = 0; i < seen.frames.size(); ++i) same = same && seen.frames[i].bytes == again.frames[i].bytes;
  CHECK(same);

  config.max_step_bytes = 10'000;
  CHECK_FALSE(write_traffic(config, values, again).has_value());
  config = small_traffic();
  config.jobs = 0;
  CHECK_FALSE(write_traffic(config, values, again).has_value());
  config = small_traffic();
  config.elements.clear();
  CHECK_FALSE(write_traffic(config, values, again).has_value());
  config = small_traffic();
  const auto wrong = [&](std::uint32_t, std::uint64_t, std::size_t) -> Result<ByteSpan> { return ByteSpan{}; };
  CHECK_FALSE(write_traffic(config, wrong, again).has_value());
}

TEST_CASE("traffic: what follows from the version of NCCL") {
  JobConfig config;
  REQUIRE(apply_nccl_version("2.19.3", config));
  CHECK(config.cts == CtsFormat::k32Bytes);
  REQUIRE(apply_nccl_version("2.21.5", config));
  CHECK(config.tuning.layout == dataplane::NcclLayout::k2_20To2_21);
  CHECK(config.cts == CtsFormat::k64Bytes);
  REQUIRE(apply_nccl_version("2.27", config));
  CHECK(config.cts == CtsFormat::k64BytesWide);
  CHECK_FALSE(config.immediate_big_endian);
  REQUIRE(apply_nccl_version("2.29.1", config));
  CHECK(config.immediate_big_endian);
  CHECK_FALSE(apply_nccl_version("2.4.8", config).has_value());
}

TEST_CASE("live source: requests become frames, answers follow, the mirror moves and is blinded") {
  Seen seen;
  Bytes reduced(4 * 900);
  for (std::size_t i = 0; i < reduced.size(); ++i) reduced[i] = static_cast<std::uint8_t>(i * 7);
  Bytes written = request_bytes(1, 0, 0, 11, reduced);
  const auto add = [&](const Bytes& more) { written.insert(written.end(), more.begin(), more.end()); };
  add(request_bytes(3, 6, 0, 12, Bytes(30, 5)));
  add(request_bytes(2, 6, 2, 13, Bytes(100, 6)));
  Bytes to_two = request_bytes(6, 6, 1, 17, Bytes(100'000, 9));
  to_two[12] = 2;
  add(to_two);
  Bytes mirror{7};
  for (const char c : std::string("second")) mirror.push_back(static_cast<std::uint8_t>(c));
  add(request_bytes(4, 0, 0, 14, mirror));
  add(request_bytes(5, 0, 0, 15, Bytes{4, 0, 0, 0, 0, 0, 0, 0}));
  add(request_bytes(1, 0, 0, 16, reduced));
  const Served served = serve(written, seen);
  CHECK(served.status);
  CHECK(served.answers == std::vector<std::uint64_t>{11, 12, 13, 17, 14, 15, 16});
  CHECK(served.report.requests == 7);
  CHECK(served.report.blinded == 4);
  // Connections 0 to 5 are the ring's. Messages of 32 KiB.
  std::map<std::uint64_t, std::size_t> sent;
  for (const HeldFrame& held : seen["first"].frames)
    if (held.note.connection == 6 && held.note.kind == FrameKind::kData) sent[held.note.message] += held.bytes.size();
  CHECK(sent.size() == 4);
  CHECK(served.report.frames == seen["first"].frames.size() + seen["second"].frames.size());
  IntervalSet first;
  for (const HeldFrame& held : seen["first"].frames)
    if (held.note.op == 0 && held.note.end > held.note.begin) first.add(held.note.begin, held.note.end);
  CHECK(first.contains(0, reduced.size()));
  // The first reduction's frames are 4 more than the second's, which have VXLAN's 50 bytes around them.
  std::uint64_t before = 0, after = 0;
  std::size_t count = 0;
  for (const HeldFrame& held : seen["first"].frames)
    if (held.note.op == 0 && held.note.kind == FrameKind::kData) before += held.bytes.size();
  for (const HeldFrame& held : seen["second"].frames)
    if (held.note.kind == FrameKind::kData) {
      after += held.bytes.size();
      count += 1;
    }
  CHECK(count > 0);
  CHECK(after == before + 50 * count);  // the four that were not seen were control entries
}

TEST_CASE("live source: what cannot be served is refused by name") {
  const Bytes good = request_bytes(1, 0, 0, 1, Bytes(8));
  const auto refused = [](const Bytes& written, std::uint64_t max_payload = 1 << 20) {
    Seen seen;
    const Served served = serve(written, seen, max_payload);
    REQUIRE_FALSE(served.status.has_value());
    return served.status.error().code;
  };
  {
    Seen seen;
    CHECK(serve(good, seen).status);
    CHECK(serve({}, seen).status);
  }
  for (std::size_t cut = 1; cut < good.size(); ++cut)
    CHECK(refused(Bytes(good.begin(), good.begin() + static_cast<std::ptrdiff_t>(cut))) ==
          ErrorCode::kRequestMalformed);
  for (const std::size_t at : {0U, 6U, 7U, 12U, 15U}) {
    Bytes wrong = good;
    wrong[at] ^= 0x40;
    CHECK(refused(wrong) == ErrorCode::kRequestMalformed);
  }
  CHECK(refused(request_bytes(0, 0, 0, 1, {})) == ErrorCode::kRequestMalformed);
  CHECK(refused(request_bytes(7, 0, 0, 1, {})) == ErrorCode::kRequestMalformed);
  CHECK(refused(request_bytes(1, 7, 0, 1, Bytes(8))) == ErrorCode::kRequestMalformed);
  CHECK(refused(good, 7) == ErrorCode::kRequestTooLarge);
  CHECK(refused(request_bytes(1, 0, 0, 1, Bytes(7))) == ErrorCode::kOutOfRange);
  CHECK(refused(request_bytes(1, 0, 0, 1, {})) == ErrorCode::kScheduleImpossible);
  CHECK(refused(request_bytes(3, 0, 0, 1, Bytes(7))) == ErrorCode::kRequestMalformed);
  CHECK(refused(request_bytes(6, 0, 0, 1, Bytes(7))) == ErrorCode::kOutOfRange);
  CHECK(refused(request_bytes(2, 0, 3, 1, Bytes(7))) == ErrorCode::kScheduleImpossible);
  CHECK(refused(request_bytes(4, 0, 0, 1, Bytes{0})) == ErrorCode::kRequestMalformed);
  CHECK(refused(request_bytes(4, 0, 0, 1, Bytes{8, 'a'})) == ErrorCode::kRequestMalformed);
  CHECK(refused(request_bytes(4, 0, 0, 1, Bytes(17, 'a'))) == ErrorCode::kRequestMalformed);
  CHECK(refused(request_bytes(4, 0, 0, 1, Bytes{0, 'a', 'b', 's', 'e', 'n', 't'})) == ErrorCode::kPortOpen);
  CHECK(refused(request_bytes(5, 0, 0, 1, Bytes(7))) == ErrorCode::kRequestMalformed);
  // The length that a header promises is not what memory is taken for.
  Bytes huge = request_bytes(1, 0, 0, 1, {});
  huge[24 + 4] = 0x10;  // 64 GiB
  CHECK(refused(huge, ~std::uint64_t{0}) == ErrorCode::kRequestMalformed);
}

}  // namespace gradtap::generator
