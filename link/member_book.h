// MemberBook: the members that the link knows now; the cluster's epochs change it while the link runs.
//
// Ownership: values. Threads: any (a mutex; asked once per connection, never per frame). Invariants: names are
// different. Failure behaviour: none.
#pragma once

#include <algorithm>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <asio/ip/address.hpp>

#include "link/link_options.h"

namespace gradtap::link {

class MemberBook {
 public:
  explicit MemberBook(std::vector<LinkMember> members) : members_(std::move(members)) {}

  void set(std::vector<LinkMember> members) {
    const std::lock_guard lock(mutex_);
    members_ = std::move(members);
  }
  [[nodiscard]] std::optional<LinkMember> find(const std::string& name) const {
    const std::lock_guard lock(mutex_);
    const auto it =
        std::find_if(members_.begin(), members_.end(), [&](const LinkMember& member) { return member.name == name; });
    return it == members_.end() ? std::nullopt : std::optional(*it);
  }
  [[nodiscard]] bool has_address(const asio::ip::address& address) const {
    const std::lock_guard lock(mutex_);
    return std::any_of(members_.begin(), members_.end(), [&](const LinkMember& member) {
      asio::error_code error;
      return asio::ip::make_address(member.address, error) == address && !error;
    });
  }

 private:
  mutable std::mutex mutex_;
  std::vector<LinkMember> members_;
};

}  // namespace gradtap::link
