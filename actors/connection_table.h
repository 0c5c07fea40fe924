// ConnectionTable: the gateway's open connections, and which of them has to go when there is no room for another.
//
// Purpose: slow, half-open and idle clients must not keep others out. Ownership: descriptors belong to their
// connections, which leave the table before they close one. Threads: any, one lock. Invariants: a connection whose
// request is being answered is never chosen; of the others first those that never proved who they are, from the
// address that has the most of them, the oldest first; then those that wait longest for their next request. Failure
// behaviour: none; where nobody can be chosen the caller waits.
#pragma once

#include <chrono>
#include <cstdint>
#include <list>
#include <mutex>
#include <string>
#include <string_view>

namespace gradtap::actors {

class ConnectionTable {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;

  struct Connection {
    int descriptor = -1;
    std::string address;
    TimePoint since;       // it waits for something from its peer
    bool trusted = false;  // its newest request was admitted
    bool busy = false;     // its request is being answered
    bool dropped = false;
  };
  using Handle = std::list<Connection>::iterator;

  [[nodiscard]] Handle enter(int descriptor, std::string address, TimePoint now);
  void leave(Handle connection);
  void trust(Handle connection, bool trusted);
  void busy(Handle connection, bool busy, TimePoint now);
  // Shuts one connection down that has waited for `grace`, so that whoever serves it is free soon. False: nobody can
  // go.
  bool drop_one(TimePoint now, std::chrono::milliseconds grace);
  [[nodiscard]] std::uint64_t dropped() const;

 private:
  mutable std::mutex mutex_;
  std::list<Connection> connections_;
  std::uint64_t dropped_ = 0;
};

}  // namespace gradtap::actors
