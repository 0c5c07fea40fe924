#include "common/secret_file.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/descriptor.h"
#include "common/ids.h"

namespace gradtap {
namespace {

constexpr std::size_t kFileBytesMax = 4096;
constexpr std::size_t kTokenCharactersMin = 32;
constexpr std::size_t kTokenCharactersMax = 512;
constexpr std::string_view kForm = "GT1 id, then 64 hexadecimal digits";

Result<std::string> read_closed(const std::string& path) {
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat about{};
  if (file.get() < 0 || ::fstat(file.get(), &about) != 0)
    return fail(ErrorCode::kFileUnreadable, "the secret cannot be read", path, "a file of mode 0600",
                std::strerror(errno), "gradtap secret new makes one");
  if (!S_ISREG(about.st_mode))
    return fail(ErrorCode::kFileUnreadable, "the secret cannot be read", path, "a file", "something else",
                "gradtap secret new makes one");
  // The group may read it: that of a daemon that is not its owner.
  if ((about.st_mode & (S_IWGRP | S_IRWXO)) != 0)
    return fail(ErrorCode::kFileUnreadable, "others may read or change the secret", path, "mode 0600",
                fmt::format("0{:o}", about.st_mode & 07777), "chmod 600 it; whoever could read it may know it");
  std::string text(kFileBytesMax + 1, '\0');
  std::size_t have = 0;
  while (have < text.size()) {
    const ssize_t got = ::read(file.get(), text.data() + have, text.size() - have);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0)
      return fail(ErrorCode::kFileUnreadable, "the secret cannot be read", path, {}, std::strerror(errno),
                  "check the disk, or make another one with gradtap secret new");
    if (got == 0) break;
    have += static_cast<std::size_t>(got);
  }
  if (have > kFileBytesMax)
    return fail(ErrorCode::kBadText, "the file is too long for a secret", path, fmt::format("{} bytes", kFileBytesMax),
                "more", "gradtap secret new makes one");
  text.resize(have);
  return text;
}

Status create_closed(const std::string& path, std::string_view text) {
  const auto failed = [&](int why) {
    return fail(ErrorCode::kFileUnwritable, "the secret is not written", path, "a new file", std::strerror(why),
                why == EEXIST ? "it is there already: choose another name, or remove it if nothing uses it"
                              : "check the folder's permissions and free space");
  };
  const Descriptor file(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, S_IRUSR | S_IWUSR));
  if (file.get() < 0) return failed(errno);
  while (!text.empty()) {
    const ssize_t put = ::write(file.get(), text.data(), text.size());
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) {
      const int why = errno;
      ::unlink(path.c_str());
      return failed(why);
    }
    text.remove_prefix(static_cast<std::size_t>(put));
  }
  if (::fchmod(file.get(), S_IRUSR | S_IWUSR) != 0 || ::fsync(file.get()) != 0) {
    const int why = errno;
    ::unlink(path.c_str());
    return failed(why);
  }
  return {};
}

std::string random_hex() {
  std::array<std::uint8_t, kSecretBytes> bytes{};
  // Reads of up to 256 bytes are never short once the pool is initialised (getrandom(2)).
  if (getrandom(bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size())) std::abort();
  return to_hex(bytes);
}

std::string_view next_line(std::string_view& text) {
  const std::size_t end = text.find('\n');
  std::string_view line = text.substr(0, end);
  text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
  if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
  return line;
}

}  // namespace

bool is_key_id(std::string_view text) {
  return !text.empty() && text.size() <= 64 && std::all_of(text.begin(), text.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' || c == '_' ||
           c == '-';
  });
}

Result<std::vector<JobSecret>> load_secrets(const std::string& path) {
  const auto text = read_closed(path);
  if (!text) return std::unexpected(text.error());
  std::vector<JobSecret> secrets;
  std::string_view rest = *text;
  for (std::size_t number = 1; !rest.empty(); ++number) {
    std::string_view line = next_line(rest);
    if (line.empty() || line.front() == '#') continue;
    const std::string where = fmt::format("{}:{}", path, number);
    const std::size_t space = line.find(' ', 4);
    JobSecret secret;
    if (!line.starts_with("GT1 ") || space == std::string_view::npos || !is_key_id(line.substr(4, space - 4)) ||
        !from_hex(line.substr(space + 1), secret.key.data(), secret.key.size()))
      return fail(ErrorCode::kBadText, "the line is not a secret", where, std::string(kForm), "something else",
                  "gradtap secret new makes one");
    secret.id = line.substr(4, space - 4);
    for (const JobSecret& other : secrets)
      if (other.id == secret.id)
        return fail(ErrorCode::kBadText, "two secrets have the same id", where, "an id of its own", secret.id,
                    "rename the older one");
    if (secrets.size() == kSecretsInFileMax)
      return fail(ErrorCode::kBadText, "too many secrets", where, fmt::format("at most {}", kSecretsInFileMax), "more",
                  "remove those that nobody uses any more");
    secrets.push_back(std::move(secret));
  }
  if (secrets.empty())
    return fail(ErrorCode::kBadText, "the file holds no secret", path, std::string(kForm), "nothing",
                "gradtap secret new makes one");
  return secrets;
}

Result<std::string> load_token(const std::string& path) {
  const auto text = read_closed(path);
  if (!text) return std::unexpected(text.error());
  std::string_view rest = *text;
  const std::string_view line = next_line(rest);
  const bool visible = std::all_of(line.begin(), line.end(), [](char c) { return c > ' ' && c <= '~'; });
  if (!visible || line.size() < kTokenCharactersMin || line.size() > kTokenCharactersMax || !rest.empty())
    return fail(ErrorCode::kBadText, "the file is not a token", path,
                fmt::format("one line of {} to {} visible characters", kTokenCharactersMin, kTokenCharactersMax),
                "something else", "gradtap secret token makes one");
  return std::string(line);
}

Status create_secret_file(const std::string& path, std::string_view id) {
  if (!is_key_id(id))
    return fail(ErrorCode::kBadText, "this cannot name a key", std::string(id.substr(0, 100)),
                "1 to 64 of A-Z a-z 0-9 . _ -", {}, "gradtap secret new FILE --id ID");
  return create_closed(path, fmt::format("GT1 {} {}\n", id, random_hex()));
}

Status create_token_file(const std::string& path) {
  return create_closed(path, random_hex() + "\n");
}

}  // namespace gradtap
