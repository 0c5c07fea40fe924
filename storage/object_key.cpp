#include "storage/object_key.h"

#include <algorithm>
#include <vector>

#include <fmt/format.h>

namespace gradtap::storage {
namespace {

constexpr std::size_t kKeyBytesMax = 1024;
constexpr std::size_t kUidMax = 64;
constexpr int kNumberDigits = 20;

bool is_name_char(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-' || c == '.';
}

bool is_uid(std::string_view text) {
  return !text.empty() && text.size() <= kUidMax &&
         std::all_of(text.begin(), text.end(), [](char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9'); });
}

std::vector<std::string_view> split(std::string_view key) {
  std::vector<std::string_view> out;
  for (;;) {
    const std::size_t slash = key.find('/');
    out.push_back(key.substr(0, slash));
    if (slash == std::string_view::npos) return out;
    key.remove_prefix(slash + 1);
  }
}

// Decimal digits only; the caller compares the whole key with what build_key() makes of the number.
bool number(std::string_view text, std::uint64_t& out) {
  if (text.empty() || text.size() > kNumberDigits) return false;
  std::uint64_t value = 0;
  for (const char c : text) {
    if (c < '0' || c > '9') return false;
    const auto digit = static_cast<std::uint64_t>(c - '0');
    if (value > (~std::uint64_t{0} - digit) / 10) return false;
    value = value * 10 + digit;
  }
  out = value;
  return true;
}

template <class T>
bool small_number(std::string_view text, T& out) {
  std::uint64_t value = 0;
  if (!number(text, value) || value > static_cast<T>(~T{0})) return false;
  out = static_cast<T>(value);
  return true;
}

// SSS-uid
bool step_and_uid(std::string_view text, ObjectKey& key) {
  if (text.size() < kNumberDigits + 2 || text[kNumberDigits] != '-') return false;
  key.uid = text.substr(kNumberDigits + 1);
  return number(text.substr(0, kNumberDigits), key.step) && is_uid(key.uid);
}

bool parse_lineage_object(const std::vector<std::string_view>& part, ObjectKey& key) {
  if (!small_number(part[2], key.lineage)) return false;
  const std::string_view what = part[3];
  if (part.size() == 7) {
    if (what != "shard" || !small_number(part[4], key.shard)) return false;
    if (part[5] != "full" && part[5] != "log") return false;
    key.kind = part[5] == "full" ? KeyKind::kFull : KeyKind::kLog;
    return step_and_uid(part[6], key);
  }
  if (part.size() != 5) return false;
  if (what == "point") {
    key.kind = KeyKind::kPoint;
    return number(part[4], key.step);
  }
  if (what == "meta") {
    key.kind = KeyKind::kMeta;
    key.uid = part[4];
    return is_uid(key.uid);
  }
  if (what == "lease") {
    key.kind = KeyKind::kLease;
    const std::size_t dash = part[4].rfind('-');
    return dash != std::string_view::npos && number(part[4].substr(dash + 1), key.counter) &&
           step_and_uid(part[4].substr(0, dash), key);
  }
  if (what != "step" && what != "side") return false;
  key.kind = what == "step" ? KeyKind::kStep : KeyKind::kSide;
  return step_and_uid(part[4], key);
}

bool parse(const std::vector<std::string_view>& part, ObjectKey& key) {
  if (part[0] == "cluster") {
    if (part.size() == 2 && part[1] == "store-id") return true;
    if (part.size() == 3 && part[1] == "epoch") {
      key.kind = KeyKind::kEpoch;
      return number(part[2], key.counter) && key.counter != 0;
    }
    if (part.size() != 3 || part[1] != "seen") return false;
    key.kind = KeyKind::kSeen;
    const std::size_t dash = part[2].rfind('-');
    if (dash == std::string_view::npos) return false;
    key.uid = part[2].substr(dash + 1);
    const auto node = job_of_segment(part[2].substr(0, dash));
    if (!node || !is_uid(key.uid)) return false;
    key.job = *node;
    return true;
  }
  if (part[0] != "jobs" || part.size() < 4) return false;
  const auto job = job_of_segment(part[1]);
  if (!job) return false;
  key.job = *job;
  if (part[2] == "lineage") {
    key.kind = KeyKind::kLineage;
    return part.size() == 4 && small_number(part[3], key.lineage);
  }
  return parse_lineage_object(part, key);
}

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

}  // namespace

std::string build_key(const ObjectKey& key) {
  switch (key.kind) {
    case KeyKind::kStoreId:
      return "cluster/store-id";
    case KeyKind::kSeen:
      return fmt::format("cluster/seen/{}-{}", job_segment(key.job), key.uid);
    case KeyKind::kLineage:
      return fmt::format("{}{:020}", lineage_claims_prefix(key.job), key.lineage);
    case KeyKind::kFull:
    case KeyKind::kLog:
      return fmt::format("{}shard/{:05}/{}/{:020}-{}", lineage_objects_prefix(key.job, key.lineage), key.shard,
                         key.kind == KeyKind::kFull ? "full" : "log", key.step, key.uid);
    case KeyKind::kStep:
    case KeyKind::kSide:
      return fmt::format("{}{}/{:020}-{}", lineage_objects_prefix(key.job, key.lineage),
                         key.kind == KeyKind::kStep ? "step" : "side", key.step, key.uid);
    case KeyKind::kMeta:
      return fmt::format("{}meta/{}", lineage_objects_prefix(key.job, key.lineage), key.uid);
    case KeyKind::kPoint:
      return fmt::format("{}{:020}", points_prefix(key.job, key.lineage), key.step);
    case KeyKind::kLease:
      return fmt::format("{}{:020}-{}-{:020}", leases_prefix(key.job, key.lineage), key.step, key.uid, key.counter);
    case KeyKind::kEpoch:
      return fmt::format("{}{:020}", epochs_prefix(), key.counter);
  }
  return {};
}

std::optional<ObjectKey> parse_key(std::string_view text) {
  if (!is_plain_key(text)) return std::nullopt;
  ObjectKey key;
  if (!parse(split(text), key) || build_key(key) != text) return std::nullopt;
  return key;
}

std::string lineage_claim_key(std::string_view job, LineageId lineage) {
  return build_key({KeyKind::kLineage, std::string(job), lineage, 0, 0, {}});
}

std::string full_key(std::string_view job, LineageId lineage, ShardId shard, StepNumber step, std::string_view uid) {
  return build_key({KeyKind::kFull, std::string(job), lineage, shard, step, std::string(uid)});
}

std::string log_key(std::string_view job, LineageId lineage, ShardId shard, StepNumber step, std::string_view uid) {
  return build_key({KeyKind::kLog, std::string(job), lineage, shard, step, std::string(uid)});
}

std::string step_key(std::string_view job, LineageId lineage, StepNumber step, std::string_view uid) {
  return build_key({KeyKind::kStep, std::string(job), lineage, 0, step, std::string(uid)});
}

std::string side_state_key(std::string_view job, LineageId lineage, StepNumber step, std::string_view uid) {
  return build_key({KeyKind::kSide, std::string(job), lineage, 0, step, std::string(uid)});
}

std::string meta_key(std::string_view job, LineageId lineage, std::string_view uid) {
  return build_key({KeyKind::kMeta, std::string(job), lineage, 0, 0, std::string(uid)});
}

std::string point_key(std::string_view job, LineageId lineage, StepNumber step) {
  return build_key({KeyKind::kPoint, std::string(job), lineage, 0, step, {}});
}

std::string epoch_key(std::uint64_t number) {
  return build_key({KeyKind::kEpoch, {}, 0, 0, 0, {}, number});
}

std::string epochs_prefix() {
  return "cluster/epoch/";
}

std::string job_prefix(std::string_view job) {
  return fmt::format("jobs/{}/", job_segment(job));
}

std::string lineage_claims_prefix(std::string_view job) {
  return job_prefix(job) + "lineage/";
}

std::string lineage_objects_prefix(std::string_view job, LineageId lineage) {
  return fmt::format("{}{:020}/", job_prefix(job), lineage);
}

std::string points_prefix(std::string_view job, LineageId lineage) {
  return lineage_objects_prefix(job, lineage) + "point/";
}

std::string leases_prefix(std::string_view job, LineageId lineage) {
  return lineage_objects_prefix(job, lineage) + "lease/";
}

std::string job_segment(std::string_view job) {
  std::string out;
  for (std::size_t i = 0; i < job.size(); ++i) {
    const char c = job[i];
    if (is_name_char(c) && !(i == 0 && c == '.'))
      out += c;
    else
      out += fmt::format("%{:02X}", static_cast<unsigned char>(c));
  }
  return out;
}

std::optional<std::string> job_of_segment(std::string_view segment) {
  std::string out;
  for (std::size_t i = 0; i < segment.size(); ++i) {
    if (segment[i] != '%') {
      out += segment[i];
      continue;
    }
    if (segment.size() - i < 3) return std::nullopt;
    const int high = hex_digit(segment[i + 1]);
    const int low = hex_digit(segment[i + 2]);
    if (high < 0 || low < 0) return std::nullopt;
    out += static_cast<char>(high * 16 + low);
    i += 2;
  }
  if (out.empty() || job_segment(out) != segment) return std::nullopt;
  return out;
}

std::string new_uid(Random& random) {
  return fmt::format("{:016x}{:016x}", random.next(), random.next());
}

bool is_plain_key(std::string_view key) {
  if (key.empty() || key.size() > kKeyBytesMax) return false;
  for (const std::string_view part : split(key))
    if (part.empty() || part.size() > 255 || part.front() == '.' ||
        !std::all_of(part.begin(), part.end(), [](char c) { return is_name_char(c) || c == '%'; }))
      return false;
  return true;
}

}  // namespace gradtap::storage
