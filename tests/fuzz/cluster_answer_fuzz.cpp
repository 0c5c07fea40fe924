// What three nodes answer to one question, merged: any text of theirs ends in one answer that can be written.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "actors/cluster_answer.h"
#include "common/json_text.h"

using namespace gradtap;
using namespace gradtap::actors;

namespace {

void require(bool holds) {
  if (!holds) std::abort();
}

}  // namespace

// Byte 0: the question; then the answers of a, b and c, a line break between them. An empty one: it did not answer.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  std::string_view rest(reinterpret_cast<const char*>(data) + 1, size - 1);
  ClusterParts all{"a", {}, {}, 7};
  for (const char* const name : {"a", "b", "c"}) {
    const std::size_t end = rest.find('\n');
    const std::string_view text = rest.substr(0, end);
    rest.remove_prefix(end == std::string_view::npos ? rest.size() : end + 1);
    // As the membership takes them: what is no object is no answer.
    nlohmann::json body = parse_json_text(text);
    if (body.is_object())
      all.parts[name] = std::move(body);
    else
      all.absent.emplace_back(name);
  }
  const auto questions = cluster_questions();
  const ClusterQuestion& question = questions[data[0] % questions.size()];
  const nlohmann::json merged = merge_answer(question, all);
  require(merged.is_object() && merged["node"] == "a" && merged["age_ms"] == 7);
  require(merged["answered"].size() == all.parts.size() && merged["absent"].size() >= all.absent.size());
  require(!merged.contains("events") || !merged["events"].is_array() || question.name == "status" ||
          merged["events"].size() <= kMergedEventsMax);
  require(!merged.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace).empty());
  return 0;
}
