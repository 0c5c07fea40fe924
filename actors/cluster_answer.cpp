#include "actors/cluster_answer.h"

#include <algorithm>
#include <array>
#include <optional>
#include <tuple>
#include <utility>

#include <fmt/format.h>

#include "common/answer_fields.h"

namespace gradtap::actors {

namespace {

using namespace answer_fields;
using nlohmann::json;

// The part in which `key` is highest; of equals the first by name. Null: nobody answered.
const json* newest_part(const ClusterParts& all, const char* key) {
  const json* best = nullptr;
  for (const auto& [name, part] : all.parts)
    if (part.is_object() && (best == nullptr || number(part, key) > number(*best, key))) best = &part;
  return best;
}

std::uint64_t highest(const ClusterParts& all, const char* key) {
  const json* part = newest_part(all, key);
  return part == nullptr ? 0 : number(*part, key);
}

json own_of(const ClusterParts& all) {
  const auto it = all.parts.find(all.asked);
  return it != all.parts.end() && it->second.is_object() ? it->second : json::object();
}

json merge_status(const ClusterParts& all) {
  json body = own_of(all);
  json nodes = json::array();
  for (const auto& [name, part] : all.parts)
    if (name != all.asked && part.is_object()) nodes.push_back(part);
  body["nodes"] = std::move(nodes);
  return body;
}

json merge_job(const ClusterParts& all) {
  const std::vector<json> jobs = objects(own_of(all), "jobs");
  return jobs.empty() ? json::object() : jobs.front();
}

json merge_shards(const ClusterParts& all) {
  std::vector<json> list;
  for (const auto& [name, part] : all.parts)
    for (json& shard : objects(part, "shards")) {
      shard["node"] = name;
      list.push_back(std::move(shard));
    }
  std::sort(list.begin(), list.end(), [](const json& a, const json& b) {
    return std::pair(number(a, "shard"), text(a, "node")) < std::pair(number(b, "shard"), text(b, "node"));
  });
  return {{"shards", std::move(list)}};
}

json merge_digests(const ClusterParts& all) {
  std::map<std::uint64_t, std::string> roots;
  for (const auto& [name, part] : all.parts)
    for (const json& entry : objects(part, "digests"))
      if (const std::string root = text(entry, "root"); !root.empty()) roots.emplace(number(entry, "step"), root);
  json list = json::array();
  for (const auto& [step, root] : roots) list.push_back({{"step", step}, {"root", root}});
  return {{"digests", std::move(list)}};
}

// -- who holds which shard ----------------------------------------------------------------------------------------

// By shard and node, so that looking up every holder of every shard in every part stays cheap.
using Entries = std::map<std::pair<std::uint64_t, std::string>, json>;

Entries entries_of(const json& placement) {
  Entries entries;
  for (const json& shard : objects(placement, "shards"))
    for (json& holder : objects(shard, "holders"))
      entries.insert_or_assign({number(shard, "shard"), text(holder, "node")}, std::move(holder));
  return entries;
}

struct PlacementParts {
  std::map<std::string, Entries> of;  // by node that said it, of the newest lineage
  const json* base = nullptr;         // of the newest epoch among them
};

// `key`: where a part has its placement; empty: it is one.
PlacementParts placements(const ClusterParts& all, const char* key) {
  PlacementParts found;
  const std::uint64_t lineage = highest(all, "lineage");
  std::uint64_t epoch = 0;
  for (const auto& [name, part] : all.parts) {
    if (!part.is_object()) continue;
    const auto inner = *key == '\0' ? part.end() : part.find(key);
    if (*key != '\0' && inner == part.end()) continue;
    const json& placement = *key == '\0' ? part : *inner;
    if (number(part, "lineage") != lineage || objects(placement, "shards").empty()) continue;
    found.of.emplace(name, entries_of(placement));
    if (found.base == nullptr || number(part, "epoch") > epoch) {
      found.base = &placement;
      epoch = number(part, "epoch");
    }
  }
  return found;
}

// What others know of a holder that did not answer: the furthest.
json known_of(const PlacementParts& parts, const std::pair<std::uint64_t, std::string>& key) {
  json best;
  for (const auto& [name, entries] : parts.of) {
    const auto it = entries.find(key);
    if (it == entries.end()) continue;
    const auto rank = [](const json& entry) { return std::pair(number(entry, "version"), number(entry, "durable")); };
    if (best.is_null() || rank(it->second) > rank(best)) best = it->second;
  }
  if (!best.is_null()) best["live"] = false;
  return best;
}

json merged_holders(const PlacementParts& parts, const ClusterParts& all, const json& shard) {
  const std::uint64_t id = number(shard, "shard");
  json holders = json::array();
  std::vector<std::string> listed;
  for (const json& holder : objects(shard, "holders")) {
    const std::string node = text(holder, "node");
    listed.push_back(node);
    const auto own = parts.of.find(node);
    if (!all.parts.contains(node)) {
      holders.push_back(known_of(parts, {id, node}));
    } else if (own == parts.of.end()) {
      holders.push_back(holder);  // it answered, and does not know the lineage yet
    } else if (const auto entry = own->second.find({id, node}); entry != own->second.end()) {
      holders.push_back(entry->second);
    } else if (text(holder, "role") != "releasing") {
      holders.push_back(holder);  // assigned in an epoch that it has not read yet
    }
  }
  // What a node still holds and others have forgotten.
  for (const auto& [node, entries] : parts.of)
    if (const auto entry = entries.find({id, node});
        entry != entries.end() && std::find(listed.begin(), listed.end(), node) == listed.end())
      holders.push_back(entry->second);
  return holders;
}

json merged_placement(const ClusterParts& all, const char* key) {
  const PlacementParts parts = placements(all, key);
  json shards = json::array();
  if (parts.base != nullptr)
    for (json& shard : objects(*parts.base, "shards")) {
      shard["holders"] = merged_holders(parts, all, shard);
      shards.push_back(std::move(shard));
    }
  return shards;
}

json merge_placement(const ClusterParts& all) {
  return {{"training", highest(all, "training")},
          {"durable", highest(all, "durable")},
          {"published", highest(all, "published")},
          {"shards", merged_placement(all, "")}};
}

// -- one version of a shard ---------------------------------------------------------------------------------------

json merge_version(const ClusterParts& all) {
  json holders = json::array();
  json producers = json::array();
  std::optional<std::string> digest;
  bool equal = true;
  for (const auto& [name, part] : all.parts) {
    const std::string said = text(part, "digest");
    const bool produces = flag(part, "can_produce");
    if (said.empty() && !produces) continue;
    holders.push_back({{"node", name},
                       {"digest", said.empty() ? json() : json(said)},
                       {"can_produce", produces},
                       {"full", field(part, "full")},
                       {"durable", field(part, "durable")}});
    if (produces) producers.push_back(name);
    if (said.empty()) continue;
    equal = equal && (!digest || *digest == said);
    digest = said;
  }
  const json own = own_of(all);
  return {{"shard", field(own, "shard")},
          {"step", field(own, "step")},
          {"shards", highest(all, "shards")},
          {"digest", digest && equal ? json(*digest) : json()},
          {"diverged", !equal},
          {"producers", std::move(producers)},
          {"holders", std::move(holders)}};
}

// -- members --------------------------------------------------------------------------------------------------------

json merged_member(const ClusterParts& all, json member) {
  const std::string name = text(member, "name");
  const auto own = all.parts.find(name);
  if (own != all.parts.end()) {
    member["state"] = flag(own->second, "ready") ? "up" : "syncing";
    member["tap"] = flag(own->second, "tap");
    member["age_ms"] = all.age_ms;
    return member;
  }
  // Of one that did not answer: whoever heard it last.
  json age;
  bool tap = false;
  for (const auto& [teller, part] : all.parts)
    for (const json& seen : objects(part, "members")) {
      if (text(seen, "name") != name) continue;
      tap = tap || flag(seen, "tap");
      const json heard = field(seen, "age_ms");
      if (is_number(heard) && (age.is_null() || heard < age)) age = heard;
    }
  member["state"] = "down";
  member["tap"] = tap;
  member["age_ms"] = age;
  return member;
}

json merge_nodes(const ClusterParts& all) {
  const json* base = newest_part(all, "epoch");
  if (base == nullptr) return json::object();
  struct Sum {
    std::uint64_t assigned = 0, in_sync = 0, syncing = 0, releasing = 0, bytes = 0, bytes_left = 0;
    std::string waits_for;
  };
  std::map<std::string, Sum> sums;
  const json shards = merged_placement(all, "placement");
  for (const json& shard : shards)
    for (const json& holder : objects(shard, "holders")) {
      Sum& sum = sums[text(holder, "node")];
      const std::uint64_t bytes = number(shard, "state_bytes");
      const std::string role = text(holder, "role");
      sum.assigned += role == "releasing" ? 0 : 1;
      sum.in_sync += role == "in_sync" ? 1 : 0;
      sum.syncing += role == "syncing" ? 1 : 0;
      sum.releasing += role == "releasing" ? 1 : 0;
      sum.bytes += bytes;
      if (role == "syncing") sum.bytes_left += bytes;
      if (std::string waits = text(holder, "waits_for"); !waits.empty()) sum.waits_for = std::move(waits);
    }
  json members = json::array();
  for (json& seen : objects(*base, "members")) {
    json member = merged_member(all, std::move(seen));
    const Sum& sum = sums[text(member, "name")];
    member.update({{"assigned", sum.assigned},
                   {"in_sync", sum.in_sync},
                   {"syncing", sum.syncing},
                   {"releasing", sum.releasing},
                   {"bytes", sum.bytes},
                   {"bytes_left", sum.bytes_left},
                   {"waits_for", sum.waits_for}});
    members.push_back(std::move(member));
  }
  json store_error;
  for (const auto& [name, part] : all.parts)
    if (const std::string error = text(part, "store_error"); !error.empty()) {
      store_error = name + ": " + error;
      break;
    }
  std::uint64_t training = 0, published = 0;
  for (const auto& [name, part] : all.parts) {
    training = std::max(training, number(field(part, "placement"), "training"));
    published = std::max(published, number(field(part, "placement"), "published"));
  }
  return {{"digest", field(*base, "digest")},
          {"cause", field(*base, "cause")},
          {"proposer", field(*base, "proposer")},
          {"replicas", field(*base, "replicas")},
          {"home", field(own_of(all), "home")},
          {"shards", shards.size()},
          {"training", training},
          {"published", published},
          {"store_error", std::move(store_error)},
          {"members", std::move(members)}};
}

json merge_epoch(const ClusterParts& all) {
  const json* base = newest_part(all, "epoch");
  return base == nullptr ? json::object() : *base;
}

json merge_limits(const ClusterParts& all) {
  json nodes = json::array();
  for (const auto& [name, part] : all.parts)
    if (part.is_object())
      nodes.push_back({{"node", name}, {"limits", list(part, "limits")}, {"memory", field(part, "memory")}});
  return {{"nodes", std::move(nodes)}};
}

json merge_events(const ClusterParts& all) {
  std::vector<json> list;
  json next = json::object();
  for (const auto& [name, part] : all.parts) {
    next[name] = number(part, "next");
    for (json& event : objects(part, "events")) {
      event["node"] = name;
      list.push_back(std::move(event));
    }
  }
  const auto key = [](const json& event) {
    return std::tuple(number(event, "wall_ms"), text(event, "node"), number(event, "seq"));
  };
  std::sort(list.begin(), list.end(), [&](const json& a, const json& b) { return key(a) < key(b); });
  if (list.size() > kMergedEventsMax) list.erase(list.begin(), list.end() - kMergedEventsMax);
  return {{"events", std::move(list)}, {"next", std::move(next)}};
}

constexpr std::array kQuestions{
    ClusterQuestion{"status", true, 0, 0, merge_status},       ClusterQuestion{"job", false, 0, 0, merge_job},
    ClusterQuestion{"shards", true, 0, 0, merge_shards},       ClusterQuestion{"digests", true, 2, 2, merge_digests},
    ClusterQuestion{"placement", true, 0, 0, merge_placement}, ClusterQuestion{"version", true, 2, 2, merge_version},
    ClusterQuestion{"nodes", true, 0, 0, merge_nodes},         ClusterQuestion{"epoch", true, 0, 0, merge_epoch},
    ClusterQuestion{"limits", true, 0, 0, merge_limits},       ClusterQuestion{"events", true, 0, 0, merge_events},
    ClusterQuestion{"events_here", false, 1, 1, merge_events},
};

}  // namespace

std::span<const ClusterQuestion> cluster_questions() {
  return kQuestions;
}

const ClusterQuestion* cluster_question(std::string_view name) {
  const auto it =
      std::find_if(kQuestions.begin(), kQuestions.end(), [&](const auto& question) { return question.name == name; });
  return it == kQuestions.end() ? nullptr : &*it;
}

json merge_answer(const ClusterQuestion& question, const ClusterParts& all) {
  json body = question.merge(all);
  json answered = json::array();
  json absent = json::array();
  for (const auto& [name, part] : all.parts) {
    answered.push_back({{"node", name}, {"epoch", number(part, "epoch")}, {"lineage", number(part, "lineage")}});
    for (const json& actor : list(part, "absent"))  // of that node
      if (actor.is_string())
        absent.push_back(name == all.asked ? actor.get<std::string>() : name + ": " + actor.get<std::string>());
  }
  for (const std::string& member : all.absent) absent.push_back(member);
  body["node"] = all.asked;
  body["epoch"] = highest(all, "epoch");
  body["lineage"] = highest(all, "lineage");
  body["age_ms"] = all.age_ms;
  body["answered"] = std::move(answered);
  body["absent"] = std::move(absent);
  return body;
}

}  // namespace gradtap::actors
