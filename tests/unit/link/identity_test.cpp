#include "link/identity.h"

#include <functional>

#include <sys/stat.h>
#include <unistd.h>

#include "tests/unit/link/certificate_fixture.h"

using namespace gradtap;
using namespace gradtap::link;
using namespace gradtap::link::testing;

namespace {

struct Own {
  Folder folder;
  CertifiedKey authority = make_authority("gradtap cluster a", valid_now()).value();
  CertifiedKey other = make_authority("gradtap cluster b", valid_now()).value();
  CertifiedKey node = issue_certificate(authority, "tap0", {"127.0.0.1"}, valid_now()).value();
  IdentityFiles files = write_identity(folder.path(), authority.certificate, node);

  Error refusal() const {
    const auto loaded = Identity::load(files, "tap0", now_s());
    REQUIRE_FALSE(loaded);
    CHECK(loaded.error().code == ErrorCode::kCertificate);
    CHECK_FALSE(loaded.error().remedy.empty());
    return loaded.error();
  }
  void put(const std::string& file, const std::string& bytes) const { REQUIRE(write_small_file(file, bytes, 0600)); }
};

}  // namespace

TEST_CASE("a node's certificate is judged before it is used, and what is wrong is named") {
  const Own own;
  const auto loaded = Identity::load(own.files, "tap0", now_s());
  if (!loaded) FAIL(loaded.error().text());
  CHECK((*loaded)->not_after_s() == read_certificates(own.node.certificate, "x").value()[0].validity.to_s);

  for (std::string IdentityFiles::* const file :
       {&IdentityFiles::authorities, &IdentityFiles::certificate, &IdentityFiles::key}) {
    Own each;
    REQUIRE(::unlink((each.files.*file).c_str()) == 0);
    CHECK(each.refusal().where == each.files.*file);
    each.files.*file = std::string();
    const Error missing = each.refusal();
    CHECK(missing.where.starts_with("security."));
    CHECK(missing.remedy.find("gradtap ca init") != std::string::npos);
    CHECK(missing.remedy.find("security = \"none\"") != std::string::npos);
  }
}

TEST_CASE("every way in which the files do not fit is an error of its own") {
  struct Case {
    const char* what;
    std::function<void(Own&)> spoil;
  };
  const Case cases[] = {
      {"not this node's",
       [](Own& o) {
         const auto made = issue_certificate(o.authority, "tap1", {}, valid_now()).value();
         write_identity(o.folder.path(), o.authority.certificate, made);
       }},
      {"has expired",
       [](Own& o) {
         const auto made = issue_certificate(o.authority, "tap0", {}, {now_s() - 20 * kDayS, now_s() - 10}).value();
         write_identity(o.folder.path(), o.authority.certificate, made);
       }},
      {"not valid yet",
       [](Own& o) {
         const auto made = issue_certificate(o.authority, "tap0", {}, {now_s() + 60, now_s() + kDayS}).value();
         write_identity(o.folder.path(), o.authority.certificate, made);
       }},
      {"does not stand the check", [](Own& o) { o.put(o.files.authorities, o.other.certificate); }},
      {"does not fit", [](Own& o) { o.put(o.files.key, o.other.key); }},
      {"everybody may read", [](Own& o) { REQUIRE(::chmod(o.files.key.c_str(), 0644) == 0); }},
      {"key cannot be read", [](Own& o) { o.put(o.files.key, "garbage"); }},
      {"there is no certificate", [](Own& o) { o.put(o.files.certificate, o.node.key); }},
      {"of no authority", [](Own& o) { o.put(o.files.authorities, o.node.certificate); }},
      {"cannot be read", [](Own& o) { o.put(o.files.certificate, o.node.certificate.substr(0, 200)); }},
  };
  for (const Case& each : cases) {
    CAPTURE(each.what);
    Own own;
    each.spoil(own);
    const Error error = own.refusal();
    CHECK_MESSAGE(error.what.find(each.what) != std::string::npos, error.text());
  }
}

TEST_CASE("an encrypted key is refused, and nobody is asked for a passphrase") {
  const Own own;
  REQUIRE(openssl("pkcs8 -topk8 -passout pass:x -in " + own.files.key + " -out " + own.folder / "locked").code == 0);
  own.put(own.files.key, read_small_file(own.folder / "locked").value());
  CHECK(own.refusal().what == "the key cannot be read");
}

TEST_CASE("new files are found; those that cannot be used change nothing") {
  const Own own;
  IdentityKeeper keeper(own.files, "tap0", Identity::load(own.files, "tap0", now_s()).value());
  const auto first = keeper.current();
  CHECK_FALSE(keeper.refresh(now_s()).value());
  CHECK(keeper.current() == first);
  const auto next = issue_certificate(own.authority, "tap0", {}, valid_now()).value();
  own.put(own.files.key, next.key);  // half of a change
  CHECK(keeper.refresh(now_s()).error().code == ErrorCode::kCertificate);
  CHECK(keeper.current() == first);
  own.put(own.files.certificate, next.certificate);
  CHECK(keeper.refresh(now_s()).value());
  CHECK(keeper.current() != first);
  CHECK(keeper.current()->fingerprint() == read_certificates(next.certificate, "x").value()[0].fingerprint);
  REQUIRE(::unlink(own.files.key.c_str()) == 0);
  CHECK_FALSE(keeper.refresh(now_s()));
  CHECK(keeper.current()->fingerprint() != first->fingerprint());
}
