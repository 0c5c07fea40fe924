// Finding: one line of `gradtap doctor`: what was looked at, what was seen, and what to do about it. Plain values.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace gradtap::commands {

enum class Verdict : std::uint8_t { kOk, kSkipped, kWarning, kWrong };

struct Finding {
  Verdict verdict = Verdict::kOk;
  std::string check;   // what was looked at, one word
  std::string seen;    // with figures
  std::string remedy;  // empty when there is nothing to do
};

using Findings = std::vector<Finding>;

}  // namespace gradtap::commands
