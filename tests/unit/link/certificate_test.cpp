// What the authority makes is judged by the openssl program.
#include "link/certificate.h"

#include <algorithm>

#include "tests/unit/link/certificate_fixture.h"

using namespace gradtap;
using namespace gradtap::link;
using namespace gradtap::link::testing;

namespace {

struct Made {
  Folder folder;
  CertifiedKey authority = make_authority("gradtap cluster test", valid_now()).value();
  CertifiedKey node = issue_certificate(authority, "tap_0.A-b", {"10.1.2.3", "fd00::7"}, valid_now()).value();
  Made() { write_identity(folder.path(), authority.certificate, node); }
  [[nodiscard]] std::string verify(const std::string& more = "") const {
    return "verify " + more + " -CAfile " + folder / "ca.crt" + " " + folder / "node.crt";
  }
};

}  // namespace

TEST_CASE("openssl accepts what the authority issued, for both roles, and reads the names in it") {
  const Made made;
  for (const char* const purpose : {"sslserver", "sslclient"}) {
    const Said said = openssl(made.verify(std::string("-x509_strict -purpose ") + purpose));
    CHECK_MESSAGE(said.code == 0, said.text);
  }
  const Said text = openssl("x509 -noout -text -in " + made.folder / "node.crt");
  for (const char* const part :
       {"DNS:tap_0.A-b, IP Address:10.1.2.3, IP Address:FD00:0:0:0:0:0:0:7", "CA:FALSE", "Digital Signature",
        "TLS Web Server Authentication, TLS Web Client Authentication", "prime256v1", "ecdsa-with-SHA256"})
    CHECK_MESSAGE(text.text.find(part) != std::string::npos, part, " in ", text.text);
  const Said ca = openssl("x509 -noout -text -in " + made.folder / "ca.crt");
  CHECK(ca.text.find("CA:TRUE, pathlen:0") != std::string::npos);
  CHECK(ca.text.find("Certificate Sign") != std::string::npos);
  // The key fits: both give the same public key.
  CHECK(openssl("pkey -pubout -in " + made.folder / "node.key").text ==
        openssl("x509 -noout -pubkey -in " + made.folder / "node.crt").text);
}

TEST_CASE("openssl refuses it before and after its validity, and under another authority") {
  const Made made;
  const auto at = [&](std::int64_t when) { return openssl(made.verify("-attime " + std::to_string(when))).text; };
  CHECK(at(now_s() + 31 * kDayS).find("certificate has expired") != std::string::npos);
  CHECK(at(now_s() - 2 * 3600).find("certificate is not yet valid") != std::string::npos);
  const auto other = make_authority("gradtap cluster test", valid_now()).value();  // the same name, another key
  REQUIRE(write_small_file(made.folder / "ca.crt", other.certificate, 0644));
  CHECK(openssl(made.verify()).code != 0);
}

TEST_CASE("an authority's certificate cannot be used to make another authority") {
  const Made made;
  const auto below = issue_certificate(made.node, "tap1", {}, valid_now());  // signed by a node
  REQUIRE(below);
  REQUIRE(write_small_file(made.folder / "below.crt", below->certificate, 0644));
  const Said said = openssl("verify -CAfile " + made.folder / "ca.crt" + " -untrusted " + made.folder / "node.crt" +
                            " " + made.folder / "below.crt");
  CHECK(said.code != 0);
}

