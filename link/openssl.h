// Handles of OpenSSL's objects, and what its error queue says. Internal to the link.
//
// Ownership: a handle frees what it holds. Threads: as the object. Failure: openssl_reason() empties the calling
// thread's error queue.
#pragma once

#include <memory>
#include <string>

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>

namespace gradtap::link {

template <auto Free>
struct OpensslFree {
  template <class T>
  void operator()(T* object) const {
    Free(object);
  }
};

using SslHandle = std::unique_ptr<SSL, OpensslFree<SSL_free>>;
using SslContextHandle = std::unique_ptr<SSL_CTX, OpensslFree<SSL_CTX_free>>;
using CertificateHandle = std::unique_ptr<X509, OpensslFree<X509_free>>;
using KeyHandle = std::unique_ptr<EVP_PKEY, OpensslFree<EVP_PKEY_free>>;
using BioHandle = std::unique_ptr<BIO, OpensslFree<BIO_free_all>>;

// The first error in the queue of this thread, in words; the queue is empty afterwards.
[[nodiscard]] inline std::string openssl_reason() {
  const unsigned long code = ERR_get_error();
  ERR_clear_error();
  if (code == 0) return "no reason given";
  const char* const reason = ERR_reason_error_string(code);
  return reason != nullptr ? reason : "error " + std::to_string(code);
}

}  // namespace gradtap::link
