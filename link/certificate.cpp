#include "link/certificate.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <ctime>

#include <arpa/inet.h>
#include <fmt/format.h>
#include <openssl/pem.h>
#include <openssl/rand.h>

#include "common/ids.h"
#include "link/certificate_text.h"
#include "link/openssl.h"
#include "link/small_file.h"

namespace gradtap::link {
namespace {

constexpr std::size_t kCertificatesMax = 64;
constexpr int kSerialBytes = 16;

std::unexpected<Error> failed(std::string what, std::string where = {}) {
  return fail(ErrorCode::kCertificate, std::move(what), std::move(where), {}, openssl_reason());
}

std::string text_of(BIO* memory) {
  char* bytes = nullptr;
  const long count = BIO_get_mem_data(memory, &bytes);
  return count > 0 ? std::string(bytes, static_cast<std::size_t>(count)) : std::string();
}

BioHandle memory_of(std::string_view text) {
  return BioHandle(BIO_new_mem_buf(text.data(), static_cast<int>(text.size())));
}

KeyHandle make_key() {
  return KeyHandle(EVP_EC_gen("P-256"));
}

bool add_extension(X509* to, X509* issuer, int nid, const std::string& value) {
  X509V3_CTX context;
  X509V3_set_ctx_nodb(&context);
  X509V3_set_ctx(&context, issuer, to, nullptr, nullptr, 0);
  X509_EXTENSION* const extension = X509V3_EXT_conf_nid(nullptr, &context, nid, value.c_str());
  if (extension == nullptr) return false;
  const int added = X509_add_ext(to, extension, -1);
  X509_EXTENSION_free(extension);
  return added == 1;
}

// Everything but extensions and signature.
CertificateHandle begin_certificate(const std::string& common_name, EVP_PKEY* key, Validity validity) {
  CertificateHandle made(X509_new());
  std::array<unsigned char, kSerialBytes> serial;
  if (!made || RAND_bytes(serial.data(), kSerialBytes) != 1) return {};
  serial[0] &= 0x7F;  // positive
  BIGNUM* const number = BN_bin2bn(serial.data(), kSerialBytes, nullptr);
  const bool numbered = number != nullptr && BN_to_ASN1_INTEGER(number, X509_get_serialNumber(made.get())) != nullptr;
  BN_free(number);
  X509_NAME* const subject = X509_get_subject_name(made.get());
  const auto* const name = reinterpret_cast<const unsigned char*>(common_name.c_str());
  if (!numbered || X509_set_version(made.get(), X509_VERSION_3) != 1 ||
      X509_NAME_add_entry_by_txt(subject, "CN", MBSTRING_UTF8, name, -1, -1, 0) != 1 ||
      ASN1_TIME_set(X509_getm_notBefore(made.get()), validity.from_s) == nullptr ||
      ASN1_TIME_set(X509_getm_notAfter(made.get()), validity.to_s) == nullptr || X509_set_pubkey(made.get(), key) != 1)
    return {};
  return made;
}

Result<CertifiedKey> sign(X509* made, EVP_PKEY* key, EVP_PKEY* signer) {
  if (X509_sign(made, signer, EVP_sha256()) == 0) return failed("a certificate cannot be signed");
  const BioHandle certificate(BIO_new(BIO_s_mem()));
  const BioHandle secret(BIO_new(BIO_s_mem()));
  if (!certificate || !secret || PEM_write_bio_X509(certificate.get(), made) != 1 ||
      PEM_write_bio_PKCS8PrivateKey(secret.get(), key, nullptr, nullptr, 0, nullptr, nullptr) != 1)
    return failed("a certificate cannot be written as text");
  return CertifiedKey{text_of(certificate.get()), text_of(secret.get())};
}

bool is_address(const std::string& text) {
  std::array<unsigned char, sizeof(in6_addr)> bytes;
  return ::inet_pton(AF_INET, text.c_str(), bytes.data()) == 1 ||
         ::inet_pton(AF_INET6, text.c_str(), bytes.data()) == 1;
}

bool is_name(const std::string& name) {
  return !name.empty() && name.size() <= 64 && std::all_of(name.begin(), name.end(), [](unsigned char c) {
    return c < 0x80 && (std::isalnum(c) != 0 || c == '.' || c == '_' || c == '-');
  });
}

Status check_validity(Validity validity) {
  constexpr std::int64_t kYear9999 = 253'402'300'799;
  if (validity.from_s < 0 || validity.to_s <= validity.from_s || validity.to_s > kYear9999)
    return fail(ErrorCode::kCertificate, "a certificate cannot have this validity", {}, "a beginning before its end",
                fmt::format("{} to {}", validity.from_s, validity.to_s));
  return {};
}

// Every certificate of the text, handed to `take`.
template <class Take>
Status for_each_certificate(std::string_view pem, const std::string& where, Take take) {
  ERR_clear_error();
  if (pem.size() > kSmallFileBytesMax)
    return fail(ErrorCode::kCertificate, "a certificate file is too large", where,
                fmt::format("at most {} bytes", kSmallFileBytesMax), fmt::format("{} bytes", pem.size()));
  const BioHandle memory = memory_of(pem);
  std::size_t count = 0;
  for (; memory; ++count) {
    const CertificateHandle certificate(PEM_read_bio_X509(memory.get(), nullptr, no_passphrase, nullptr));
    if (!certificate) break;
    if (count == kCertificatesMax)
      return fail(ErrorCode::kCertificate, "too many certificates in one file", where,
                  fmt::format("at most {}", kCertificatesMax), "more");
    GRADTAP_TRY(take(certificate.get()));
  }
  const unsigned long last = ERR_peek_last_error();
  const bool at_end = ERR_GET_LIB(last) == ERR_LIB_PEM && ERR_GET_REASON(last) == PEM_R_NO_START_LINE;
  if (count > 0 && at_end) {
    ERR_clear_error();
    return {};
  }
  if (count == 0 && at_end) {
    ERR_clear_error();
    return fail(ErrorCode::kCertificate, "there is no certificate in the file", where, "-----BEGIN CERTIFICATE-----",
                "nothing of the kind");
  }
  return failed("a certificate cannot be read", where);
}

}  // namespace

std::string time_text(std::int64_t seconds) {
  const std::time_t time = seconds;
  std::tm parts{};
  if (::gmtime_r(&time, &parts) == nullptr) return fmt::format("{} s", seconds);
  return fmt::format("{:04}-{:02}-{:02} {:02}:{:02}:{:02} UTC", parts.tm_year + 1900, parts.tm_mon + 1, parts.tm_mday,
                     parts.tm_hour, parts.tm_min, parts.tm_sec);
}

Result<CertifiedKey> make_authority(const std::string& common_name, Validity validity) {
  GRADTAP_TRY(check_validity(validity));
  const KeyHandle key = make_key();
  if (!key) return failed("a key cannot be made");
  const CertificateHandle made = begin_certificate(common_name, key.get(), validity);
  if (!made || X509_set_issuer_name(made.get(), X509_get_subject_name(made.get())) != 1 ||
      !add_extension(made.get(), made.get(), NID_basic_constraints, "critical,CA:TRUE,pathlen:0") ||
      !add_extension(made.get(), made.get(), NID_key_usage, "critical,keyCertSign,cRLSign") ||
      !add_extension(made.get(), made.get(), NID_subject_key_identifier, "hash"))
    return failed("a certificate cannot be made");
  return sign(made.get(), key.get(), key.get());
}

Result<CertifiedKey> issue_certificate(const CertifiedKey& authority, const std::string& name,
                                       const std::vector<std::string>& addresses, Validity validity) {
  GRADTAP_TRY(check_validity(validity));
  if (!is_name(name))
    return fail(ErrorCode::kBadText, "not a name for a member", {}, "1 to 64 of A-Z a-z 0-9 . _ -", name.substr(0, 80));
  std::string names = "DNS:" + name;
  for (const std::string& address : addresses) {
    if (!is_address(address))
      return fail(ErrorCode::kBadText, "not an address for a member", {}, "an IP address", address.substr(0, 80));
    names += ",IP:" + address;
  }
  ERR_clear_error();
  const BioHandle issuer_text = memory_of(authority.certificate);
  const CertificateHandle issuer(PEM_read_bio_X509(issuer_text.get(), nullptr, no_passphrase, nullptr));
  const BioHandle key_text = memory_of(authority.key);
  const KeyHandle signer(PEM_read_bio_PrivateKey(key_text.get(), nullptr, no_passphrase, nullptr));
  if (!issuer || !signer) return failed("the authority's certificate or key cannot be read");
  if (X509_check_private_key(issuer.get(), signer.get()) != 1)
    return failed("the authority's key does not fit its certificate");
  const KeyHandle key = make_key();
  if (!key) return failed("a key cannot be made");
  const CertificateHandle made = begin_certificate(name, key.get(), validity);
  if (!made || X509_set_issuer_name(made.get(), X509_get_subject_name(issuer.get())) != 1 ||
      !add_extension(made.get(), issuer.get(), NID_basic_constraints, "critical,CA:FALSE") ||
      !add_extension(made.get(), issuer.get(), NID_key_usage, "critical,digitalSignature") ||
      !add_extension(made.get(), issuer.get(), NID_ext_key_usage, "serverAuth,clientAuth") ||
      !add_extension(made.get(), issuer.get(), NID_subject_alt_name, names) ||
      !add_extension(made.get(), issuer.get(), NID_subject_key_identifier, "hash") ||
      !add_extension(made.get(), issuer.get(), NID_authority_key_identifier, "keyid:always"))
    return failed("a certificate cannot be made");
  return sign(made.get(), key.get(), signer.get());
}

CertificateFacts facts_of(X509* certificate) {
  CertificateFacts facts;
  const auto line = [](const X509_NAME* name) {
    const BioHandle memory(BIO_new(BIO_s_mem()));
    if (!memory || X509_NAME_print_ex(memory.get(), name, 0, XN_FLAG_RFC2253) < 0) return std::string("unreadable");
    return text_of(memory.get()).substr(0, 256);
  };
  facts.subject = line(X509_get_subject_name(certificate));
  facts.issuer = line(X509_get_issuer_name(certificate));
  for_each_alternative_name(certificate, [&](bool is_dns, std::string_view value) {
    if (is_dns) {
      facts.names.emplace_back(value);
      return;
    }
    std::array<char, INET6_ADDRSTRLEN> text{};
    const int family = value.size() == sizeof(in_addr) ? AF_INET : AF_INET6;
    if (value.size() != sizeof(in_addr) && value.size() != sizeof(in6_addr)) return;
    if (::inet_ntop(family, value.data(), text.data(), text.size()) != nullptr)
      facts.addresses.emplace_back(text.data());
  });
  const auto seconds = [](const ASN1_TIME* time) -> std::int64_t {
    std::tm parts{};
    return ASN1_TIME_to_tm(time, &parts) == 1 ? static_cast<std::int64_t>(::timegm(&parts)) : 0;
  };
  facts.validity = {seconds(X509_get0_notBefore(certificate)), seconds(X509_get0_notAfter(certificate))};
  facts.authority = X509_check_ca(certificate) == 1;
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest;
  unsigned int bytes = 0;
  if (X509_digest(certificate, EVP_sha256(), digest.data(), &bytes) == 1)
    facts.fingerprint = to_hex(digest.data(), bytes);
  return facts;
}

Result<std::vector<CertificateFacts>> read_certificates(std::string_view pem, const std::string& where) {
  std::vector<CertificateFacts> all;
  GRADTAP_TRY(for_each_certificate(pem, where, [&](X509* certificate) -> Status {
    all.push_back(facts_of(certificate));
    return {};
  }));
  return all;
}

Result<std::vector<std::string>> split_certificates(std::string_view pem, const std::string& where) {
  std::vector<std::string> all;
  GRADTAP_TRY(for_each_certificate(pem, where, [&](X509* certificate) -> Status {
    const BioHandle memory(BIO_new(BIO_s_mem()));
    if (!memory || PEM_write_bio_X509(memory.get(), certificate) != 1)
      return failed("a certificate cannot be written as text", where);
    all.push_back(text_of(memory.get()));
    return {};
  }));
  return all;
}

Result<bool> signed_by(std::string_view pem, std::string_view authority) {
  const auto first = [](std::string_view text) {
    const BioHandle memory = memory_of(text);
    return CertificateHandle(PEM_read_bio_X509(memory.get(), nullptr, no_passphrase, nullptr));
  };
  ERR_clear_error();
  const CertificateHandle certificate = first(pem);
  const CertificateHandle issuer = first(authority);
  if (!certificate || !issuer) return failed("a certificate cannot be read");
  const bool right = X509_check_issued(issuer.get(), certificate.get()) == X509_V_OK &&
                     X509_verify(certificate.get(), X509_get0_pubkey(issuer.get())) == 1;
  ERR_clear_error();
  return right;
}

}  // namespace gradtap::link
