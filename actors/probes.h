// Probes: what programs that watch a node ask of it (GET /metrics, /healthz, /readyz), from its own status.
//
// Pure; any thread. `status`: this node's part of the answer to "status". /healthz is 200 while the process lives and
// all of its actors answer. /readyz is 200 while the node is a member that does its part: it has the side values of the
// job, its shards are here, and nothing that it could mend itself holds the job up; 503 names the reasons. A node that
// waits for a trainer is ready. Failure behaviour: a status that is none is 503.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "actors/http_answer.h"

namespace gradtap::actors {

[[nodiscard]] HttpAnswer metrics_answer(const nlohmann::json& status);
[[nodiscard]] HttpAnswer health_answer(const nlohmann::json& status);
[[nodiscard]] HttpAnswer readiness_answer(const nlohmann::json& status);

}  // namespace gradtap::actors
