// A fuzz target without a fuzzer: the packed inputs of tests/fuzz/corpus, then seeded mutations of them for a while.
//
// Nothing guides the mutations: depth comes from the inputs, which hours of libFuzzer have found (docs/fuzz.md). For
// builds with the sanitizers and without clang. Usage: NAME_replay CORPUS.bin SECONDS [SEED]. An abort or a sanitizer's
// report ends it; the input that did it is then in CORPUS-NAME.crash of the working folder.
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include <sanitizer/common_interface_defs.h>

#include "common/bytes.h"
#include "common/random.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace {

using gradtap::SeededRandom;
using Bytes = std::vector<std::uint8_t>;

constexpr std::size_t kMaxBytes = 4096;
constexpr std::uint64_t kMostChanges = 6;
Bytes current;
std::string crash_path;

void save() {
  if (std::FILE* const file = std::fopen(crash_path.c_str(), "wb")) {
    std::fwrite(current.data(), 1, current.size(), file);
    std::fclose(file);
    std::fprintf(stderr, "the input is in %s (%zu bytes)\n", crash_path.c_str(), current.size());
  }
}

extern "C" void on_abort(int /*signal*/) {
  save();
  std::_Exit(1);
}

// Each input: its length, 4 bytes little-endian, and its bytes.
bool unpack(const char* path, std::vector<Bytes>& inputs) {
  std::ifstream file(path, std::ios::binary);
  if (!file.good()) return false;
  const Bytes all{std::istreambuf_iterator<char>(file), {}};
  for (std::size_t at = 0; at + 4 <= all.size();) {
    const std::size_t length = gradtap::load_le<std::uint32_t>(&all[at]);
    at += 4;
    if (length > all.size() - at) return false;
    inputs.emplace_back(all.begin() + static_cast<std::ptrdiff_t>(at),
                        all.begin() + static_cast<std::ptrdiff_t>(at + length));
    at += length;
  }
  return !inputs.empty();
}

void change(Bytes& bytes, const std::vector<Bytes>& inputs, SeededRandom& random) {
  static constexpr std::uint8_t kOdd[] = {0, 1, 0x7f, 0x80, 0xff};
  const std::size_t at = bytes.empty() ? 0 : random.below(bytes.size());
  switch (random.below(7)) {
    case 0:
      if (!bytes.empty()) bytes[at] ^= static_cast<std::uint8_t>(1U << random.below(8));
      break;
    case 1:
      if (!bytes.empty()) bytes[at] = static_cast<std::uint8_t>(random.next());
      break;
    case 2:
      if (!bytes.empty()) bytes[at] = kOdd[random.below(std::size(kOdd))];
      break;
    case 3:
      bytes.insert(bytes.begin() + static_cast<std::ptrdiff_t>(at), 1 + random.below(16),
                   static_cast<std::uint8_t>(random.next()));
      break;
    case 4: {
      const std::size_t count = bytes.empty() ? 0 : 1 + random.below(std::min<std::size_t>(bytes.size() - at, 16));
      bytes.erase(bytes.begin() + static_cast<std::ptrdiff_t>(at),
                  bytes.begin() + static_cast<std::ptrdiff_t>(at + count));
      break;
    }
    case 5: {  // the end of another input
      const Bytes& other = inputs[random.below(inputs.size())];
      const std::size_t from = other.empty() ? 0 : random.below(other.size());
      bytes.resize(at);
      bytes.insert(bytes.end(), other.begin() + static_cast<std::ptrdiff_t>(from), other.end());
      break;
    }
    default: {  // a part of itself again
      const std::size_t count = bytes.empty() ? 0 : 1 + random.below(std::min<std::size_t>(bytes.size() - at, 64));
      const Bytes part(bytes.begin() + static_cast<std::ptrdiff_t>(at),
                       bytes.begin() + static_cast<std::ptrdiff_t>(at + count));
      bytes.insert(bytes.begin() + static_cast<std::ptrdiff_t>(bytes.empty() ? 0 : random.below(bytes.size())),
                   part.begin(), part.end());
      break;
    }
  }
  if (bytes.size() > kMaxBytes) bytes.resize(kMaxBytes);
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<Bytes> inputs;
  if (argc < 3 || !unpack(argv[1], inputs)) {
    std::fprintf(stderr, "usage: %s CORPUS.bin SECONDS [SEED]: the corpus must be there and hold inputs\n", argv[0]);
    return 2;
  }
  const double seconds = std::strtod(argv[2], nullptr);
  SeededRandom random(argc > 3 ? std::strtoull(argv[3], nullptr, 10) : 1);
  crash_path = std::string(argv[0]) + ".crash";
  __sanitizer_set_death_callback(save);
  std::signal(SIGABRT, on_abort);
  std::uint64_t runs = 0;
  const auto run = [&](const Bytes& bytes) {
    current = bytes;
    LLVMFuzzerTestOneInput(current.data(), current.size());
    ++runs;
  };
  for (const Bytes& input : inputs) run(input);
  const auto begun = std::chrono::steady_clock::now();
  while (std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count() < seconds) {
    Bytes bytes = inputs[random.below(inputs.size())];
    for (std::uint64_t changes = 1 + random.below(kMostChanges); changes > 0; --changes) change(bytes, inputs, random);
    run(bytes);
  }
  std::printf("%zu inputs, %llu executions\n", inputs.size(), static_cast<unsigned long long>(runs));
  return 0;
}
