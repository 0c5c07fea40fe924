// Descriptor: a file descriptor or socket that closes itself. Moved, not copied; one thread.
#pragma once

#include <utility>

#include <unistd.h>

namespace gradtap {

class Descriptor {
 public:
  explicit Descriptor(int value = -1) : value_(value) {}
  Descriptor(Descriptor&& other) noexcept : value_(std::exchange(other.value_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(value_, other.value_);
    return *this;
  }
  ~Descriptor() {
    if (value_ >= 0) ::close(value_);
  }
  // Negative: it could not be opened.
  [[nodiscard]] int get() const { return value_; }

 private:
  int value_;
};

}  // namespace gradtap
