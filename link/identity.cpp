#include "link/identity.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>
#include <openssl/pem.h>
#include <sys/stat.h>

#include "link/certificate_text.h"
#include "link/session.h"
#include "link/small_file.h"

namespace gradtap::link {
namespace {

constexpr int kChainDepthMax = 4;
// AES-128 first: the fastest of them where the processor has AES instructions.
constexpr const char* kCiphers = "TLS_AES_128_GCM_SHA256:TLS_AES_256_GCM_SHA384:TLS_CHACHA20_POLY1305_SHA256";
// What one read from the socket may bring: several records.
constexpr std::size_t kReadAheadBytes = std::size_t{64} << 10;

using StoreContextHandle = std::unique_ptr<X509_STORE_CTX, OpensslFree<X509_STORE_CTX_free>>;

// What was read wrong, with what to do about it.
std::unexpected<Error> with_remedy(Error error) {
  error.remedy = "make it anew with `gradtap ca issue`, and copy its three files together";
  return std::unexpected<Error>(std::move(error));
}

std::unexpected<Error> unusable(std::string what, const std::string& file, std::string expected, std::string actual,
                                std::string remedy) {
  return fail(ErrorCode::kCertificate, std::move(what), file, std::move(expected), std::move(actual),
              std::move(remedy));
}

Result<std::string> read(const char* what, const char* key, const std::string& path) {
  if (path.empty())
    return fail(ErrorCode::kCertificate, fmt::format("security is tls, and no {} is configured", what), key, "a file",
                "nothing",
                "make certificates with `gradtap ca init` and `gradtap ca issue` and name the files in [security]; or "
                "write security = \"none\" in the cluster file of a laptop");
  auto bytes = read_small_file(path);
  if (!bytes)
    return unusable(fmt::format("the {} cannot be read", what), path, "a file that this process may read",
                    bytes.error().actual, fmt::format("make it with `gradtap ca issue`, or correct {}", key));
  return bytes;
}

Status check_key_file(const std::string& path) {
  struct stat about{};
  if (::stat(path.c_str(), &about) != 0 || (about.st_mode & S_IRWXO) == 0) return {};
  return unusable("everybody may read or change the key of this node", path, "mode 0600",
                  fmt::format("0{:o}", about.st_mode & 07777), fmt::format("chmod 600 {}", path));
}

Status trust(SSL_CTX* context, const std::string& pem, const std::string& path) {
  const auto authorities = read_certificates(pem, path);
  if (!authorities) return with_remedy(authorities.error());
  for (const CertificateFacts& each : *authorities)
    if (!each.authority)
      return unusable("a certificate of no authority stands among the authorities", path, "a CA certificate",
                      each.subject, "give security.ca_file the ca.crt that `gradtap ca issue` wrote");
  const BioHandle memory(BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())));
  X509_STORE* const store = SSL_CTX_get_cert_store(context);
  for (;;) {
    const CertificateHandle each(PEM_read_bio_X509(memory.get(), nullptr, no_passphrase, nullptr));
    if (!each) break;
    if (X509_STORE_add_cert(store, each.get()) != 1)
      return unusable("an authority cannot be used", path, {}, openssl_reason(), {});
  }
  ERR_clear_error();
  return {};
}

Status use_certificate(SSL_CTX* context, const std::string& pem, const std::string& path) {
  const auto facts = read_certificates(pem, path);
  if (!facts) return with_remedy(facts.error());
  const BioHandle memory(BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())));
  for (bool first = true;; first = false) {
    const CertificateHandle each(PEM_read_bio_X509(memory.get(), nullptr, no_passphrase, nullptr));
    if (!each) break;
    const int used = first ? SSL_CTX_use_certificate(context, each.get())
                           : static_cast<int>(SSL_CTX_add1_chain_cert(context, each.get()));
    if (used != 1) return unusable("a certificate cannot be used", path, {}, openssl_reason(), {});
  }
  ERR_clear_error();
  return {};
}

Status use_key(SSL_CTX* context, const std::string& pem, const IdentityFiles& files) {
  const BioHandle memory(BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())));
  const KeyHandle key(PEM_read_bio_PrivateKey(memory.get(), nullptr, no_passphrase, nullptr));
  if (!key)
    return unusable("the key cannot be read", files.key, "a private key in PEM without a passphrase", openssl_reason(),
                    "make another one with `gradtap ca issue`");
  if (SSL_CTX_use_PrivateKey(context, key.get()) != 1 || SSL_CTX_check_private_key(context) != 1)
    return unusable("the key does not fit the certificate", files.key, fmt::format("the key of {}", files.certificate),
                    openssl_reason(), "take both from one run of `gradtap ca issue`");
  return {};
}

