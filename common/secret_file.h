// SecretFile: keys of a job and tokens of a node, as they stand in small files that are closed to others.
//
// Purpose: the one place that knows the two forms (docs/security.md): a job's file holds lines `GT1 id 64-hex-digits`,
// a token's file one line of text. Ownership: values. Threads: any. Invariants: what is loaded came from a regular file
// that only its owner may change and strangers cannot read; a new file has mode 0600 from its first moment and
// replaces none. Failure behaviour: FILE_UNREADABLE, FILE_UNWRITABLE or BAD_TEXT with the file; no message ever
// contains a byte of a secret.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/error.h"

namespace gradtap {

inline constexpr std::size_t kSecretBytes = 32;
inline constexpr std::size_t kSecretsInFileMax = 8;

struct JobSecret {
  std::string id;  // 1 to 64 of A-Z a-z 0-9 . _ -
  std::array<std::uint8_t, kSecretBytes> key{};
};

// The first one signs, every one is accepted: keys are changed by adding a line before removing one.
[[nodiscard]] Result<std::vector<JobSecret>> load_secrets(const std::string& path);
[[nodiscard]] Result<std::string> load_token(const std::string& path);

// Writes a new key, or a new token, drawn from the kernel. An existing file is refused.
[[nodiscard]] Status create_secret_file(const std::string& path, std::string_view id);
[[nodiscard]] Status create_token_file(const std::string& path);

// Whether a text may name a key.
[[nodiscard]] bool is_key_id(std::string_view text);

}  // namespace gradtap