TEST_CASE("facts are what openssl prints") {
  const Made made;
  const auto facts = read_certificates(made.node.certificate, "node.crt").value();
  REQUIRE(facts.size() == 1);
  CHECK(facts[0].names == std::vector<std::string>{"tap_0.A-b"});
  CHECK(facts[0].addresses == std::vector<std::string>{"10.1.2.3", "fd00::7"});
  CHECK_FALSE(facts[0].authority);
  CHECK(facts[0].subject == "CN=tap_0.A-b");
  CHECK(facts[0].issuer == "CN=gradtap cluster test");
  std::string print = openssl("x509 -noout -fingerprint -sha256 -in " + made.folder / "node.crt").text;
  print = print.substr(print.find('=') + 1);
  std::erase(print, ':');
  std::erase(print, '\n');
  std::transform(print.begin(), print.end(), print.begin(), [](unsigned char c) { return std::tolower(c); });
  CHECK(facts[0].fingerprint == print);
  CHECK(openssl("x509 -noout -checkend " + std::to_string(facts[0].validity.to_s - now_s() - 60) + " -in " +
                made.folder / "node.crt")
            .code == 0);
  CHECK(openssl("x509 -noout -checkend " + std::to_string(facts[0].validity.to_s - now_s() + 60) + " -in " +
                made.folder / "node.crt")
            .code == 1);
  CHECK(read_certificates(made.authority.certificate, "ca.crt").value()[0].authority);
  CHECK(time_text(1796004782) == "2026-11-30 02:13:02 UTC");  // date -u -d @1796004782
}

TEST_CASE("signed_by looks at the signature, not at the names") {
  const Made made;
  const auto twin = make_authority("gradtap cluster test", valid_now()).value();
  CHECK(signed_by(made.node.certificate, made.authority.certificate).value());
  CHECK_FALSE(signed_by(made.node.certificate, twin.certificate).value());
  CHECK_FALSE(signed_by("x", twin.certificate));
}

TEST_CASE("names and addresses that could smuggle something in are refused") {
  const CertifiedKey authority = make_authority("a", valid_now()).value();
  for (const std::string& name : {std::string(), std::string("a,DNS:b"), std::string("a b"), std::string("tap0\0x", 6),
                                  std::string(65, 'n'), std::string("*"), std::string("täp")})
    CHECK(issue_certificate(authority, name, {}, valid_now()).error().code == ErrorCode::kBadText);
  for (const char* const address : {"", "host", "10.0.0.1,DNS:b", "10.0.0.256", "10.0.0.1/8"})
    CHECK(issue_certificate(authority, "a", {address}, valid_now()).error().code == ErrorCode::kBadText);
  CHECK(issue_certificate(authority, "a", {}, {5, 5}).error().code == ErrorCode::kCertificate);
  CHECK(issue_certificate({authority.certificate, "no key"}, "a", {}, valid_now()).error().code ==
        ErrorCode::kCertificate);
  const CertifiedKey other = make_authority("b", valid_now()).value();
  CHECK(issue_certificate({authority.certificate, other.key}, "a", {}, valid_now()).error().code ==
        ErrorCode::kCertificate);
}

TEST_CASE("what is no certificate is an error, whatever it is") {
  const Made made;
  const std::string& pem = made.node.certificate;
  CHECK(read_certificates("", "x").error().code == ErrorCode::kCertificate);
  CHECK(read_certificates("garbage", "x").error().code == ErrorCode::kCertificate);
  CHECK(read_certificates(made.node.key, "x").error().code == ErrorCode::kCertificate);
  CHECK(read_certificates(std::string(kSmallFileBytesMax + 1, 'x'), "x").error().code == ErrorCode::kCertificate);
  for (std::size_t cut = 30; cut + 30 < pem.size(); cut += 37) {
    CHECK_FALSE(read_certificates(pem.substr(0, cut), "x"));
    std::string changed = pem;
    changed[cut] = changed[cut] == 'A' ? 'B' : 'A';
    (void)read_certificates(changed, "x");  // may still parse; its signature would not hold
  }
  std::string many;
  for (int i = 0; i < 65; ++i) many += pem;
  CHECK(read_certificates(many, "x").error().what == "too many certificates in one file");
  CHECK(read_certificates(pem + pem, "x").value().size() == 2);
  CHECK(split_certificates(pem + made.authority.certificate, "x").value() ==
        std::vector<std::string>{pem, made.authority.certificate});
}
