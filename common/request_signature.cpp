#include "common/request_signature.h"

#include <algorithm>
#include <cstdlib>

#include <fmt/format.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>

#include "common/ids.h"

namespace gradtap {

namespace {

constexpr std::string_view kScheme = "GT1 ";
constexpr std::size_t kSignatureDigits = 64;

}  // namespace

std::string request_signature(const JobSecret& secret, const SignedRequest& request) {
  const std::string text = fmt::format("{}\n{}\n{}\n{}\n{}", request.method, request.target, request.session,
                                       request.first_seq, request.body_sha256);
  Sha256 mac{};
  unsigned length = 0;
  // Cannot fail on valid arguments; a failing provider means a broken installation.
  if (HMAC(EVP_sha256(), secret.key.data(), static_cast<int>(secret.key.size()),
           reinterpret_cast<const unsigned char*>(text.data()), text.size(), mac.data(), &length) == nullptr)
    std::abort();
  return to_hex(mac);
}

std::string request_authorization(const JobSecret& secret, const SignedRequest& request) {
  return fmt::format("{}{}:{}", kScheme, secret.id, request_signature(secret, request));
}

Result<PresentedKey> parse_authorization(std::string_view header) {
  const auto wrong = [] {
    return fail(ErrorCode::kUnauthorized, "the Authorization header has a wrong form", {},
                "GT1 key_id:64 hexadecimal digits", {}, "see docs/side-channel.md, Signatures");
  };
  if (!header.starts_with(kScheme)) return wrong();
  header.remove_prefix(kScheme.size());
  const std::size_t colon = header.find(':');
  if (colon == std::string_view::npos || !is_key_id(header.substr(0, colon))) return wrong();
  const std::string_view digits = header.substr(colon + 1);
  if (digits.size() != kSignatureDigits || !std::all_of(digits.begin(), digits.end(), [](char c) {
        return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f');
      }))
    return wrong();
  return PresentedKey{std::string(header.substr(0, colon)), std::string(digits)};
}

bool same_secret_text(std::string_view one, std::string_view other) {
  return one.size() == other.size() && CRYPTO_memcmp(one.data(), other.data(), one.size()) == 0;
}

}  // namespace gradtap
