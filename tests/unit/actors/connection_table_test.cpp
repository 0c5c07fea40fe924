// Who gives way when there is no room. Sockets are pairs: whose far end reads the end of the stream was shut down.
#include "actors/connection_table.h"

#include <array>
#include <map>

#include <doctest/doctest.h>
#include <sys/socket.h>
#include <unistd.h>

namespace gradtap::actors {
namespace {

using namespace std::chrono_literals;

struct Room {
  ConnectionTable table;
  std::map<std::string, ConnectionTable::Handle> known;
  std::map<std::string, std::array<int, 2>> sockets;
  ConnectionTable::TimePoint now = ConnectionTable::TimePoint() + 1000s;

  ~Room() {
    for (const auto& [name, pair] : sockets)
      for (const int fd : pair) ::close(fd);
  }
  void enter(const std::string& name, const std::string& address, bool trusted, std::chrono::milliseconds ago) {
    REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM, 0, sockets[name].data()) == 0);
    known[name] = table.enter(sockets[name][0], address, now - ago);
    if (trusted) table.trust(known[name], true);
  }
  // Who went; empty: nobody.
  std::string drop() {
    std::string gone;
    const bool dropped = table.drop_one(now, 100ms);
    for (const auto& [name, pair] : sockets) {
      char byte = 0;
      if (!known.at(name)->dropped || taken.contains(name)) continue;
      CHECK(::recv(pair[1], &byte, 1, MSG_DONTWAIT) == 0);
      taken.insert({name, true});
      gone += name;
    }
    CHECK(dropped == !gone.empty());
    return gone;
  }
  std::map<std::string, bool> taken;
};

}  // namespace

TEST_CASE("strangers go before whoever was admitted, crowds before single ones, the oldest first") {
  Room room;
  room.enter("known", "10.0.0.1", true, 900s);
  room.enter("single", "10.0.0.2", false, 800s);
  room.enter("crowd-a", "10.0.0.3", false, 20s);
  room.enter("crowd-b", "10.0.0.3", false, 30s);
  room.enter("crowd-c", "10.0.0.3", false, 10s);
  room.enter("known-late", "10.0.0.1", true, 5s);
  // Admitted ones of an address are no crowd of strangers.
  room.enter("known-third", "10.0.0.2", true, 6s);
  room.enter("known-fourth", "10.0.0.2", true, 7s);
  for (const char* const expected : {"crowd-b", "crowd-a", "crowd-c"}) CHECK(room.drop() == expected);
  room.table.leave(room.known.at("crowd-a"));
  for (const int fd : room.sockets.at("crowd-a")) ::close(fd);
  room.sockets.erase("crowd-a");
  for (const char* const expected : {"single", "known", "known-fourth", "known-third", "known-late", ""})
    CHECK(room.drop() == expected);
  CHECK(room.table.dropped() == 8);
}

TEST_CASE("nobody goes whose request is being answered, or before its time") {
  Room room;
  room.enter("busy", "10.0.0.3", false, 900s);
  room.enter("young", "10.0.0.3", false, 99ms);
  room.table.busy(room.known.at("busy"), true, room.now - 800s);
  CHECK(room.drop().empty());
  room.now += 1ms;
  CHECK(room.drop() == "young");
  CHECK(room.drop().empty());
  // It waits again from when its answer was given.
  room.table.busy(room.known.at("busy"), false, room.now);
  CHECK(room.drop().empty());
  room.now += 100ms;
  CHECK(room.drop() == "busy");
}

TEST_CASE("whoever is not admitted any more is a stranger again") {
  Room room;
  room.enter("one", "10.0.0.1", true, 10s);
  room.enter("two", "10.0.0.2", true, 20s);
  room.table.trust(room.known.at("one"), false);
  CHECK(room.drop() == "one");
  CHECK(room.drop() == "two");
}

}  // namespace gradtap::actors
