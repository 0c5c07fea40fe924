// RequestSignature: the signature of one HTTP request under a job's key (PROTOCOLS 3.3).
//
// Purpose: who signs and who checks use the same text. Plain functions, any thread. Invariants: the signed text is
//   method \n target \n session \n first_seq \n hex(sha256(body))
// with the target as it stands in the request line; none of the parts may contain a line break (an HTTP head has none).
// Comparing takes the same time wherever the first difference is. Failure behaviour: none.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "common/error.h"
#include "common/secret_file.h"

namespace gradtap {

struct SignedRequest {
  std::string_view method;
  std::string_view target;       // path?query
  std::string_view session;      // X-Gradtap-Session; may be empty
  std::string_view first_seq;    // X-Gradtap-Seq: of the first message of the body; may be empty
  std::string_view body_sha256;  // hex, lower case; of the empty body too
};

// 64 hexadecimal digits.
[[nodiscard]] std::string request_signature(const JobSecret& secret, const SignedRequest& request);
// The value of the Authorization header: "GT1 id:signature".
[[nodiscard]] std::string request_authorization(const JobSecret& secret, const SignedRequest& request);

// What an Authorization header presents.
struct PresentedKey {
  std::string id;
  std::string signature;  // 64 lower-case hexadecimal digits
};
[[nodiscard]] Result<PresentedKey> parse_authorization(std::string_view header);

// Takes as long for equal texts as for different ones of the same length.
[[nodiscard]] bool same_secret_text(std::string_view one, std::string_view other);

}  // namespace gradtap
