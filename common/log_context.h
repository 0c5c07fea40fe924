// LogContext: what every line of the log says besides its own fields: the job and the lineage in force.
//
// Threads: any (one lock, short; logging is not for hot paths). Invariant: a field that a line has itself is not added.
// Failure: none.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace gradtap {

// Replaces the fields (key, value) of before.
void set_log_context(std::vector<std::pair<std::string, std::string>> fields);

// The line's text with the context's fields after its own.
[[nodiscard]] std::string with_log_context(std::string line);

}  // namespace gradtap
