// All recipes against exact rational arithmetic: also the forms that the installed torch does not use.
#include <doctest/doctest.h>
#include <sys/wait.h>

#include "tests/unit/replica/trace_replay.h"

namespace gradtap::replica {

TEST_CASE("every recipe equals exact arithmetic with one rounding per operation, and no other recipe does (C17)") {
  TraceSource source("", "exact_optimizers.py");
  Json head;
  std::size_t traces = 0;
  while (source.header(head)) {
    const auto name = head["name"].get<std::string>();
    CAPTURE(name);
    const std::optional<Recipe> right = recipe_of(head["recipe"].get<std::string>());
    REQUIRE(right);
    // One shard a block (the last tensor's fused tail then lies in a piece of its own), and one shard for all.
    std::vector<Job> jobs;
    jobs.push_back(make_job(head["attach"], 1, *right, best_kernels()));
    jobs.push_back(make_job(head["attach"], kDefaultShardElements, *right, generic_kernels()));
    const OptimizerSpec optimizer = jobs[0].schema.optimizer;
    const bool momentum = optimizer.groups[0].momentum != 0;
    std::vector<Recipe> others;
    for (const Recipe& other : all_recipes())
      if (canonical(other, optimizer.type, momentum) != canonical(*right, optimizer.type, momentum)) {
        others.push_back(other);
        jobs.push_back(make_job(head["attach"], kDefaultShardElements, other, best_kernels()));
      }
    std::vector<Job*> pointers;
    for (Job& job : jobs) pointers.push_back(&job);
    const std::vector<Outcome> outcomes = replay(source, head, pointers, 2);
    CHECK_MESSAGE(outcomes[0].wrong == 0, name, ": first wrong step ", outcomes[0].first);
    CHECK_MESSAGE(outcomes[1].wrong == 0, name, ": first wrong step ", outcomes[1].first);
    for (std::size_t i = 0; i < others.size(); ++i)
      CHECK_MESSAGE(outcomes[2 + i].wrong != 0, name, ": ", recipe_name(others[i]), " was not told apart");
    ++traces;
  }
  CHECK(source.close() == 0);
  CHECK(traces == 27);
}

}  // namespace gradtap::replica
