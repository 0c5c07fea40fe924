#include "dataplane/pcapng_walker.h"

#include <filesystem>
#include <fstream>
#include <vector>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include "dataplane/capture_port.h"
#include "tests/test_files.h"

namespace gradtap::dataplane {
namespace {

using Bytes = std::vector<std::uint8_t>;

// Writes pcapng blocks in either byte order, straight from the format's description.
class Writer {
 public:
  explicit Writer(bool big = false) : big_(big) { section(); }
  void section() {
    block(0x0a0d0d0a, [&](Bytes& b) {
      word(b, 0x1a2b3c4d);
      half(b, 1);
      half(b, 0);
      word(b, 0xffffffff);
      word(b, 0xffffffff);
    });
  }
  struct Option {
    std::uint16_t code;
    Bytes value;
  };
  void interface(std::uint16_t link, std::uint32_t snap, const std::vector<Option>& options = {}) {
    block(1, [&](Bytes& b) {
      half(b, link);
      half(b, 0);
      word(b, snap);
      for (const Option& option : options) {
        half(b, option.code);
        half(b, static_cast<std::uint16_t>(option.value.size()));
        b.insert(b.end(), option.value.begin(), option.value.end());
        while (b.size() % 4 != 0) b.push_back(0);
      }
      if (!options.empty()) word(b, 0);
    });
  }
  void packet(std::uint32_t interface, std::uint64_t ticks, const Bytes& data, std::uint32_t wire) {
    block(6, [&](Bytes& b) {
      word(b, interface);
      word(b, static_cast<std::uint32_t>(ticks >> 32));
      word(b, static_cast<std::uint32_t>(ticks));
      word(b, static_cast<std::uint32_t>(data.size()));
      word(b, wire);
      b.insert(b.end(), data.begin(), data.end());
    });
  }
  void obsolete_packet(std::uint16_t interface, std::uint64_t ticks, const Bytes& data) {
    block(2, [&](Bytes& b) {
      half(b, interface);
      half(b, 7);
      word(b, static_cast<std::uint32_t>(ticks >> 32));
      word(b, static_cast<std::uint32_t>(ticks));
      word(b, static_cast<std::uint32_t>(data.size()));
      word(b, static_cast<std::uint32_t>(data.size()));
      b.insert(b.end(), data.begin(), data.end());
    });
  }
  void simple_packet(const Bytes& data, std::uint32_t wire) {
    block(3, [&](Bytes& b) {
      word(b, wire);
      b.insert(b.end(), data.begin(), data.end());
    });
  }
  template <class F>
  void block(std::uint32_t type, F fill) {
    Bytes body;
    fill(body);
    while (body.size() % 4 != 0) body.push_back(0);
    word(file, type);
    word(file, static_cast<std::uint32_t>(body.size() + 12));
    file.insert(file.end(), body.begin(), body.end());
    word(file, static_cast<std::uint32_t>(body.size() + 12));
  }
  void word(Bytes& out, std::uint32_t value) const {
    for (int i = 0; i < 4; ++i) out.push_back(static_cast<std::uint8_t>(value >> 8 * (big_ ? 3 - i : i)));
  }
  void half(Bytes& out, std::uint16_t value) const {
    for (int i = 0; i < 2; ++i) out.push_back(static_cast<std::uint8_t>(value >> 8 * (big_ ? 1 - i : i)));
  }
  Bytes file;

