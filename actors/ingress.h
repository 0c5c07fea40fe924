// Ingress: the actor of one receive queue.
//
// Purpose: poll, decode, lend bursts of segments to assemblers. Threads: detached, one thread; the decoder and every
// burst belong to it; assemblers only read what is lent. Invariants: frames go back to the port when the last burst cut
// from them has come home; at most `credits` bursts are out. Failure behaviour: without credit for credit_wait_ms a
// live port's segments are dropped and counted (headers are still followed, so framing survives); a file is simply not
// polled meanwhile. Idle polling backs off up to idle_sleep_us_max: on software ports a spinning core starves the job
// beside it.
#pragma once

#include <functional>
#include <memory>

#include "actors/interfaces.h"
#include "common/clock.h"
#include "dataplane/decoder.h"
#include "dataplane/port.h"

namespace gradtap::actors {

struct IngressOptions {
  std::uint16_t queue = 0;
  std::shared_ptr<dataplane::Port> port;
  std::shared_ptr<const Clock> clock;
  std::function<std::unique_ptr<dataplane::Decoder>(std::uint16_t queue)> make_decoder;
  std::uint32_t credits = 1024;
  std::uint64_t credit_wait_ms = 20;
  std::uint32_t idle_sleep_us_max = 1000;
};

[[nodiscard]] IngressActor spawn_ingress(caf::actor_system& system, IngressOptions options);

}  // namespace gradtap::actors
