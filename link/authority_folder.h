// AuthorityFolder: the folder in which an operator keeps the authority of a cluster and what it has issued.
//
// Purpose: init, issue, rotate and the three phases of a change of authority, on files. Ownership: the folder. One
// process at a time. Invariants: nothing that can be used is overwritten unless forced; secrets have mode 0600 from
// their first byte on; every file is whole or as it was before; a repeated command leaves what is right as it is.
// Failure behaviour: CERTIFICATE or FILE_* with the path and a remedy; what was done before stays done.
//
// ca.pem: certificate and key of the authority that signs. next.pem: those of the one to come, from trust to
// take_over. ca.crt: what every node is to trust. nodes/NAME/: ca.crt, node.crt and node.key of that node.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "link/certificate.h"

namespace gradtap::link {

struct AuthorityMember {
  std::string name;
  std::vector<std::string> addresses;
};

struct AuthorityDone {
  std::string what;  // "made", "kept", "renewed", "trusted", "retired"
  std::string file;
  CertificateFacts facts;
};

class AuthorityFolder {
 public:
  // now_s: seconds since 1970.
  AuthorityFolder(std::string path, std::int64_t now_s) : path_(std::move(path)), now_s_(now_s) {}

  // force: makes another authority; what the old one issued is of no use from then on.
  [[nodiscard]] Result<AuthorityDone> init(std::uint64_t days, bool force);
  // A certificate that has the same name and addresses and is valid is kept. force: another one all the same.
  [[nodiscard]] Result<std::vector<AuthorityDone>> issue(const std::vector<AuthorityMember>& members,
                                                         std::uint64_t days, bool force);
  // New keys and certificates for these nodes, or for all, with the addresses that they have.
  [[nodiscard]] Result<std::vector<AuthorityDone>> rotate(const std::vector<std::string>& names, std::uint64_t days);
  // Another authority, in three phases, each of which must reach all nodes before the next one: first they trust it
  // beside the old one, then it signs, then the old one is trusted no more.
  [[nodiscard]] Result<std::vector<AuthorityDone>> trust_next(std::uint64_t days);
  [[nodiscard]] Result<std::vector<AuthorityDone>> take_over(std::uint64_t days);
  [[nodiscard]] Result<std::vector<AuthorityDone>> retire();

  [[nodiscard]] Result<std::vector<std::string>> nodes() const;

 private:
  [[nodiscard]] std::string file(const std::string& name) const { return path_ + "/" + name; }
  [[nodiscard]] std::string node_file(const std::string& node, const std::string& name) const {
    return path_ + "/nodes/" + node + "/" + name;
  }
  [[nodiscard]] Validity for_days(std::uint64_t days) const;
  [[nodiscard]] Result<CertifiedKey> read_authority(const std::string& name) const;
  [[nodiscard]] Result<AuthorityDone> make(const std::string& name, std::uint64_t days);
  [[nodiscard]] Result<AuthorityDone> issue_one(const CertifiedKey& authority, const std::string& trusted,
                                                const AuthorityMember& member, std::uint64_t days, bool force);
  [[nodiscard]] Result<std::vector<AuthorityDone>> spread(const std::string& trusted, const char* what);

  const std::string path_;
  const std::int64_t now_s_;
};

}  // namespace gradtap::link
