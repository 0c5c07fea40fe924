#include "link/authority_folder.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include <fmt/format.h>
#include <openssl/rand.h>
#include <sys/stat.h>

#include "common/ids.h"
#include "link/small_file.h"

namespace gradtap::link {
namespace {

constexpr mode_t kSecret = 0600;
constexpr mode_t kPublic = 0644;
constexpr mode_t kFolder = 0700;
constexpr std::int64_t kDay = 86400;
constexpr std::uint64_t kDaysMax = 36500;
// Clocks of hosts differ.
constexpr std::int64_t kBackdated = 3600;

Status make_folder(const std::string& path) {
  std::error_code code;
  std::filesystem::create_directories(std::filesystem::path(path).parent_path(), code);
  if (::mkdir(path.c_str(), kFolder) == 0 || errno == EEXIST) return {};
  return fail(ErrorCode::kFileUnwritable, "cannot make the folder", path, {}, std::strerror(errno),
              "check the path and its permissions");
}

bool exists(const std::string& path) {
  std::error_code ignored;
  return std::filesystem::exists(path, ignored);
}

std::unexpected<Error> wrong(std::string what, const std::string& where, std::string remedy) {
  return fail(ErrorCode::kCertificate, std::move(what), where, {}, {}, std::move(remedy));
}

Result<CertificateFacts> first_of(const std::string& pem, const std::string& where) {
  auto facts = read_certificates(pem, where);
  if (!facts) return std::unexpected<Error>(facts.error());
  return std::move(facts->front());
}

}  // namespace

Validity AuthorityFolder::for_days(std::uint64_t days) const {
  return {now_s_ - kBackdated, now_s_ + static_cast<std::int64_t>(std::min(days, kDaysMax)) * kDay};
}

Result<CertifiedKey> AuthorityFolder::read_authority(const std::string& name) const {
  const std::string path = file(name);
  if (!exists(path)) return wrong("there is no authority", path, fmt::format("gradtap ca init {}", path_));
  const auto text = read_small_file(path);
  if (!text) return std::unexpected<Error>(text.error());
  const std::size_t key = text->find("-----BEGIN PRIVATE KEY-----");
  if (key == std::string::npos)
    return wrong("the file does not hold certificate and key", path, "put back a copy, or init with --force");
  CertifiedKey found{text->substr(0, key), text->substr(key)};
  const auto facts = first_of(found.certificate, path);
  if (!facts) return std::unexpected<Error>(facts.error());
  if (!facts->authority) return wrong("the certificate is no authority's", path, "put back a copy");
  if (facts->validity.to_s <= now_s_)
    return wrong(fmt::format("the authority has expired, on {}", time_text(facts->validity.to_s)), path,
                 fmt::format("gradtap ca init {} --force, then issue for every node", path_));
  return found;
}

Result<AuthorityDone> AuthorityFolder::make(const std::string& name, std::uint64_t days) {
  std::array<std::uint8_t, 4> tag;
  if (RAND_bytes(tag.data(), tag.size()) != 1) return wrong("no random bytes", {}, "check the host");
  const auto made = make_authority(
      fmt::format("gradtap cluster {} {}", time_text(now_s_).substr(0, 10), to_hex(tag.data(), tag.size())),
      for_days(days));
  if (!made) return std::unexpected<Error>(made.error());
  GRADTAP_TRY(write_small_file(file(name), made->certificate + made->key, kSecret));
  auto facts = first_of(made->certificate, file(name));
  if (!facts) return std::unexpected<Error>(facts.error());
  return AuthorityDone{"made", file(name), std::move(*facts)};
}

Result<AuthorityDone> AuthorityFolder::init(std::uint64_t days, bool force) {
  if (exists(file("ca.pem")) && !force) {
    const auto known = read_authority("ca.pem");
    if (!known) return std::unexpected<Error>(known.error());
    auto facts = first_of(known->certificate, file("ca.pem"));
    if (!facts) return std::unexpected<Error>(facts.error());
    if (!exists(file("ca.crt"))) GRADTAP_TRY(write_small_file(file("ca.crt"), known->certificate, kPublic));
    return AuthorityDone{"kept", file("ca.pem"), std::move(*facts)};
  }
  GRADTAP_TRY(make_folder(path_));
  GRADTAP_TRY(make_folder(file("nodes")));
  auto done = make("ca.pem", days);
  if (!done) return done;
  const auto made = read_authority("ca.pem");
  if (!made) return std::unexpected<Error>(made.error());
  std::error_code ignored;
  std::filesystem::remove(file("next.pem"), ignored);
  GRADTAP_TRY(write_small_file(file("ca.crt"), made->certificate, kPublic));
  return done;
}

Result<AuthorityDone> AuthorityFolder::issue_one(const CertifiedKey& authority, const std::string& trusted,
                                                 const AuthorityMember& member, std::uint64_t days, bool force) {
  const std::string path = node_file(member.name, "node.crt");
  if (exists(path) && !force) {
    const auto text = read_small_file(path);
    if (!text) return std::unexpected<Error>(text.error());
    auto facts = first_of(*text, path);
    if (!facts) return std::unexpected<Error>(facts.error());
    const auto ours = signed_by(*text, authority.certificate);
    const std::string again = fmt::format("gradtap ca issue {} {} --force makes another one", path_, member.name);
    if (!ours || !*ours) return wrong("there is a certificate of another authority", path, again);
    if (facts->validity.to_s <= now_s_)
      return wrong(fmt::format("there is a certificate, which expired on {}", time_text(facts->validity.to_s)), path,
                   fmt::format("gradtap ca rotate {} {}", path_, member.name));
    if (facts->addresses != member.addresses)
      return fail(ErrorCode::kCertificate, "there is a certificate with other addresses", path,
                  fmt::format("{}", fmt::join(member.addresses, ", ")),
                  fmt::format("{}", fmt::join(facts->addresses, ", ")), again);
    GRADTAP_TRY(write_small_file(node_file(member.name, "ca.crt"), trusted, kPublic));
    return AuthorityDone{"kept", path, std::move(*facts)};
  }
  const auto made = issue_certificate(authority, member.name, member.addresses, for_days(days));
  if (!made) return std::unexpected<Error>(made.error());
  GRADTAP_TRY(make_folder(file("nodes")));
  GRADTAP_TRY(make_folder(file("nodes/" + member.name)));
  GRADTAP_TRY(write_small_file(node_file(member.name, "ca.crt"), trusted, kPublic));
  GRADTAP_TRY(write_small_file(node_file(member.name, "node.key"), made->key, kSecret));
  GRADTAP_TRY(write_small_file(path, made->certificate, kPublic));
  auto facts = first_of(made->certificate, path);
  if (!facts) return std::unexpected<Error>(facts.error());
  return AuthorityDone{"made", path, std::move(*facts)};
}

Result<std::vector<AuthorityDone>> AuthorityFolder::issue(const std::vector<AuthorityMember>& members,
                                                          std::uint64_t days, bool force) {
  const auto authority = read_authority("ca.pem");
  if (!authority) return std::unexpected<Error>(authority.error());
  const auto trusted = read_small_file(file("ca.crt"));
  if (!trusted) return std::unexpected<Error>(trusted.error());
  std::vector<AuthorityDone> all;
  for (const AuthorityMember& member : members) {
    auto done = issue_one(*authority, *trusted, member, days, force);
    if (!done) return std::unexpected<Error>(done.error());
    all.push_back(std::move(*done));
  }
  return all;
}

Result<std::vector<std::string>> AuthorityFolder::nodes() const {
  std::vector<std::string> names;
  std::error_code code;
  for (const auto& entry : std::filesystem::directory_iterator(file("nodes"), code))
    if (exists((entry.path() / "node.crt").string())) names.push_back(entry.path().filename().string());
  if (code)
    return fail(ErrorCode::kFileUnreadable, "cannot list the nodes", file("nodes"), {}, code.message(),
                fmt::format("gradtap ca init {}", path_));
  std::sort(names.begin(), names.end());
  return names;
}

Result<std::vector<AuthorityDone>> AuthorityFolder::rotate(const std::vector<std::string>& names, std::uint64_t days) {
  const auto known = nodes();
  if (!known) return std::unexpected<Error>(known.error());
  std::vector<AuthorityMember> members;
  for (const std::string& name : names.empty() ? *known : names) {
    const std::string path = node_file(name, "node.crt");
    if (std::find(known->begin(), known->end(), name) == known->end())
      return wrong("this node has no certificate yet", path, fmt::format("gradtap ca issue {} {}", path_, name));
    const auto text = read_small_file(path);
    if (!text) return std::unexpected<Error>(text.error());
    const auto facts = first_of(*text, path);
    if (!facts) return std::unexpected<Error>(facts.error());
    members.push_back({name, facts->addresses});
  }
  auto all = issue(members, days, true);
  if (all)
    for (AuthorityDone& each : *all) each.what = "renewed";
  return all;
}

// The authorities to trust, to every node.
Result<std::vector<AuthorityDone>> AuthorityFolder::spread(const std::string& trusted, const char* what) {
  GRADTAP_TRY(write_small_file(file("ca.crt"), trusted, kPublic));
  const auto known = nodes();
  if (!known) return std::unexpected<Error>(known.error());
  const auto facts = first_of(trusted, file("ca.crt"));
  if (!facts) return std::unexpected<Error>(facts.error());
  std::vector<AuthorityDone> all = {{what, file("ca.crt"), *facts}};
  for (const std::string& name : *known) {
    GRADTAP_TRY(write_small_file(node_file(name, "ca.crt"), trusted, kPublic));
    all.push_back({what, node_file(name, "ca.crt"), *facts});
  }
  return all;
}

Result<std::vector<AuthorityDone>> AuthorityFolder::trust_next(std::uint64_t days) {
  const auto now = read_authority("ca.pem");
  if (!now) return std::unexpected<Error>(now.error());
  if (!exists(file("next.pem"))) {
    const auto trusted = read_small_file(file("ca.crt"));
    if (!trusted) return std::unexpected<Error>(trusted.error());
    const auto all = read_certificates(*trusted, file("ca.crt"));
    if (!all) return std::unexpected<Error>(all.error());
    if (all->size() > 1)
      return wrong("the last change of authority is not over", file("ca.crt"),
                   fmt::format("gradtap ca rotate {} --authority retire", path_));
    if (auto made = make("next.pem", days); !made) return std::unexpected<Error>(made.error());
  }
  const auto next = read_authority("next.pem");
  if (!next) return std::unexpected<Error>(next.error());
  return spread(now->certificate + next->certificate, "trusted");
}

Result<std::vector<AuthorityDone>> AuthorityFolder::take_over(std::uint64_t days) {
  if (exists(file("next.pem"))) {
    // One step: there is never a moment without an authority. ca.crt names both of them already.
    const auto next = read_authority("next.pem");
    if (!next) return std::unexpected<Error>(next.error());
    std::error_code code;
    std::filesystem::rename(file("next.pem"), file("ca.pem"), code);
    if (code)
      return fail(ErrorCode::kFileUnwritable, "cannot rename the authority", file("next.pem"), {}, code.message());
  } else {
    const auto trusted = read_small_file(file("ca.crt"));
    if (!trusted) return std::unexpected<Error>(trusted.error());
    const auto all = read_certificates(*trusted, file("ca.crt"));
    if (!all) return std::unexpected<Error>(all.error());
    if (all->size() < 2)
      return wrong("no other authority is trusted yet", file("ca.crt"),
                   fmt::format("gradtap ca rotate {} --authority trust", path_));
  }
  return rotate({}, days);
}

Result<std::vector<AuthorityDone>> AuthorityFolder::retire() {
  if (exists(file("next.pem")))
    return wrong("the next authority does not sign yet", file("next.pem"),
                 fmt::format("gradtap ca rotate {} --authority switch", path_));
  const auto now = read_authority("ca.pem");
  if (!now) return std::unexpected<Error>(now.error());
  const auto known = nodes();
  if (!known) return std::unexpected<Error>(known.error());
  for (const std::string& name : *known) {
    const std::string path = node_file(name, "node.crt");
    const auto text = read_small_file(path);
    if (!text) return std::unexpected<Error>(text.error());
    const auto ours = signed_by(*text, now->certificate);
    if (!ours || !*ours)
      return wrong("a node still has a certificate of the old authority", path,
                   fmt::format("gradtap ca rotate {} {}", path_, name));
  }
  return spread(now->certificate, "retired");
}

}  // namespace gradtap::link
