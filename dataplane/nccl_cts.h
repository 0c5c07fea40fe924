// NCCL's clear-to-send entries: what the receiver of data writes back on the same queue pair for each message it waits
// for. The entry of data message n of a connection has index n (from 1), says where and how much may be written, and
// its tag is the rank of the data's sender. Layouts: up to 2.19 32 bytes; 2.20-2.26 and from 2.27 64 bytes.
// Pure; any thread. Failure behaviour: bytes that cannot be entries give none.
#pragma once

#include <cstdint>
#include <span>

#include "common/bytes.h"

namespace gradtap::dataplane {

inline constexpr std::uint32_t kMaxNcclReceives = 8;  // entries written at once

struct NcclCts {
  std::uint64_t address = 0;
  std::uint64_t bytes = 0;
  std::uint32_t key = 0;
  std::uint32_t requests = 0;
  std::uint32_t tag = 0;
  std::uint64_t index = 0;
  friend bool operator==(const NcclCts&, const NcclCts&) = default;
};

// The entries of one write; their number. 0: not a clear-to-send.
[[nodiscard]] std::size_t read_nccl_cts(ByteSpan payload, std::span<NcclCts, kMaxNcclReceives> entries);

}  // namespace gradtap::dataplane
