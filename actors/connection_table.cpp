#include "actors/connection_table.h"

#include <map>
#include <tuple>
#include <utility>

#include <sys/socket.h>

namespace gradtap::actors {

ConnectionTable::Handle ConnectionTable::enter(int descriptor, std::string address, TimePoint now) {
  const std::lock_guard lock(mutex_);
  return connections_.insert(connections_.end(), {descriptor, std::move(address), now});
}

void ConnectionTable::leave(Handle connection) {
  const std::lock_guard lock(mutex_);
  connections_.erase(connection);
}

void ConnectionTable::trust(Handle connection, bool trusted) {
  const std::lock_guard lock(mutex_);
  connection->trusted = trusted;
}

void ConnectionTable::busy(Handle connection, bool busy, TimePoint now) {
  const std::lock_guard lock(mutex_);
  connection->busy = busy;
  connection->since = now;
}

bool ConnectionTable::drop_one(TimePoint now, std::chrono::milliseconds grace) {
  const std::lock_guard lock(mutex_);
  std::map<std::string_view, std::size_t> strangers;  // of each address
  for (const Connection& connection : connections_) strangers[connection.address] += connection.trusted ? 0 : 1;
  Connection* chosen = nullptr;
  // Strangers before others, crowds before single ones, the oldest first.
  const auto rank = [&](const Connection& connection) {
    const std::size_t crowd = connection.trusted ? 0 : strangers[connection.address];
    return std::tuple(connection.trusted, ~crowd, connection.since);
  };
  for (Connection& connection : connections_)
    if (!connection.busy && !connection.dropped && (chosen == nullptr || rank(connection) < rank(*chosen)))
      chosen = &connection;
  // Nobody goes in place of one whose time has not come yet.
  if (chosen == nullptr || now - chosen->since < grace) return false;
  chosen->dropped = true;
  ++dropped_;
  ::shutdown(chosen->descriptor, SHUT_RDWR);
  return true;
}

std::uint64_t ConnectionTable::dropped() const {
  const std::lock_guard lock(mutex_);
  return dropped_;
}

}  // namespace gradtap::actors
