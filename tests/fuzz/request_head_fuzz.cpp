// The head of a request before the guard: whoever is admitted has proven it by a signature, a token or where it asks
// from. Signatures are computed here a second time.
#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/sha.h>

#include "actors/access_guard.h"
#include "common/request_signature.h"

using namespace gradtap;
using namespace gradtap::actors;

namespace {

const std::string kRead(40, 'r');
const std::string kAdmin(40, 'a');

void require(bool holds) {
  if (!holds) std::abort();
}

std::string hex(const unsigned char* bytes, std::size_t count) {
  std::string text;
  for (std::size_t i = 0; i < count; ++i) {
    text += "0123456789abcdef"[bytes[i] >> 4];
    text += "0123456789abcdef"[bytes[i] & 15];
  }
  return text;
}

struct Asked {
  std::string method, target, session, first_seq, digest, authorization, peer;
  bool proxied = false;

  [[nodiscard]] RequestHead head() const {
    const std::string_view path = std::string_view(target).substr(0, target.find('?'));
    return {method, path, target, session, first_seq, digest, authorization, peer, proxied};
  }
};

std::string signature(const JobSecret& secret, const Asked& asked) {
  const std::string text =
      asked.method + "\n" + asked.target + "\n" + asked.session + "\n" + asked.first_seq + "\n" +
      (asked.digest.empty() ? "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855" : asked.digest);
  std::array<unsigned char, EVP_MAX_MD_SIZE> mac;
  unsigned length = 0;
  require(HMAC(EVP_sha256(), secret.key.data(), static_cast<int>(secret.key.size()),
               reinterpret_cast<const unsigned char*>(text.data()), text.size(), mac.data(), &length) != nullptr);
  return hex(mac.data(), length);
}

AccessRules closed_rules() {
  AccessRules rules{"demo", {{"new", {}}, {"old", {}}}, kRead, kAdmin, true};
  rules.secrets[0].key.fill(1);
  rules.secrets[1].key.fill(2);
  return rules;
}

bool local(const Asked& asked) {
  return !asked.proxied && (asked.peer.starts_with("127.") || asked.peer.starts_with("::ffff:127.") ||
                            asked.peer == "::1" || asked.peer == "::ffff:::1");
}

// A path of the job that the keys are of.
bool of_demo(std::string_view path) {
  std::string once;
  for (const char c : "/" + std::string(path) + "/")
    if (c != '/' || once.empty() || once.back() != '/') once += c;
  return once.starts_with("/v1/jobs/demo/");
}

// Why it may have been admitted; a reason is enough, the guard may still refuse.
bool has_proof(const AccessRules& rules, const Asked& asked, AccessNeed need) {
  if (need == AccessNeed::kNothing) return true;
  if (asked.authorization.empty()) return local(asked) && (need == AccessNeed::kRead || need == AccessNeed::kCommand);
  if (asked.authorization == "Bearer " + kAdmin) return need != AccessNeed::kJob;
  if (asked.authorization == "Bearer " + kRead) return need == AccessNeed::kRead;
  if (need == AccessNeed::kCommand || !of_demo(asked.head().path)) return false;
  return std::any_of(rules.secrets.begin(), rules.secrets.end(), [&](const JobSecret& secret) {
    return asked.authorization == "GT1 " + secret.id + ":" + signature(secret, asked);
  });
}

}  // namespace

// Byte 0: what is signed and changed; byte 1: where from; then lines: method, target, session, sequence, digest,
// authorization, and what is left is the body.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const AccessRules rules = closed_rules();
  static AccessGuard guard(rules);
  static const char* const kPeers[] = {"10.0.0.9", "127.0.0.1", "::1", "::ffff:127.0.0.1", "1127.0.0.1", ""};
  if (size < 2) return 0;
  const unsigned mode = data[0] % 4;
  Asked asked;
  asked.peer = kPeers[data[1] % std::size(kPeers)];
  asked.proxied = (data[1] & 0x80) != 0;
  std::string_view rest(reinterpret_cast<const char*>(data) + 2, size - 2);
  for (std::string* field :
       {&asked.method, &asked.target, &asked.session, &asked.first_seq, &asked.digest, &asked.authorization}) {
    const std::size_t end = rest.find('\n');
    *field = rest.substr(0, end);
    rest.remove_prefix(end == std::string_view::npos ? rest.size() : end + 1);
  }
  if (const auto parsed = parse_authorization(asked.authorization)) {
    require(is_key_id(parsed->id));
    require("GT1 " + parsed->id + ":" + parsed->signature == asked.authorization);
  }
  const std::string_view path = asked.head().path;
  const AccessNeed need = guard.need(asked.method, path);
  if (mode == 0) {
    const auto admitted = guard.admit(asked.head());
    require(!admitted || has_proof(rules, asked, need));
    require(admitted || (!admitted.error().what.empty() && !admitted.error().remedy.empty()));
    return 0;
  }
  // Signed as it should be.
  std::array<unsigned char, SHA256_DIGEST_LENGTH> digest;
  SHA256(reinterpret_cast<const unsigned char*>(rest.data()), rest.size(), digest.data());
  asked.digest = hex(digest.data(), digest.size());
  const JobSecret& secret = rules.secrets[mode % 2];
  asked.authorization = "GT1 " + secret.id + ":" + signature(secret, asked);
  require(asked.authorization ==
          request_authorization(secret, {asked.method, asked.target, asked.session, asked.first_seq, asked.digest}));
  const auto admitted = guard.admit(asked.head());
  require(!admitted || has_proof(rules, asked, need));
  if (admitted && need != AccessNeed::kNothing) {
    require(guard.check_body(*admitted, rest).has_value());
    require(!guard.check_body(*admitted, std::string(rest) + "x"));
    // What is changed afterwards is not what was signed.
    Asked other = asked;
    std::string* const parts[] = {&other.method, &other.target, &other.session, &other.first_seq, &other.digest};
    *parts[data[1] % std::size(parts)] += '0';
    require(!guard.admit(other.head()) || has_proof(rules, other, guard.need(other.method, other.head().path)));
  }
  return 0;
}
