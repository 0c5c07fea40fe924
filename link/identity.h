// Identity: a node's certificate and key and the authorities it trusts, ready for connections; IdentityKeeper reads
// them anew when the files change.
//
// Ownership: an Identity is immutable and shared; connections keep the one they began with. Threads: any. Invariants:
// what load() returns is usable now: the key fits, is closed to others, the certificate has the node's own name, is
// within its validity and chains to the authorities; TLS 1.3 only, both sides show certificates. Failure behaviour:
// CERTIFICATE with the file and a remedy; a refresh that fails keeps what was there.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

#include "common/error.h"

struct ssl_ctx_st;

namespace gradtap::link {

struct IdentityFiles {
  std::string authorities;  // PEM, one certificate or more
  std::string certificate;  // PEM, the node's own first
  std::string key;          // PEM, without a passphrase
};

class Identity {
 public:
  // now_s: seconds since 1970.
  [[nodiscard]] static Result<std::shared_ptr<const Identity>> load(const IdentityFiles& files, const std::string& self,
                                                                    std::int64_t now_s);
  ~Identity();
  Identity(const Identity&) = delete;
  Identity& operator=(const Identity&) = delete;

  [[nodiscard]] ssl_ctx_st* context() const { return context_; }
  [[nodiscard]] std::int64_t not_after_s() const { return not_after_s_; }
  [[nodiscard]] const std::string& fingerprint() const { return fingerprint_; }

 private:
  friend class IdentityKeeper;
  Identity() = default;
  ssl_ctx_st* context_ = nullptr;
  std::int64_t not_after_s_ = 0;
  std::string fingerprint_;
  std::string bytes_;  // of all three files
};

class IdentityKeeper {
 public:
  IdentityKeeper(IdentityFiles files, std::string self, std::shared_ptr<const Identity> first);

  [[nodiscard]] std::shared_ptr<const Identity> current() const;
  // Whether the files hold something new, which is now current.
  [[nodiscard]] Result<bool> refresh(std::int64_t now_s);

 private:
  const IdentityFiles files_;
  const std::string self_;
  mutable std::mutex mutex_;
  std::shared_ptr<const Identity> current_;
};

}  // namespace gradtap::link
