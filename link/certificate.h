// Certificates of a cluster's own authority: made and read, in memory.
//
// Purpose: an authority signs one certificate a member; its name in the certificate is the member's name. Ownership:
// values (PEM text). Threads: any. Invariants: keys are EC P-256, signatures ECDSA with SHA-256; an authority signs no
// further authority. Failure behaviour: CERTIFICATE with OpenSSL's reason; what is read is hostile until parsed.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/error.h"

namespace gradtap::link {

struct Validity {
  std::int64_t from_s = 0;  // seconds since 1970
  std::int64_t to_s = 0;
};

struct CertifiedKey {
  std::string certificate;  // PEM
  std::string key;          // PEM, PKCS 8
};

struct CertificateFacts {
  std::string subject;
  std::string issuer;
  std::vector<std::string> names;      // DNS names of the subject's alternative names
  std::vector<std::string> addresses;  // IP addresses of it
  Validity validity;
  bool authority = false;
  std::string fingerprint;  // SHA-256 of the DER form, hex
};

[[nodiscard]] Result<CertifiedKey> make_authority(const std::string& common_name, Validity validity);
// `name` follows the rule of member names; addresses are IP addresses.
[[nodiscard]] Result<CertifiedKey> issue_certificate(const CertifiedKey& authority, const std::string& name,
                                                     const std::vector<std::string>& addresses, Validity validity);

// Every certificate in the text, in order; at least one. `where` is for messages.
[[nodiscard]] Result<std::vector<CertificateFacts>> read_certificates(std::string_view pem, const std::string& where);
// The text of the certificates again, one a string.
[[nodiscard]] Result<std::vector<std::string>> split_certificates(std::string_view pem, const std::string& where);
// Whether the first certificate of `pem` was signed by the first of `authority`.
[[nodiscard]] Result<bool> signed_by(std::string_view pem, std::string_view authority);
// "2027-11-30 02:13:02 UTC"
[[nodiscard]] std::string time_text(std::int64_t seconds);

}  // namespace gradtap::link
