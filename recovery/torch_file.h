// TorchFile: the file that torch.save writes and plain torch.load reads (torch 1.13 and later, also weights_only).
//
// Purpose: a zip of a pickle and of the float32 storages that it names, as a stream in bounded memory
// (docs/formats.md). Pure; any thread. Failure behaviour: the error of the source or the sink; a file cut short has no
// central directory, so torch.load refuses it.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "common/error.h"
#include "replica/safetensors.h"

namespace gradtap::recovery {

// Writes the bytes of storage `index`, in pieces of any size.
using StorageWriter = std::function<Status(std::size_t index, const replica::ByteSink& sink)>;

// `storage_bytes` in the order of the storages' numbers.
[[nodiscard]] Status write_torch_file(const std::string& pickle, const std::vector<std::uint64_t>& storage_bytes,
                                      const StorageWriter& storage, const replica::ByteSink& sink,
                                      std::uint64_t zip64_from = 0xFFFF'FFFF);

}  // namespace gradtap::recovery
