#include "common/request_signature.h"

#include <filesystem>
#include <fstream>

#include <doctest/doctest.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/random.h"
#include "common/sha256.h"
#include "tests/test_files.h"

namespace gradtap {
namespace {

JobSecret rising_key(std::string id = "demo") {
  JobSecret secret{std::move(id), {}};
  for (std::size_t i = 0; i < secret.key.size(); ++i) secret.key[i] = static_cast<std::uint8_t>(i);
  return secret;
}

struct Folder {
  std::string path;
  Folder() {
    std::string name = (std::filesystem::temp_directory_path() / "gradtap-secret-XXXXXX").string();
    REQUIRE(::mkdtemp(name.data()) != nullptr);
    path = name;
  }
  ~Folder() { std::filesystem::remove_all(path); }
  std::string write(const std::string& text, mode_t mode = 0600) const {
    const std::string file = path + "/secret";
    std::filesystem::remove(file);
    std::ofstream(file) << text;
    REQUIRE(::chmod(file.c_str(), mode) == 0);
    return file;
  }
};

const std::string kKey = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";

}  // namespace

// Computed with hmac and hashlib of Python, under the key 00 01 .. 1f.
TEST_CASE("signatures equal those of another implementation") {
  std::string every_byte(256, '\0');
  for (std::size_t i = 0; i < every_byte.size(); ++i) every_byte[i] = static_cast<char>(i);
  const struct {
    const char *method, *target, *session, *first_seq;
    std::string body;
    const char* expected;
  } cases[] = {
      {"GET", "/v1/jobs/demo/points?lineage=1", "", "", "",
       "d7b763e23eac1fb1348d9d567af9f60e01194f86e39dd14eb8865feefa8df8a3"},
      {"POST", "/v1/jobs/demo/messages", "0123456789abcdef0123456789abcdef", "7", "{\"kind\": \"step\", \"seq\": 7}\n",
       "0740888a196efff3031ab52f3f22c4af1ff13785f3294ccd0aa0a38cc4687c08"},
      {"PUT", "/v1/jobs/a%2Fb/chunks/baseline/0", "s", "", every_byte,
       "0bafefd9fa44524fcaf417b291df854cad440d102ea03856982def76738ca714"},
      {"POST", "/v1/jobs/demo/attach", "", "", "{}",
       "4282bfecd6ecf96796ee29b308e97d88eda9262a1f2e9dfd380e109ca167705a"},
  };
  for (const auto& c : cases) {
    const std::string digest = to_hex(sha256(std::string_view(c.body)));
    const SignedRequest request{c.method, c.target, c.session, c.first_seq, digest};
    CHECK(request_signature(rising_key(), request) == c.expected);
    CHECK(request_authorization(rising_key(), request) == std::string("GT1 demo:") + c.expected);
  }
}

TEST_CASE("every part of a request, and every bit of the key, counts") {
  const std::string digest(64, 'a');
  const SignedRequest request{"PUT", "/v1/jobs/a/chunks/b/0?x=1", "session", "12", digest};
  const std::string signature = request_signature(rising_key(), request);
  const std::string other(64, 'b');
  for (const SignedRequest& changed : {SignedRequest{"POST", request.target, request.session, "12", digest},
                                       SignedRequest{"PUT", "/v1/jobs/a/chunks/b/0?x=2", request.session, "12", digest},
                                       SignedRequest{"PUT", request.target, "Session", "12", digest},
                                       SignedRequest{"PUT", request.target, request.session, "13", digest},
                                       SignedRequest{"PUT", request.target, request.session, "12", other}})
    CHECK(request_signature(rising_key(), changed) != signature);
  for (std::size_t bit = 0; bit < kSecretBytes * 8; ++bit) {
    JobSecret secret = rising_key();
    secret.key[bit / 8] ^= static_cast<std::uint8_t>(1u << (bit % 8));
    CHECK(request_signature(secret, request) != signature);
  }
}

TEST_CASE("an Authorization header has one form") {
  const std::string good(64, '0');
  const auto parsed = parse_authorization("GT1 a.b_c-D9:" + good);
  REQUIRE(parsed);
  CHECK(parsed->id == "a.b_c-D9");
  CHECK(parsed->signature == good);
  for (const std::string& wrong :
       {std::string(), std::string("GT1"), std::string("GT1 "), "GT1 :" + good, "gt1 a:" + good, "GT2 a:" + good,
        "Bearer " + good, "GT1  a:" + good, "GT1 a:" + good + "0", "GT1 a:" + good.substr(1), "GT1 a :" + good,
        "GT1 a:" + std::string(64, 'A'), "GT1 a:" + std::string(63, '0') + "g", "GT1 a:b:" + good,
        "GT1 " + std::string(65, 'a') + ":" + good, "GT1 \xff:" + good, "GT1 " + good, "GT1 a:" + good + "\n"}) {
    const auto refused = parse_authorization(wrong);
    CHECK_MESSAGE(!refused, wrong);
    if (!refused) CHECK(refused.error().code == ErrorCode::kUnauthorized);
  }
  SeededRandom random(3);
  for (int i = 0; i < 2000; ++i) {
    std::string header = "GT1 demo:" + good;
    header[random.below(header.size())] = static_cast<char>(random.next());
    if (const auto taken = parse_authorization(header)) CHECK(is_key_id(taken->id));
  }
}

TEST_CASE("secrets that differ are told apart wherever they differ") {
  const std::string text(64, 'x');
  CHECK(same_secret_text(text, text));
  CHECK(same_secret_text("", ""));
  CHECK_FALSE(same_secret_text(text, text.substr(1)));
  for (std::size_t i = 0; i < text.size(); ++i) {
    std::string other = text;
    other[i] = 'y';
    CHECK_FALSE(same_secret_text(text, other));
  }
}

TEST_CASE("a secret file: what is taken and what is refused by name") {
  const Folder folder;
  const auto two =
      load_secrets(folder.write("# of 2026\n\nGT1 new " + kKey + "\r\nGT1 old " + std::string(64, 'f') + "\n"));
  REQUIRE(two);
  REQUIRE(two->size() == 2);
  CHECK((*two)[0].id == "new");
  CHECK((*two)[0].key == rising_key().key);
  CHECK((*two)[1].key[31] == 0xff);
  CHECK(load_secrets(folder.write("GT1 a " + kKey)));        // without an end of line
  CHECK(load_secrets(folder.write("GT1 a " + kKey, 0640)));  // the daemon's group
  const struct {
    std::string text;
    mode_t mode;
    ErrorCode code;
  } wrong[] = {{"", 0600, ErrorCode::kBadText},
               {"# nothing\n", 0600, ErrorCode::kBadText},
               {kKey, 0600, ErrorCode::kBadText},
               {"GT1 " + kKey, 0600, ErrorCode::kBadText},
               {"GT1 a " + kKey + "0", 0600, ErrorCode::kBadText},
               {"GT1 a " + kKey.substr(2), 0600, ErrorCode::kBadText},
               {"GT1 a/b " + kKey, 0600, ErrorCode::kBadText},
               {"GT1 a " + kKey + "\nGT1 a " + kKey, 0600, ErrorCode::kBadText},
               {"GT1 a " + std::string(63, '0') + "G", 0600, ErrorCode::kBadText},
               {std::string(5000, '#'), 0600, ErrorCode::kBadText},
               {"GT1 a " + kKey, 0604, ErrorCode::kFileUnreadable},
               {"GT1 a " + kKey, 0620, ErrorCode::kFileUnreadable},
               {"GT1 a " + kKey, 0602, ErrorCode::kFileUnreadable}};
  for (const auto& c : wrong) {
    const auto refused = load_secrets(folder.write(c.text, c.mode));
    REQUIRE_MESSAGE(!refused, c.text);
    CHECK(refused.error().code == c.code);
    CHECK(refused.error().text().find(kKey.substr(0, 16)) == std::string::npos);  // an error shows no secret
  }
  std::string many;
  for (std::size_t i = 0; i <= kSecretsInFileMax; ++i) many += "GT1 k" + std::to_string(i) + " " + kKey + "\n";
  CHECK_FALSE(load_secrets(folder.write(many)));
  CHECK_FALSE(load_secrets(folder.path));  // a folder
  CHECK_FALSE(load_secrets(folder.path + "/absent"));
}

TEST_CASE("what is made can be loaded, is closed, replaces nothing, and is never the same") {
  const Folder folder;
  const std::string one = folder.path + "/one", two = folder.path + "/two", token = folder.path + "/token";
  const mode_t before = ::umask(0);
  REQUIRE(create_secret_file(one, "demo"));
  REQUIRE(create_secret_file(two, "demo"));
  REQUIRE(create_token_file(token));
  ::umask(before);
  for (const std::string& file : {one, two, token}) {
    struct stat about{};
    REQUIRE(::stat(file.c_str(), &about) == 0);
    CHECK((about.st_mode & 07777) == 0600);
  }
  const auto first = load_secrets(one), second = load_secrets(two);
  REQUIRE(first);
  REQUIRE(second);
  CHECK(first->front().id == "demo");
  CHECK(first->front().key != second->front().key);
  const std::string kept = testing::read_text(one);
  const Status again = create_secret_file(one, "demo");
  REQUIRE(!again);
  CHECK(again.error().code == ErrorCode::kFileUnwritable);
  CHECK(testing::read_text(one) == kept);
  CHECK_FALSE(create_secret_file(folder.path + "/bad", "a b"));
  const auto loaded = load_token(token);
  REQUIRE(loaded);
  CHECK(loaded->size() == 64);
  for (const std::string& wrong : {std::string("short"), std::string(64, ' '), std::string(64, 'a') + "\nb",
                                   std::string(600, 'a'), std::string(64, '\x01'), std::string()})
    CHECK_FALSE(load_token(folder.write(wrong)));
  CHECK(load_token(folder.write(std::string(64, 'a') + "\n")));
  CHECK_FALSE(load_token(folder.write(std::string(64, 'a'), 0644)));
}

}  // namespace gradtap
