#include "common/sha256.h"

#include <cstdlib>

#include <openssl/evp.h>

namespace gradtap {

namespace {
// SHA-256 cannot fail on valid arguments; a failing provider means a broken installation.
void require(int ok) {
  if (ok != 1) std::abort();
}
}  // namespace

Sha256Stream::Sha256Stream() : context_(EVP_MD_CTX_new()) {
  require(context_ != nullptr ? 1 : 0);
  require(EVP_DigestInit_ex(static_cast<EVP_MD_CTX*>(context_), EVP_sha256(), nullptr));
}

Sha256Stream::~Sha256Stream() {
  EVP_MD_CTX_free(static_cast<EVP_MD_CTX*>(context_));
}

void Sha256Stream::add(const void* bytes, std::size_t count) {
  require(EVP_DigestUpdate(static_cast<EVP_MD_CTX*>(context_), bytes, count));
}

Sha256 Sha256Stream::finish() {
  Sha256 digest{};
  unsigned length = 0;
  require(EVP_DigestFinal_ex(static_cast<EVP_MD_CTX*>(context_), digest.data(), &length));
  return digest;
}

Sha256 sha256(std::span<const std::uint8_t> bytes) {
  Sha256Stream stream;
  stream.add(bytes.data(), bytes.size());
  return stream.finish();
}

Sha256 sha256(std::string_view text) {
  return sha256(std::span(reinterpret_cast<const std::uint8_t*>(text.data()), text.size()));
}

}  // namespace gradtap
