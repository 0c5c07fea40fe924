// Any bytes as a safetensors file, and as a chunk of a probe upload: an Error or a consistent file, never a crash.
#include <cstdlib>

#include "replica/probe.h"
#include "replica/safetensors.h"

using namespace gradtap;
using namespace gradtap::replica;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  SafetensorsLimits limits;
  limits.header_bytes = 1U << 16;
  limits.tensors = 64;
  const auto file = read_safetensors({data, size}, limits);
  if (file) {
    std::size_t total = 0;
    for (const auto& [name, view] : file->tensors) total += view.data.size();
    if (total > size) std::abort();  // overlapping tensors got through
  }
  OptimizerSpec optimizer;
  optimizer.type = OptimizerClass::kSgd;
  optimizer.groups.resize(1);
  ProbeUpload upload(optimizer, false);
  if (upload.add_chunk({data, size}))
    if (const auto probe = upload.finish()) (void)match_recipe(*probe);
  return 0;
}
