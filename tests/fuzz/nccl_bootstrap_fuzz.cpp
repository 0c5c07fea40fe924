// TCP segments from anywhere into the bootstrap reader: bounded, and nothing is read beyond what came.
#include <cstdint>
#include <cstdlib>
#include <vector>

#include "dataplane/nccl_bootstrap.h"

// Six bytes a segment: ports, sequence, flags, length; then its payload. A first byte of 0x5a puts a hello before it.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace gradtap;
  using namespace gradtap::dataplane;
  NcclBootstrapConfig config;
  config.max_streams = 16;
  config.max_handles = 32;
  config.max_exchanges = 8;
  NcclBootstrap bootstrap(config);
  static constexpr std::uint8_t kHellos[2][12] = {{0x6c, 0x9d, 0x4b, 0xfc, 0xf2, 0xb9, 0x4a, 0x56, 4, 0, 0, 0},
                                                  {1, 2, 3, 4, 5, 6, 7, 8, 1, 0, 0, 0}};
  while (size >= 6) {
    FrameView view;
    view.source_port = data[0] & 3;
    view.target_port = data[0] >> 2 & 3;
    view.sequence = data[1] * 16U;
    view.flags = (data[2] & 1) != 0 ? kTcpSyn : kTcpAck;
    const std::size_t length = std::min<std::size_t>(size - 6, load_le<std::uint16_t>(data + 3) % 3000);
    std::vector<std::uint8_t> payload;
    if ((data[2] & 2) != 0) payload.assign(kHellos[data[2] >> 2 & 1], kHellos[data[2] >> 2 & 1] + 12);
    payload.insert(payload.end(), data + 6, data + 6 + length);
    if ((data[2] & 8) != 0) payload.resize(12 + (data[5] % 2 == 0 ? kNcclQpInfoBytes : kNcclOldQpInfoBytes), data[5]);
    view.payload = payload;
    bootstrap.segment(view);
    data += 6 + length;
    size -= 6 + length;
  }
  for (const NcclExchange& exchange : bootstrap.exchanges())
    if (exchange.name && exchange.name->sender >= exchange.name->ranks) std::abort();
  return 0;
}
