#include "actors/access_guard.h"

#include <filesystem>
#include <fstream>

#include <doctest/doctest.h>
#include <fmt/format.h>
#include <unistd.h>

#include "common/request_signature.h"
#include "common/sha256.h"

namespace gradtap::actors {
namespace {

const std::string kRead(40, 'r');
const std::string kAdmin(40, 'a');

JobSecret key(std::string id, std::uint8_t first) {
  JobSecret secret{std::move(id), {}};
  secret.key.fill(first);
  return secret;
}

AccessRules closed_rules() {
  return {"demo", {key("new", 1), key("old", 2)}, kRead, kAdmin, true};
}

// A request and what it is made of; sign() signs what is there.
struct Asked {
  std::string method = "GET";
  std::string target = "/v1/status";
  std::string session{};
  std::string first_seq{};
  std::string body{};
  std::string digest{};
  std::string authorization{};
  std::string peer = "10.0.0.9";
  bool proxied = false;

  Asked& sign(const JobSecret& secret) {
    digest = to_hex(sha256(std::string_view(body)));
    authorization = request_authorization(secret, {method, target, session, first_seq, digest});
    return *this;
  }
  [[nodiscard]] RequestHead head() const {
    const std::string_view path = std::string_view(target).substr(0, target.find('?'));
    return {method, path, target, session, first_seq, digest, authorization, peer, proxied};
  }
};

// The code of the refusal; 0: admitted.
unsigned verdict(AccessGuard& guard, const Asked& asked) {
  const auto got = guard.admit(asked.head());
  return got ? 0 : static_cast<unsigned>(got.error().code);
}

constexpr unsigned kNo = 540;     // UNAUTHORIZED
constexpr unsigned kWrong = 541;  // FORBIDDEN

}  // namespace

TEST_CASE("who may do what at each path of a job with a secret") {
  // Columns: nothing from afar, nothing from loopback, read token, admin token, the job's key.
  const struct {
    const char *method, *path;
    unsigned nothing, loopback, read, admin, signed_by_job;
  } rows[] = {
      {"POST", "/v1/jobs/demo/attach", kNo, kNo, kWrong, kWrong, 0},
      {"GET", "/v1/jobs/demo/attach/abc", kNo, kNo, kWrong, kWrong, 0},
      {"POST", "/v1/jobs/demo/messages", kNo, kNo, kWrong, kWrong, 0},
      {"PUT", "/v1/jobs/demo/chunks/baseline/0", kNo, kNo, kWrong, kWrong, 0},
      {"PUT", "/v1/jobs/demo/blobs/00", kNo, kNo, kWrong, kWrong, 0},
      {"POST", "/v1/jobs/demo/detach", kNo, kNo, kWrong, kWrong, 0},
      {"GET", "/v1/jobs/demo/state?step=1", kNo, kNo, kWrong, 0, 0},
      {"GET", "/v1/jobs/demo/points/1/2/state", kNo, kNo, kWrong, 0, 0},
      {"GET", "/v1/jobs/demo/points/1/2/side?rank=0", kNo, kNo, kWrong, 0, 0},
      {"POST", "/v1/jobs/demo/points/1/2/lease", kNo, kNo, kWrong, 0, 0},
      {"DELETE", "/v1/jobs/demo/points/1/2/lease/x", kNo, kNo, kWrong, 0, 0},
      {"GET", "/v1/jobs/demo/points", kNo, 0, 0, 0, 0},
      {"GET", "/v1/jobs/demo/points/1/2", kNo, 0, 0, 0, 0},
      {"GET", "/v1/jobs/demo/points/1/2/verify", kNo, 0, 0, 0, 0},
      {"GET", "/v1/jobs/demo/status", kNo, 0, 0, 0, 0},
      {"GET", "/v1/jobs/demo/shards", kNo, 0, 0, 0, 0},
      {"GET", "/v1/jobs/demo/digests?from=1", kNo, 0, 0, 0, 0},
      {"GET", "/v1/jobs/demo/lineages", kNo, 0, 0, 0, 0},
      {"GET", "/v1/status", kNo, 0, 0, 0, kWrong},
      {"GET", "/v1/events?from=0", kNo, 0, 0, 0, kWrong},
      {"GET", "/v1/nodes", kNo, 0, 0, 0, kWrong},
      {"POST", "/v1/nodes", kNo, 0, kWrong, 0, kNo},
      {"DELETE", "/v1/nodes", kNo, 0, kWrong, 0, kNo},
      {"POST", "/v1/jobs/demo/points", kNo, 0, kWrong, 0, kNo},
      {"GET", "/v1/jobs/other/status", kNo, 0, 0, 0, kWrong},
      {"POST", "/v1/jobs/other/attach", kNo, kNo, kWrong, kWrong, kWrong},
      {"GET", "/v1/jobs/other/state", kNo, kNo, kWrong, 0, kWrong},
      {"GET", "//v1//jobs/demo///state", kNo, kNo, kWrong, 0, 0},
      {"GET", "/v1/later", kNo, 0, 0, 0, kWrong},
  };
  AccessGuard guard(closed_rules());
  for (const auto& row : rows) {
    CAPTURE(row.method);
    CAPTURE(row.path);
    Asked asked{row.method, row.path};
    CHECK(verdict(guard, asked) == row.nothing);
    asked.peer = "127.0.0.1";
    CHECK(verdict(guard, asked) == row.loopback);
    asked.peer = "10.0.0.9";
    asked.authorization = "Bearer " + kRead;
    CHECK(verdict(guard, asked) == row.read);
    asked.authorization = "Bearer " + kAdmin;
    CHECK(verdict(guard, asked) == row.admin);
    for (const JobSecret& secret : {key("new", 1), key("old", 2)})
      CHECK(verdict(guard, asked.sign(secret)) == row.signed_by_job);
  }
  for (const char* const path : {"/metrics", "/healthz", "/readyz", "/v1/status", "/v1/epoch"})
    CHECK(guard.need("GET", path) == AccessNeed::kRead);
  // Nothing is there, and nothing is said.
  for (const char* const path : {"/", "/index.html", "/v1", "/v2/status", "/v1/jobs", "/v1/jobs/demo", "/v1/a/b"}) {
    CHECK(guard.need("GET", path) == AccessNeed::kNothing);
    for (const char* const method : {"GET", "POST", "DELETE"})
      for (const std::string& shown : {std::string(), std::string("Bearer x"), "GT1 new:" + std::string(64, '0')})
        CHECK(verdict(guard, {method, path, "", "", "", "", shown}) == 0);
  }
}

TEST_CASE("wrong forms of a signature, each by its name and counter") {
  AccessGuard guard(closed_rules());
  const Asked good = Asked{"POST", "/v1/jobs/demo/messages?a=1", "abc", "7", "body"}.sign(key("new", 1));
  CHECK(verdict(guard, good) == 0);
  CHECK(guard.counters().signed_requests == 1);
  const auto changed = [&](auto change) {
    Asked asked = good;
    change(asked);
    return verdict(guard, asked);
  };
  CHECK(changed([](Asked& a) { a.method = "PUT"; }) == kWrong);
  CHECK(changed([](Asked& a) { a.target = "/v1/jobs/demo/messages?a=2"; }) == kWrong);
  CHECK(changed([](Asked& a) { a.target = "/v1/jobs/demo/detach"; }) == kWrong);
  CHECK(changed([](Asked& a) { a.session = "abd"; }) == kWrong);
  CHECK(changed([](Asked& a) { a.first_seq = "8"; }) == kWrong);
  CHECK(changed([](Asked& a) { a.digest.front() = a.digest.front() == '0' ? '1' : '0'; }) == kWrong);
  CHECK(changed([](Asked& a) { a.digest.clear(); }) == kWrong);
  CHECK(changed([](Asked& a) { a.authorization.back() = a.authorization.back() == '0' ? '1' : '0'; }) == kWrong);
  CHECK(changed([](Asked& a) { a.sign(key("new", 2)); }) == kWrong);  // the right id, another key
  CHECK(guard.counters().refused_signature == 9);
  CHECK(changed([](Asked& a) { a.sign(key("stranger", 1)); }) == kWrong);
  CHECK(guard.counters().refused_key == 1);
  for (const std::string& header : {std::string("GT1"), std::string("GT1 new"), "GT1 new:" + std::string(63, '0'),
                                    "GT1 new:" + std::string(64, 'G'), std::string("Basic abc"), std::string("Bearer"),
                                    std::string("x"), "GT1 :" + std::string(64, '0'), std::string(5000, 'G')})
    CHECK(changed([&](Asked& a) { a.authorization = header; }) == kNo);
  CHECK(changed([](Asked& a) { a.first_seq = "x"; }) == kNo);
  CHECK(changed([](Asked& a) { a.first_seq = std::string(21, '1'); }) == kNo);
  CHECK(changed([](Asked& a) { a.digest = "00"; }) == kNo);
  CHECK(changed([](Asked& a) { a.digest = std::string(64, 'A'); }) == kNo);
  CHECK(guard.counters().refused_malformed == 13);
  for (const std::string& token : {std::string("Bearer "), "Bearer " + std::string(40, 'x'), "Bearer " + kRead + "r",
                                   "Bearer " + kAdmin.substr(1)})
    CHECK(verdict(guard, {"GET", "/v1/status", "", "", "", "", token}) == kWrong);
  CHECK(guard.counters().refused_token == 4);
  CHECK(changed([](Asked& a) { a.authorization.clear(); }) == kNo);
  CHECK(guard.counters().refused_nothing == 1);
  CHECK(guard.counters().signed_requests == 1);
}

TEST_CASE("the body that comes must be the one that was signed") {
  AccessGuard guard(closed_rules());
  const auto admitted =
      guard.admit(Asked{"PUT", "/v1/jobs/demo/chunks/a/0", "s", "", "body"}.sign(key("old", 2)).head());
  REQUIRE(admitted);
  CHECK(admitted->caller == "10.0.0.9 key old");
  CHECK(guard.check_body(*admitted, "body"));
  for (const char* const other : {"", "Body", "body ", "bod"}) {
    const Status refused = guard.check_body(*admitted, other);
    REQUIRE(!refused);
    CHECK(refused.error().code == ErrorCode::kForbidden);
  }
  CHECK(guard.counters().refused_body == 4);
  // Without a digest the empty body was signed.
  Asked bare{"POST", "/v1/jobs/demo/points/1/2/lease/x"};
  bare.authorization = request_authorization(
      key("new", 1),
      {bare.method, bare.target, "", "", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"});
  const auto empty = guard.admit(bare.head());
  REQUIRE(empty);
  CHECK(guard.check_body(*empty, ""));
  CHECK_FALSE(guard.check_body(*empty, "x"));
}

TEST_CASE("loopback is this host only, and nobody behind a proxy is") {
  AccessRules rules = closed_rules();
  AccessGuard guard(rules);
  for (const char* const peer : {"127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1"})
    CHECK(verdict(guard, {"GET", "/v1/status", "", "", "", "", "", peer}) == 0);
  for (const char* const peer : {"", "10.0.0.1", "1127.0.0.1", "::ffff:10.0.0.1", "::2", "fe80::1"})
    CHECK(verdict(guard, {"GET", "/v1/status", "", "", "", "", "", peer}) == kNo);
  Asked proxied{"GET", "/v1/status", "", "", "", "", "", "127.0.0.1"};
  proxied.proxied = true;
  CHECK(verdict(guard, proxied) == kNo);
  proxied.method = "POST";
  proxied.target = "/v1/nodes";
  CHECK(verdict(guard, proxied) == kNo);
  rules.trust_loopback = false;
  AccessGuard strict(rules);
  CHECK(verdict(strict, {"GET", "/v1/status", "", "", "", "", "", "127.0.0.1"}) == kNo);
  // A wrong token is not forgiven on loopback.
  CHECK(verdict(guard, {"GET", "/v1/status", "", "", "", "", "Bearer nonsense", "127.0.0.1"}) == kWrong);
}

TEST_CASE("a node without tokens is open to nobody's token") {
  AccessGuard guard({"demo", {key("new", 1)}, "", "", true});
  for (const char* const token : {"Bearer ", "Bearer x", "Bearer e3b0c44298fc1c149afbf4c8996fb924"})
    CHECK(verdict(guard, {"GET", "/v1/status", "", "", "", "", token}) == kWrong);
}

TEST_CASE("an open job: its own requests pass, questions and commands about the node do not") {
  AccessGuard guard({"demo", {}, "", kAdmin, true});
  CHECK(guard.open());
  for (const char* const path : {"/v1/jobs/demo/attach", "/v1/jobs/demo/messages"})
    CHECK(verdict(guard, {"POST", path}) == 0);
  for (const char* const path : {"/v1/jobs/demo/state", "/v1/jobs/demo/points", "/v1/jobs/other/points"})
    CHECK(verdict(guard, {"GET", path}) == 0);
  CHECK(verdict(guard, Asked{"POST", "/v1/jobs/demo/messages", "s", "1", "x"}.sign(key("any", 9))) == 0);
  CHECK(verdict(guard, {"GET", "/v1/status"}) == kNo);
  CHECK(verdict(guard, {"POST", "/v1/nodes"}) == kNo);
  CHECK(verdict(guard, {"POST", "/v1/nodes", "", "", "", "", "Bearer " + kAdmin}) == 0);
  CHECK(verdict(guard, {"POST", "/v1/jobs/demo/points"}) == kNo);  // a command, of the job too
}

TEST_CASE("the rules of a configuration: other hosts reach a job with a secret, or one that is open on purpose") {
  const std::filesystem::path folder =
      std::filesystem::temp_directory_path() / fmt::format("gradtap-rules-{}", ::getpid());
  std::filesystem::create_directories(folder);
  const std::string secret = folder / "secret", read = folder / "read", admin = folder / "admin";
  REQUIRE(create_secret_file(secret, "one"));
  REQUIRE(create_token_file(read));
  REQUIRE(create_token_file(admin));
  NodeConfig config;
  JobSection job;
  job.name = "demo";
  for (const char* const own : {"127.0.0.1:7700", "[::1]:7700", "localhost:1"}) {
    config.node.listen = own;
    const auto rules = access_rules(config, job);
    REQUIRE(rules);
    CHECK(rules->secrets.empty());
  }
  for (const char* const reachable : {"0.0.0.0:7700", "10.0.0.1:7700", "[::]:7700", "tap0:7700"}) {
    config.node.listen = reachable;
    const auto refused = access_rules(config, job);
    REQUIRE(!refused);
    CHECK(refused.error().code == ErrorCode::kConfigMissingKey);
    CHECK(refused.error().remedy.find("gradtap secret new") != std::string::npos);
  }
  job.security = "none";
  CHECK(access_rules(config, job));
  job.secret_file = secret;
  CHECK_FALSE(access_rules(config, job));  // open, and with a secret
  job.security = "secret";
  config.security.read_token_file = read;
  config.security.admin_token_file = admin;
  const auto rules = access_rules(config, job);
  REQUIRE(rules);
  CHECK(rules->secrets.front().id == "one");
  CHECK(rules->read_token.size() == 64);
  CHECK(rules->admin_token != rules->read_token);
  config.security.admin_token_file = read;
  CHECK_FALSE(access_rules(config, job));  // whoever reads would command
  config.security.admin_token_file = folder / "absent";
  CHECK_FALSE(access_rules(config, job));
  config.security.admin_token_file = admin;
  std::filesystem::permissions(secret, std::filesystem::perms::others_read, std::filesystem::perm_options::add);
  CHECK_FALSE(access_rules(config, job));
  std::filesystem::remove_all(folder);
}

}  // namespace gradtap::actors
