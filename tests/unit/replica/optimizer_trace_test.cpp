// The decisive test of the recipes: torch itself writes traces, shards replay them, every bit is compared.
#include <doctest/doctest.h>
#include <sys/wait.h>

#include "tests/unit/replica/trace_replay.h"

namespace gradtap::replica {
namespace {

void run_traces(const char* capability, const Recipe& right, const Recipe& wrong) {
  TraceSource source(std::string("ATEN_CPU_CAPABILITY=") + capability, "optimizer_trace.py traces");
  Json head;
  std::size_t traces = 0;
  while (source.header(head)) {
    const auto name = head["name"].get<std::string>();
    CAPTURE(name);
    // Many shards and few; both builds of the kernels; and one job with the wrong recipe.
    Job blocks = make_job(head["attach"], 1, right, best_kernels());
    Job generic = make_job(head["attach"], kBlockElements, right, generic_kernels());
    Job other = make_job(head["attach"], kDefaultShardElements, wrong, best_kernels());
    const std::vector<Outcome> outcomes = replay(source, head, {&blocks, &generic, &other}, 2);
    CHECK_MESSAGE(outcomes[0].wrong == 0, name, ": first wrong step ", outcomes[0].first);
    CHECK_MESSAGE(outcomes[1].wrong == 0, name, ": first wrong step ", outcomes[1].first);
    CHECK_MESSAGE(outcomes[2].wrong != 0, name, ": the wrong recipe was not seen");
    check_roots(blocks, head["roots"], head["messages"].size(), 0);
    check_roots(generic, head["roots"], head["messages"].size(), 1);
    ++traces;
  }
  const int status = source.close();
  if (status == 77) {
    MESSAGE("SKIPPED optimizer traces (" << capability << "): torch is not installed");
    return;
  }
  CHECK(status == 0);
  CHECK(traces == 56);
}

}  // namespace

TEST_CASE("torch 1.13 with AVX2: the torch 1 form with fma, bit for bit") {
  run_traces("avx2", {false, true, false}, {false, false, false});
}

TEST_CASE("torch 1.13 without vector kernels: the torch 1 form without fma, bit for bit") {
  run_traces("default", {false, false, false}, {false, true, false});
}

}  // namespace gradtap::replica
