// What OpenSSL's certificate object says, for the sources of the link that hold one. Internal to the link.
//
// Plain functions, any thread. Failure: what cannot be read is left out.
#pragma once

#include <string_view>

#include "link/certificate.h"
#include "link/openssl.h"

namespace gradtap::link {

// Of an encrypted key: no passphrase is ever asked for at a terminal.
inline int no_passphrase(char*, int, int, void*) {
  return -1;
}

// take(is_dns, value) for each DNS name (as text) and IP address (as 4 or 16 bytes) of the subject.
template <class Take>
void for_each_alternative_name(X509* certificate, Take take) {
  auto* const names =
      static_cast<GENERAL_NAMES*>(X509_get_ext_d2i(certificate, NID_subject_alt_name, nullptr, nullptr));
  if (names == nullptr) return;
  for (int i = 0; i < sk_GENERAL_NAME_num(names); ++i) {
    int type = 0;
    const void* const value = GENERAL_NAME_get0_value(sk_GENERAL_NAME_value(names, i), &type);
    if (type != GEN_DNS && type != GEN_IPADD) continue;
    const auto* const text = static_cast<const ASN1_STRING*>(value);
    take(type == GEN_DNS, std::string_view(reinterpret_cast<const char*>(ASN1_STRING_get0_data(text)),
                                           static_cast<std::size_t>(ASN1_STRING_length(text))));
  }
  GENERAL_NAMES_free(names);
}

[[nodiscard]] CertificateFacts facts_of(X509* certificate);

}  // namespace gradtap::link
