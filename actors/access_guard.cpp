#include "actors/access_guard.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "actors/request_path.h"
#include "common/request_signature.h"
#include "common/sha256.h"

namespace gradtap::actors {

namespace {

constexpr std::string_view kBearer = "Bearer ";
constexpr std::string_view kNoBody = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
constexpr std::size_t kNumberDigitsMax = 20;

bool is_loopback(std::string_view peer) {
  if (peer.starts_with("::ffff:")) peer.remove_prefix(7);
  return peer == "::1" || peer.starts_with("127.");
}

bool is_digest(std::string_view text) {
  return text.size() == kNoBody.size() &&
         std::all_of(text.begin(), text.end(), [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
}

bool is_decimal(std::string_view text) {
  return text.size() <= kNumberDigitsMax &&
         std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

}  // namespace

Result<AccessRules> access_rules(const NodeConfig& config, const JobSection& job) {
  AccessRules rules;
  rules.job = job.name;
  rules.trust_loopback = config.security.trust_loopback;
  if (!job.secret_file.empty()) {
    auto secrets = load_secrets(job.secret_file);
    if (!secrets) return std::unexpected(secrets.error());
    rules.secrets = std::move(*secrets);
  }
  for (const auto& [file, token] : {std::pair{&config.security.read_token_file, &rules.read_token},
                                    std::pair{&config.security.admin_token_file, &rules.admin_token}}) {
    if (file->empty()) continue;
    auto loaded = load_token(*file);
    if (!loaded) return std::unexpected(loaded.error());
    *token = std::move(*loaded);
  }
  if (!rules.read_token.empty() && rules.read_token == rules.admin_token)
    return fail(ErrorCode::kConfigImpossibleValue, "the read token is the admin token", "security.read_token_file",
                "a token of its own", "the same", "make another one with gradtap secret token");
  if (job.security == "none" && !rules.secrets.empty())
    return fail(ErrorCode::kConfigImpossibleValue, "a job with a secret is not open", "job.security", "secret", "none",
                "remove secret_file or security");
  const auto listen = parse_host_port(config.node.listen);
  if (!listen) return std::unexpected(listen.error());
  const bool reachable = !is_loopback(listen->host) && listen->host != "localhost";
  if (rules.secrets.empty() && job.security != "none" && reachable)
    return fail(
        ErrorCode::kConfigMissingKey, "other hosts can reach a job that has no secret", "job.secret_file",
        "the file that the trainer has too", "nothing",
        "make one with gradtap secret new; or listen on 127.0.0.1; or set security = \"none\" for this job, and "
        "whoever reaches the port can read and change everything of it");
  return rules;
}

AccessNeed AccessGuard::need(std::string_view method, std::string_view path) const {
  const auto parts = split_path(path);
  const bool get = method == "GET";
  // Probes name the node and what is wrong with it: figures like any other.
  if (parts.size() == 1 && (parts[0] == "metrics" || parts[0] == "healthz" || parts[0] == "readyz"))
    return AccessNeed::kRead;
  if (parts.size() < 2 || parts[0] != "v1") return AccessNeed::kNothing;
  if (parts[1] != "jobs") {
    if (parts.size() != 2) return AccessNeed::kNothing;
    if (parts[1] == "nodes" && !get) return AccessNeed::kCommand;
    return AccessNeed::kRead;  // what is not there too: the answer is nobody's secret, but only readers get one
  }
  if (parts.size() < 4) return AccessNeed::kNothing;
  if (of_side_channel(parts[3])) return AccessNeed::kJob;
  if (parts[3] == "state") return AccessNeed::kState;
  if (parts[3] == "points" && parts.size() > 6 && parts[6] != "verify") return AccessNeed::kState;
  return get ? AccessNeed::kRead : AccessNeed::kCommand;
}

bool AccessGuard::is_of_job(std::string_view path) const {
  const auto parts = split_path(path);
  return parts.size() >= 4 && parts[1] == "jobs" && parts[2] == rules_.job;
}

bool AccessGuard::is_local(const RequestHead& head) const {
  return rules_.trust_loopback && !head.proxied && is_loopback(head.peer);
}

AccessGuard::Token AccessGuard::token_of(std::string_view authorization) const {
  authorization.remove_prefix(kBearer.size());
  // Digests: the comparison does not tell how long a token is.
  const std::string presented = to_hex(sha256(authorization));
  if (!rules_.admin_token.empty() && same_secret_text(presented, to_hex(sha256(std::string_view(rules_.admin_token)))))
    return Token::kAdmin;
  if (!rules_.read_token.empty() && same_secret_text(presented, to_hex(sha256(std::string_view(rules_.read_token)))))
    return Token::kRead;
  return Token::kNone;
}

std::unexpected<Error> AccessGuard::refuse(std::atomic<std::uint64_t>& counter, ErrorCode code, std::string what,
                                           const RequestHead& head, std::string remedy) {
  counter.fetch_add(1, std::memory_order_relaxed);
  return fail(code, std::move(what), fmt::format("{} {}", head.method, head.path.substr(0, 200)), {}, {},
              std::move(remedy));
}

Result<Admission> AccessGuard::by_key(const RequestHead& head) {
  const auto presented = parse_authorization(head.authorization);
  if (!presented || !is_decimal(head.first_seq) || (!head.body_sha256.empty() && !is_digest(head.body_sha256)))
    return refuse(malformed_, ErrorCode::kUnauthorized, "the signature has a wrong form", head,
                  "see docs/side-channel.md, Signatures");
  const auto secret = std::find_if(rules_.secrets.begin(), rules_.secrets.end(),
                                   [&](const JobSecret& known) { return known.id == presented->id; });
  if (secret == rules_.secrets.end())
    return refuse(key_, ErrorCode::kForbidden, "this node knows no such key for the job", head,
                  "use the secret file of this job, the same on every node");
  const std::string body(head.body_sha256.empty() ? kNoBody : head.body_sha256);
  const std::string expected =
      request_signature(*secret, {head.method, head.target, head.session, head.first_seq, body});
  if (!same_secret_text(expected, presented->signature))
    return refuse(signature_, ErrorCode::kForbidden, "the signature is not one by this key", head,
                  "the trainer and the node must have the same secret file; a proxy must not rewrite the path");
  if (!is_of_job(head.path))
    return refuse(key_, ErrorCode::kForbidden, "a job's key opens that job only", head,
                  "use the read or the admin token");
  signed_.fetch_add(1, std::memory_order_relaxed);
  return Admission{fmt::format("{} key {}", head.peer, secret->id), body};
}

Result<Admission> AccessGuard::admit(const RequestHead& head) {
  const AccessNeed needed = need(head.method, head.path);
  const bool open_job = open() && head.path.starts_with("/v1/jobs/");
  const bool local = is_local(head);
  const auto as = [&](std::string_view who) { return Admission{fmt::format("{} {}", head.peer, who), {}}; };
  // Of an open job a trainer may send signatures all the same: there is nothing to compare them with.
  if (needed == AccessNeed::kNothing || (open_job && needed != AccessNeed::kCommand)) return as("open");
  if (head.authorization.starts_with("GT1 ") && needed != AccessNeed::kCommand) return by_key(head);
  if (head.authorization.starts_with(kBearer)) {
    const Token token = token_of(head.authorization);
    if (token == Token::kAdmin && needed != AccessNeed::kJob) return as("admin token");
    if (token == Token::kRead && needed == AccessNeed::kRead) return as("read token");
    return refuse(token_, ErrorCode::kForbidden,
                  token == Token::kNone ? "the token is not one of this node" : "the token does not open this", head,
                  needed == AccessNeed::kJob ? "requests of a job are signed with its secret"
                                             : "see docs/security.md, Over HTTP");
  }
  if (!head.authorization.empty())
    return refuse(malformed_, ErrorCode::kUnauthorized, "the Authorization header has a wrong form", head,
                  "GT1 key_id:signature, or Bearer token");
  if (local && (needed == AccessNeed::kRead || needed == AccessNeed::kCommand)) return as("loopback");
  switch (needed) {
    case AccessNeed::kJob:
      return refuse(nothing_, ErrorCode::kUnauthorized, "the job's requests must be signed", head,
                    "give the trainer the job's secret file: attach(secret=...) or GRADTAP_SECRET_FILE");
    case AccessNeed::kState:
      return refuse(nothing_, ErrorCode::kUnauthorized, "the state of the job is closed", head,
                    "use the job's secret file or the admin token (gradtap --secret-file, --token-file)");
    case AccessNeed::kCommand:
      return refuse(
          nothing_, ErrorCode::kUnauthorized, "commands from another host need the admin token", head,
          "gradtap --token-file FILE, with security.admin_token_file on the node; or run it on the node, at 127.0.0.1");
    default:
      break;
  }
  return refuse(nothing_, ErrorCode::kUnauthorized, "questions from another host need a token", head,
                "gradtap --token-file FILE, with security.read_token_file on the node; or ask on the node itself, at "
                "127.0.0.1");
}

Status AccessGuard::check_body(const Admission& admission, std::string_view body) {
  if (!admission.body_sha256 || to_hex(sha256(body)) == *admission.body_sha256) return {};
  body_.fetch_add(1, std::memory_order_relaxed);
  return fail(ErrorCode::kForbidden, "the body is not the one that was signed", {}, *admission.body_sha256, {},
              "send it again");
}

AccessGuard::Counters AccessGuard::counters() const {
  const auto of = [](const std::atomic<std::uint64_t>& counter) { return counter.load(std::memory_order_relaxed); };
  return {of(signed_), of(nothing_), of(malformed_), of(key_), of(signature_), of(token_), of(body_)};
}

}  // namespace gradtap::actors