// The same judgement that a peer will make.
Status judge_own(SSL_CTX* context, const IdentityFiles& files, const std::string& self, std::int64_t now_s) {
  X509* const own = SSL_CTX_get0_certificate(context);
  const CertificateFacts facts = facts_of(own);
  if (std::find(facts.names.begin(), facts.names.end(), self) == facts.names.end())
    return unusable("the certificate is not this node's", files.certificate, fmt::format("DNS name \"{}\"", self),
                    fmt::format("\"{}\"", fmt::join(facts.names, "\", \"")),
                    fmt::format("gradtap ca issue DIR {}, or correct node.name", self));
  if (now_s > facts.validity.to_s)
    return unusable("the certificate of this node has expired", files.certificate, "one that is valid now",
                    fmt::format("valid until {}", time_text(facts.validity.to_s)),
                    "gradtap ca rotate DIR, and copy the new files here");
  if (now_s < facts.validity.from_s)
    return unusable("the certificate of this node is not valid yet", files.certificate, "one that is valid now",
                    fmt::format("valid from {}", time_text(facts.validity.from_s)), "correct the clock of this host");
  STACK_OF(X509)* chain = nullptr;
  SSL_CTX_get0_chain_certs(context, &chain);
  const StoreContextHandle check(X509_STORE_CTX_new());
  if (!check || X509_STORE_CTX_init(check.get(), SSL_CTX_get_cert_store(context), own, chain) != 1)
    return unusable("the certificate cannot be judged", files.certificate, {}, openssl_reason(), {});
  X509_VERIFY_PARAM* const rules = X509_STORE_CTX_get0_param(check.get());
  X509_VERIFY_PARAM_set_time(rules, now_s);
  X509_VERIFY_PARAM_set_depth(rules, kChainDepthMax);
  for (const int purpose : {X509_PURPOSE_SSL_SERVER, X509_PURPOSE_SSL_CLIENT}) {
    X509_STORE_CTX_set_purpose(check.get(), purpose);
    if (X509_verify_cert(check.get()) == 1) break;
    return unusable("the certificate of this node does not stand the check of its peers", files.certificate,
                    fmt::format("one that an authority of {} signed", files.authorities),
                    X509_verify_cert_error_string(X509_STORE_CTX_get_error(check.get())),
                    "gradtap ca issue DIR NAME, and copy its three files together");
  }
  ERR_clear_error();
  return {};
}

}  // namespace

Identity::~Identity() {
  SSL_CTX_free(context_);
}

Result<std::shared_ptr<const Identity>> Identity::load(const IdentityFiles& files, const std::string& self,
                                                       std::int64_t now_s) {
  ERR_clear_error();
  const auto authorities = read("CA file", "security.ca_file", files.authorities);
  if (!authorities) return std::unexpected<Error>(authorities.error());
  const auto certificate = read("certificate", "security.certificate_file", files.certificate);
  if (!certificate) return std::unexpected<Error>(certificate.error());
  const auto key = read("key", "security.key_file", files.key);
  if (!key) return std::unexpected<Error>(key.error());
  GRADTAP_TRY(check_key_file(files.key));
  const std::shared_ptr<Identity> made(new Identity());
  made->context_ = SSL_CTX_new(TLS_method());
  SSL_CTX* const context = made->context_;
  if (context == nullptr || SSL_CTX_set_min_proto_version(context, TLS1_3_VERSION) != 1 ||
      SSL_CTX_set_ciphersuites(context, kCiphers) != 1)
    return unusable("TLS 1.3 cannot be set up", {}, {}, openssl_reason(), "check the installation of OpenSSL");
  // No resumption: every connection shows its certificate.
  SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);
  SSL_CTX_set_num_tickets(context, 0);
  SSL_CTX_set_options(context, SSL_OP_NO_TICKET | SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION);
  SSL_CTX_set_mode(context, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
  SSL_CTX_set_read_ahead(context, 1);
  SSL_CTX_set_default_read_buffer_len(context, kReadAheadBytes);
  SSL_CTX_set_verify_depth(context, kChainDepthMax);
  SSL_CTX_set_verify(context, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, note_verification);
  GRADTAP_TRY(trust(context, *authorities, files.authorities));
  GRADTAP_TRY(use_certificate(context, *certificate, files.certificate));
  GRADTAP_TRY(use_key(context, *key, files));
  GRADTAP_TRY(judge_own(context, files, self, now_s));
  const CertificateFacts facts = facts_of(SSL_CTX_get0_certificate(context));
  made->not_after_s_ = facts.validity.to_s;
  made->fingerprint_ = facts.fingerprint;
  made->bytes_ = *authorities + *certificate + *key;
  return made;
}

IdentityKeeper::IdentityKeeper(IdentityFiles files, std::string self, std::shared_ptr<const Identity> first)
    : files_(std::move(files)), self_(std::move(self)), current_(std::move(first)) {}

std::shared_ptr<const Identity> IdentityKeeper::current() const {
  const std::lock_guard lock(mutex_);
  return current_;
}

Result<bool> IdentityKeeper::refresh(std::int64_t now_s) {
  std::string bytes;
  for (const std::string* const path : {&files_.authorities, &files_.certificate, &files_.key}) {
    const auto part = read_small_file(*path);
    if (!part) return std::unexpected<Error>(part.error());
    bytes += *part;
  }
  {
    const std::lock_guard lock(mutex_);
    if (bytes == current_->bytes_) return false;
  }
  auto next = Identity::load(files_, self_, now_s);
  if (!next) return std::unexpected<Error>(next.error());
  const std::lock_guard lock(mutex_);
  current_ = std::move(*next);
  return true;
}

}  // namespace gradtap::link
