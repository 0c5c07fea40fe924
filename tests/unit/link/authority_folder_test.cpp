// The operator's folder: every command twice, every phase of a change of authority judged by the openssl program.
#include "link/authority_folder.h"

#include <sys/stat.h>

#include "tests/unit/link/certificate_fixture.h"

using namespace gradtap;
using namespace gradtap::link;
using namespace gradtap::link::testing;

namespace {

const std::vector<AuthorityMember> kTwo = {{"tap0", {"10.0.0.1"}}, {"tap1", {"10.0.0.2", "fd00::2"}}};

mode_t mode(const std::string& path) {
  struct stat about{};
  REQUIRE(::stat(path.c_str(), &about) == 0);
  return about.st_mode & 07777;
}

std::string bytes(const std::string& path) {
  return read_small_file(path).value();
}

bool verifies(const std::string& authorities, const std::string& certificate) {
  return openssl("verify -x509_strict -CAfile " + authorities + " " + certificate).code == 0;
}

struct Kept {
  Folder folder;
  std::string path = folder / "ca";
  AuthorityFolder ca{path, now_s()};
  [[nodiscard]] std::string node(const std::string& name, const std::string& file) const {
    return path + "/nodes/" + name + "/" + file;
  }
};

}  // namespace

TEST_CASE("init and issue make what a node needs; secrets are closed") {
  Kept k;
  CHECK(k.ca.issue(kTwo, 10, false).error().code == ErrorCode::kCertificate);  // no authority yet
  REQUIRE(k.ca.init(100, false)->what == "made");
  const auto done = k.ca.issue(kTwo, 10, false);
  if (!done) FAIL(done.error().text());
  REQUIRE(done->size() == 2);
  CHECK((*done)[1].facts.addresses == std::vector<std::string>{"10.0.0.2", "fd00::2"});
  CHECK(mode(k.path) == 0700);
  CHECK(mode(k.path + "/ca.pem") == 0600);
  CHECK(mode(k.path + "/ca.crt") == 0644);
  for (const char* const name : {"tap0", "tap1"}) {
    CHECK(mode(k.node(name, "node.key")) == 0600);
    CHECK(mode(k.node(name, "node.crt")) == 0644);
    CHECK(verifies(k.node(name, "ca.crt"), k.node(name, "node.crt")));
    CHECK(Identity::load(files_in(k.path + "/nodes/" + name), name, now_s()));
  }
  CHECK(k.ca.nodes().value() == std::vector<std::string>{"tap0", "tap1"});
}

TEST_CASE("a repeated command keeps what is right, and refuses to overwrite what is not") {
  Kept k;
  REQUIRE(k.ca.init(100, false));
  REQUIRE(k.ca.issue(kTwo, 10, false));
  const std::string authority = bytes(k.path + "/ca.pem");
  const std::string certificate = bytes(k.node("tap0", "node.crt"));
  CHECK(k.ca.init(100, false)->what == "kept");
  CHECK(k.ca.issue(kTwo, 10, false)->front().what == "kept");
  CHECK(bytes(k.path + "/ca.pem") == authority);
  CHECK(bytes(k.node("tap0", "node.crt")) == certificate);
  // Another address, another authority, an end: each refused by name, each with a remedy.
  const auto moved = k.ca.issue({{"tap0", {"10.0.0.9"}}}, 10, false);
  CHECK(moved.error().what == "there is a certificate with other addresses");
  CHECK(moved.error().remedy.find("--force") != std::string::npos);
  CHECK(AuthorityFolder(k.path, now_s() + 11 * kDayS).issue(kTwo, 10, false).error().remedy.find("rotate") !=
        std::string::npos);
  CHECK(AuthorityFolder(k.path, now_s() + 101 * kDayS).issue(kTwo, 10, false).error().what.find("has expired") !=
        std::string::npos);
  REQUIRE(k.ca.init(100, true)->what == "made");
  CHECK(k.ca.issue(kTwo, 10, false).error().what == "there is a certificate of another authority");
  CHECK(bytes(k.node("tap0", "node.crt")) == certificate);
  REQUIRE(k.ca.issue(kTwo, 10, true));
  CHECK(bytes(k.node("tap0", "node.crt")) != certificate);
  CHECK(verifies(k.node("tap0", "ca.crt"), k.node("tap0", "node.crt")));
}