 private:
  bool big_;
};

struct Kept {
  std::uint32_t interface;
  std::uint64_t time_ns;
  std::size_t bytes;
  std::uint32_t wire;
  friend bool operator==(const Kept&, const Kept&) = default;
};

Result<std::vector<Kept>> read_all(const Bytes& file, std::uint64_t* skipped = nullptr) {
  auto walker = PcapngWalker::over(file, "test");
  if (!walker) return std::unexpected(walker.error());
  std::vector<Kept> all;
  CaptureRecord record;
  for (;;) {
    const auto more = walker->next(record);
    if (!more) return std::unexpected(more.error());
    if (!*more) break;
    all.push_back({record.interface, record.time_ns, record.bytes.size(), record.wire_bytes});
  }
  if (skipped != nullptr) *skipped = walker->skipped_records();
  return all;
}

TEST_CASE("interfaces of different snap length, resolution and link type; unknown blocks; both byte orders") {
  for (const bool big : {false, true}) {
    Writer writer(big);
    const Bytes offset = big ? Bytes{0, 0, 0, 0, 0, 0, 0, 5} : Bytes{5, 0, 0, 0, 0, 0, 0, 0};
    writer.interface(1, 64);                                        // microseconds
    writer.interface(1, 0, {{2, {'e', 't', 'h'}}, {9, {9}}});       // nanoseconds, no limit
    writer.interface(113, 100);                                     // not Ethernet
    writer.interface(1, 262144, {{9, {0x80 | 10}}, {14, offset}});  // 1/1024 s, 5 s later
    writer.interface(1, 96, {{9, {12}}});                           // picoseconds
    writer.block(0x0bad, [](Bytes& b) { b.assign(33, 1); });        // nobody's
    writer.packet(0, 1'500'000, Bytes(64, 1), 1514);
    writer.block(5, [](Bytes& b) { b.assign(8, 0); });  // statistics
    writer.packet(1, (std::uint64_t{1} << 32) + 7, Bytes(9000, 2), 9000);
    writer.packet(2, 0, Bytes(40, 3), 40);
    writer.packet(3, 512, Bytes(61, 4), 61);
    writer.packet(4, 3'999, Bytes(60, 5), 60);
    writer.obsolete_packet(1, 9, Bytes(60, 6));
    writer.simple_packet(Bytes(64, 7), 70);
    std::uint64_t skipped = 0;
    const auto all = read_all(writer.file, &skipped);
    REQUIRE_MESSAGE(all.has_value(), (all ? "" : all.error().text()));
    CHECK(*all == std::vector<Kept>{{0, 1'500'000'000, 64, 1514},
                                    {1, 4'294'967'303, 9000, 9000},
                                    {3, 5'500'000'000, 61, 61},
                                    {4, 3, 60, 60},
                                    {1, 9, 60, 60},
                                    {0, 0, 64, 70}});
    CHECK(skipped == 1);
  }
}

TEST_CASE("a second section has its own byte order and interfaces; ids go on") {
  Writer little(false), big(true);
  little.interface(1, 0);
  little.packet(0, 1, Bytes(60, 1), 60);
  big.interface(1, 0, {{9, {3}}});
  big.packet(0, 2, Bytes(62, 1), 62);
  Bytes file = little.file;
  file.insert(file.end(), big.file.begin(), big.file.end());
  const auto all = read_all(file);
  REQUIRE(all.has_value());
  CHECK(*all == std::vector<Kept>{{0, 1000, 60, 60}, {1, 2'000'000, 62, 62}});
  // The first section's interface is not one of the second.
  Writer none(true);
  none.packet(0, 2, Bytes(62, 1), 62);
  file = little.file;
  file.insert(file.end(), none.file.begin(), none.file.end());
  CHECK(read_all(file).error().code == ErrorCode::kCaptureMalformed);
}

TEST_CASE("hostile lengths end with a named error, a cut file at every length") {
  Writer writer;
  writer.interface(1, 0, {{9, {9}}});
  writer.packet(0, 1, Bytes(61, 1), 61);
  writer.packet(0, 2, Bytes(60, 1), 60);
  const Bytes good = writer.file;
  REQUIRE(read_all(good)->size() == 2);
  std::size_t whole = 0;
  for (std::size_t length = 4; length < good.size(); ++length) {
    const auto result = read_all({good.begin(), good.begin() + static_cast<std::ptrdiff_t>(length)});
    if (result)
      ++whole;
    else
      REQUIRE(result.error().code == ErrorCode::kCaptureEndsEarly);
  }
  CHECK(whole == 3);  // behind the section header, the interface and the first packet
  const auto with_word = [&](std::size_t at, std::uint32_t value) {
    Bytes file = good;
    for (int i = 0; i < 4; ++i) file[at + i] = static_cast<std::uint8_t>(value >> 8 * i);
    return read_all(file);
  };
  const std::size_t interface = 28, packet = 28 + 32;
  for (const std::uint32_t length : {0U, 4U, 8U, 11U, 13U, 30U, 36U})
    CHECK(with_word(interface + 4, length).error().code == ErrorCode::kCaptureMalformed);
  CHECK(with_word(interface + 4, 0xfffffffc).error().code == ErrorCode::kCaptureEndsEarly);
  CHECK(with_word(interface + 18, 0xffff).error().code == ErrorCode::kCaptureMalformed);  // an option's length
  CHECK(with_word(packet + 8, 1).error().code == ErrorCode::kCaptureMalformed);           // no such interface
  CHECK(with_word(packet + 20, 65).error().code == ErrorCode::kCaptureMalformed);         // captured > block
  CHECK(with_word(packet + 20, 0xffffffff).error().code == ErrorCode::kCaptureMalformed);
  CHECK(with_word(8, 0x11111111).error().code == ErrorCode::kCaptureMalformed);  // byte-order magic
  Writer many;
  for (std::size_t i = 0; i <= PcapngWalker::kMaxInterfaces; ++i) many.interface(1, 0);
  CHECK(read_all(many.file).error().code == ErrorCode::kCaptureMalformed);
}

TEST_CASE("times that do not fit are held at the ends of the range") {
  for (const std::uint8_t resolution : {0, 127, 0x80 | 0, 0x80 | 127, 0x80 | 96, 20, 40}) {
    Writer writer;
    writer.interface(1, 0, {{9, {static_cast<std::uint8_t>(resolution)}}, {14, Bytes(8, 0xff)}});
    writer.packet(0, ~0ULL, Bytes(60, 1), 60);
    const auto all = read_all(writer.file);
    REQUIRE(all.has_value());
    const bool seconds = resolution == 0 || resolution == 0x80;
    CHECK((*all)[0].time_ns == (seconds ? ~0ULL : 0));
  }
}

TEST_CASE("a port over a pcapng file: cut frames are counted, damage is told after what came before it") {
  Writer writer;
  writer.interface(1, 64);
  writer.interface(1, 0);
  writer.packet(0, 1, Bytes(64, 1), 1514);
  writer.packet(1, 2, Bytes(1514, 2), 1514);
  writer.file.resize(writer.file.size() + 7);
  const auto path = std::filesystem::temp_directory_path() / ("capture-port" + std::to_string(getpid()));
  std::ofstream(path, std::ios::binary)
      .write(reinterpret_cast<const char*>(writer.file.data()), static_cast<std::streamsize>(writer.file.size()));
  auto port = CapturePort::open(path.string());
  REQUIRE(port.has_value());
  std::array<Frame, 8> frames;
  CHECK((*port)->rx_burst(0, frames) == 1);
  CHECK(frames[0].bytes == 1514);
  CHECK(frames[0].data[0] == 2);
  CHECK((*port)->exhausted());
  CHECK((*port)->counters().oversized == 1);
  CHECK((*port)->records() == 2);
  REQUIRE((*port)->error().has_value());
  CHECK((*port)->error()->code == ErrorCode::kCaptureEndsEarly);
  std::filesystem::remove(path);
}

TEST_CASE("the recorded captures hold as many frames as is known of them") {
  const std::string truth = gradtap::testing::capture_path("expected.json", "pcapng_walker");
  if (truth.empty()) return;
  const auto known = nlohmann::json::parse(std::ifstream(truth));
  REQUIRE(known["captures"].size() == 5);
  for (const auto& capture : known["captures"]) {
    const std::string path = gradtap::testing::capture_path(capture["file"], "pcapng_walker");
    if (path.empty()) continue;
    const auto file = CaptureFile::open(path);
    REQUIRE(file.has_value());
    const auto counts = file->count();
    REQUIRE(counts.has_value());
    CHECK(counts->records == capture["frames"].get<std::uint64_t>());
    CHECK(counts->cut_records == capture["truncated_frames"].get<std::uint64_t>());
    auto walker = file->walk();
    CaptureRecord first;
    REQUIRE(walker->next(first).value());
    CHECK(first.time_ns == capture["first_timestamp_ns"].get<std::uint64_t>());
  }
}

}  // namespace
}  // namespace gradtap::dataplane
