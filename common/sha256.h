// SHA-256 of bytes, one-shot and incremental, over OpenSSL. Any thread; an instance belongs to one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "common/ids.h"

namespace gradtap {

[[nodiscard]] Sha256 sha256(std::span<const std::uint8_t> bytes);
[[nodiscard]] Sha256 sha256(std::string_view text);

class Sha256Stream {
 public:
  Sha256Stream();
  ~Sha256Stream();
  Sha256Stream(const Sha256Stream&) = delete;
  Sha256Stream& operator=(const Sha256Stream&) = delete;

  void add(const void* bytes, std::size_t count);
  [[nodiscard]] Sha256 finish();

 private:
  void* context_;
};

}  // namespace gradtap
