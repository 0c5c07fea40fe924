// ClusterAnswer: what the nodes of a cluster said to one question, merged into one answer (PROTOCOLS 5.8).
//
// Purpose: one list of the questions that any node answers for all, each with how its parts become a whole. What a node
// says of itself counts before what others say of it, so that the answer is the same whichever node is asked; of a node
// that did not answer, the newest that others know is shown. Pure; any thread. Invariants: the answer carries the node
// asked, the newest epoch and lineage, how old what is said may be, who answered and who did not. Failure behaviour: a
// part is another node's word and hostile: what is missing in it or of another type is left out, never thrown at.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

namespace gradtap::actors {

struct ClusterParts {
  std::string asked;                            // the node that merges
  std::map<std::string, nlohmann::json> parts;  // by node; that of `asked` among them
  std::vector<std::string> absent;              // members that did not answer in time
  std::uint64_t age_ms = 0;                     // since the question went out: nothing said is older
};

struct ClusterQuestion {
  std::string_view name;
  bool everywhere;          // false: the node that is asked answers alone
  std::size_t numbers_min;  // of its argument, N or N:M
  std::size_t numbers_max;
  nlohmann::json (*merge)(const ClusterParts& parts);
};

[[nodiscard]] std::span<const ClusterQuestion> cluster_questions();
// Null: there is no such question.
[[nodiscard]] const ClusterQuestion* cluster_question(std::string_view name);

[[nodiscard]] nlohmann::json merge_answer(const ClusterQuestion& question, const ClusterParts& parts);

inline constexpr std::size_t kMergedEventsMax = 5000;  // the newest

}  // namespace gradtap::actors
