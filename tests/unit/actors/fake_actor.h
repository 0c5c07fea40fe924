// Actors that a test plays with functions: untyped ones behind a typed handle, so that only what is asked of them needs
// to be there.
#pragma once

#include <deque>
#include <functional>
#include <mutex>
#include <utility>
#include <vector>

#include "tests/unit/actors/actor_probe.h"

namespace gradtap::actors::test {

template <class Handle, class... Handlers>
[[nodiscard]] Handle spawn_fake(caf::actor_system& system, Handlers... handlers) {
  return caf::actor_cast<Handle>(
      system.spawn([=](caf::event_based_actor*) -> caf::behavior { return {std::move(handlers)...}; }));
}

// What a fake was asked, seen from the test's thread.
template <class T>
class Log {
 public:
  void add(T value) {
    const std::lock_guard lock(mutex_);
    values_.push_back(std::move(value));
  }
  [[nodiscard]] std::vector<T> all() const {
    const std::lock_guard lock(mutex_);
    return values_;
  }

 private:
  mutable std::mutex mutex_;
  std::vector<T> values_;
};

// Answers that a test prepares for a fake: each once, in order.
template <class T>
class Script {
 public:
  void then(T value) {
    const std::lock_guard lock(mutex_);
    values_.push_back(std::move(value));
  }
  [[nodiscard]] T next(T otherwise) {
    const std::lock_guard lock(mutex_);
    if (values_.empty()) return otherwise;
    T value = std::move(values_.front());
    values_.pop_front();
    return value;
  }

 private:
  std::mutex mutex_;
  std::deque<T> values_;
};

}  // namespace gradtap::actors::test