TEST_CASE("rotate makes other keys with the same names and addresses") {
  Kept k;
  REQUIRE(k.ca.init(100, false));
  REQUIRE(k.ca.issue(kTwo, 10, false));
  const std::string key = bytes(k.node("tap1", "node.key"));
  const std::string other = bytes(k.node("tap0", "node.key"));
  const auto done = k.ca.rotate({"tap1"}, 20);
  REQUIRE(done);
  CHECK(done->front().facts.addresses == kTwo[1].addresses);
  CHECK(bytes(k.node("tap1", "node.key")) != key);
  CHECK(bytes(k.node("tap0", "node.key")) == other);
  CHECK(verifies(k.path + "/ca.crt", k.node("tap1", "node.crt")));
  CHECK(k.ca.rotate({}, 20)->size() == 2);
  CHECK(bytes(k.node("tap0", "node.key")) != other);
  CHECK(k.ca.rotate({"tap7"}, 20).error().remedy.find("issue") != std::string::npos);
}

TEST_CASE("a change of authority: at every moment each node accepts every other, whichever phase each is in") {
  Kept k;
  REQUIRE(k.ca.init(100, false));
  REQUIRE(k.ca.issue(kTwo, 10, false));
  const auto keep = [&](const std::string& as) {
    for (const char* const file : {"ca.crt", "node.crt"})
      REQUIRE(write_small_file(k.folder / (as + "." + file), bytes(k.node("tap0", file)), 0644));
  };
  const auto accepts = [&](const std::string& one, const std::string& other) {
    return verifies(k.folder / (one + ".ca.crt"), k.folder / (other + ".node.crt"));
  };
  keep("0");
  CHECK(k.ca.take_over(10).error().what == "no other authority is trusted yet");
  REQUIRE(k.ca.trust_next(100));
  keep("1");
  CHECK(k.ca.trust_next(100));  // again: the same
  CHECK(bytes(k.node("tap0", "ca.crt")) == bytes(k.folder / "1.ca.crt"));
  CHECK(k.ca.retire().error().what == "the next authority does not sign yet");
  REQUIRE(k.ca.take_over(10));
  keep("2");
  CHECK(k.ca.trust_next(100).error().what == "the last change of authority is not over");
  REQUIRE(k.ca.take_over(10));  // again: other certificates of the same authority
  REQUIRE(k.ca.retire());
  keep("3");
  CHECK(k.ca.retire());
  // Neighbouring phases, in both directions: nodes are not changed in the same moment.
  for (const auto& [one, other] : {std::pair{"0", "1"}, {"1", "0"}, {"1", "2"}, {"2", "1"}, {"2", "3"}, {"3", "2"}}) {
    CAPTURE(one);
    CAPTURE(other);
    CHECK(accepts(one, other));
  }
  CHECK_FALSE(accepts("0", "2"));  // a phase was skipped
  CHECK_FALSE(accepts("3", "0"));  // what the old authority signed is over
  CHECK(Identity::load(files_in(k.path + "/nodes/tap0"), "tap0", now_s()));
}

TEST_CASE("retire waits for the last node") {
  Kept k;
  REQUIRE(k.ca.init(100, false));
  REQUIRE(k.ca.issue(kTwo, 10, false));
  const std::string old = bytes(k.node("tap1", "node.crt"));
  REQUIRE(k.ca.trust_next(100));
  REQUIRE(k.ca.take_over(10));
  REQUIRE(write_small_file(k.node("tap1", "node.crt"), old, 0644));
  CHECK(k.ca.retire().error().what == "a node still has a certificate of the old authority");
}
