// AccessGuard: who may do what over HTTP (docs/security.md).
//
// Purpose: from the head of a request, before a byte of its body is read, to "yes, as whom" or a named refusal. What
// it asks for depends on the path: a job's own requests need a signature by one of its keys, its state that or the
// admin token, answers about the node a token or this host's loopback, commands the admin token or loopback.
// Ownership: its keys and tokens. Threads: any; counters are atomic. Invariants: what needs nothing (the page's files,
// paths that are not there) says nothing of node or job; what a key of one job opens, that of another does not; every
// comparison of secrets takes the same time. Failure behaviour: UNAUTHORIZED (nothing, or nothing of the right
// form, was presented) or FORBIDDEN, with a remedy and no byte of a secret; each is counted.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/config.h"
#include "common/error.h"
#include "common/secret_file.h"

namespace gradtap::actors {

// What is asked of a request.
enum class AccessNeed : std::uint8_t {
  kJob,      // messages of the trainer: the job's key
  kState,    // bytes of the state, leases: the job's key, or the admin token
  kRead,     // answers about the node: a token, the job's key for its own, or loopback
  kCommand,  // changes: the admin token, or loopback
  kNothing,  // open: files of the page, and paths where nothing is
};

// A request without its body. The texts live as long as the request.
struct RequestHead {
  std::string_view method;
  std::string_view path;         // decoded
  std::string_view target;       // as in the request line
  std::string_view session;      // X-Gradtap-Session
  std::string_view first_seq;    // X-Gradtap-Seq
  std::string_view body_sha256;  // X-Gradtap-Content-SHA256; absent: of the empty body
  std::string_view authorization;
  std::string_view peer;  // its IP address
  bool proxied = false;   // a proxy says that it asks for somebody else
};

struct Admission {
  std::string caller;                      // for the access log: address, and key or token
  std::optional<std::string> body_sha256;  // hex: the body must have this digest; absent: any
};

struct AccessRules {
  std::string job;
  std::vector<JobSecret> secrets;  // empty: the job is open
  std::string read_token;          // empty: there is none
  std::string admin_token;
  bool trust_loopback = true;
};

// Reads the files that the configuration names.
[[nodiscard]] Result<AccessRules> access_rules(const NodeConfig& config, const JobSection& job);

class AccessGuard {
 public:
  struct Counters {
    std::uint64_t signed_requests = 0;    // admitted by a key
    std::uint64_t refused_nothing = 0;    // neither key nor token
    std::uint64_t refused_malformed = 0;  // a header of a wrong form
    std::uint64_t refused_key = 0;        // no key of this id
    std::uint64_t refused_signature = 0;
    std::uint64_t refused_token = 0;
    std::uint64_t refused_body = 0;  // another body than the one that was signed
  };

  explicit AccessGuard(AccessRules rules) : rules_(std::move(rules)) {}

  [[nodiscard]] Result<Admission> admit(const RequestHead& head);
  // The body that came is the one that was signed.
  [[nodiscard]] Status check_body(const Admission& admission, std::string_view body);

  [[nodiscard]] AccessNeed need(std::string_view method, std::string_view path) const;
  [[nodiscard]] Counters counters() const;
  [[nodiscard]] bool open() const { return rules_.secrets.empty(); }

 private:
  enum class Token : std::uint8_t { kNone, kRead, kAdmin };
  [[nodiscard]] bool is_local(const RequestHead& head) const;
  [[nodiscard]] Token token_of(std::string_view authorization) const;
  [[nodiscard]] bool is_of_job(std::string_view path) const;
  [[nodiscard]] Result<Admission> by_key(const RequestHead& head);
  std::unexpected<Error> refuse(std::atomic<std::uint64_t>& counter, ErrorCode code, std::string what,
                                const RequestHead& head, std::string remedy);

  const AccessRules rules_;
  std::atomic<std::uint64_t> signed_{0};
  std::atomic<std::uint64_t> nothing_{0};
  std::atomic<std::uint64_t> malformed_{0};
  std::atomic<std::uint64_t> key_{0};
  std::atomic<std::uint64_t> signature_{0};
  std::atomic<std::uint64_t> token_{0};
  std::atomic<std::uint64_t> body_{0};
};

}  // namespace gradtap::actors
