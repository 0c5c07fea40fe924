// Node links of one process under TLS, with certificates of one authority in a folder of their own.
#pragma once

#include <chrono>
#include <string>
#include <thread>

#include "tests/unit/link/certificate_fixture.h"
#include "tests/unit/link/link_rig.h"
#include "tests/unit/link/tls_peer.h"

namespace gradtap::link::testing {

struct SecuredRig : LinkRig {
  SecuredRig() {
    for (int i = 0; i < kMembers; ++i) {
      shown.push_back(issue_certificate(authority, name(i), {address(i)}, valid_now()).value());
      write_identity(folder_of(i), authority.certificate, shown.back());
    }
  }
  [[nodiscard]] std::string folder_of(int i) const { return folder / name(i); }
  NodeLinkOptions secured(int i, BulkHandler handler) {
    NodeLinkOptions out = options(i, std::move(handler));
    auto identity = Identity::load(files_in(folder_of(i)), name(i), now_s());
    if (!identity) FAIL(identity.error().text());
    out.identities = std::make_shared<IdentityKeeper>(files_in(folder_of(i)), name(i), std::move(*identity));
    return out;
  }
  // Events of another thread, which tells what it has counted: waits until one says so.
  bool told(int i, const std::string& part) {
    for (int tries = 0; tries < 5000; ++tries) {
      for (const Event& event : events[static_cast<std::size_t>(i)].since(0))
        for (const LogField& field : event.fields)
          if (field.value.find(part) != std::string::npos) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return false;
  }
  Socket from(int i, int to = 1) const {
    return dial(address(i), address(to), members[static_cast<std::size_t>(to)].port);
  }
  CertifiedKey signed_for(const std::string& who, Validity validity = valid_now()) const {
    return issue_certificate(authority, who, {}, validity).value();
  }

  Folder folder;
  CertifiedKey authority = make_authority("gradtap cluster rig", valid_now()).value();
  CertifiedKey stranger = make_authority("gradtap cluster other", valid_now()).value();
  std::vector<CertifiedKey> shown;
};

}  // namespace gradtap::link::testing
