// Replays traces (see optimizer_trace.py) through shards and counts the elements that differ.
#pragma once

#include <cstring>
#include <vector>

#include <doctest/doctest.h>

#include "common/ids.h"
#include "replica/schema_json.h"
#include "replica/shard.h"
#include "replica/step_message.h"
#include "tests/unit/replica/trace_source.h"

namespace gradtap::replica {

struct Job {
  Schema schema;
  ShardMap map;
  std::vector<Shard> shards;
  std::vector<std::size_t> starts;  // of each parameter in a dump
  std::size_t total = 0;
};

inline Job make_job(const Json& attach, std::uint64_t shard_elements, const Recipe& recipe, const Kernels& kernels) {
  Result<Schema> schema = parse_schema(attach);
  REQUIRE_MESSAGE(schema, schema.error().text());
  Result<ShardMap> map = ShardMap::cut(*schema, shard_elements);
  REQUIRE(map);
  Job job{*schema, *map, {}, {}, 0};
  for (const ParameterSpec& parameter : job.schema.parameters) {
    job.starts.push_back(job.total);
    job.total += parameter.numel;
  }
  for (const ShardRange& range : job.map.shards()) {
    Result<Shard> shard = Shard::create(job.schema, range, recipe, kernels);
    REQUIRE(shard);
    job.shards.push_back(std::move(*shard));
  }
  return job;
}

// Number of elements of one kind that differ from the dump, over all shards.
inline std::size_t differences(const Job& job, std::size_t kind, const std::vector<float>& dump) {
  std::size_t count = 0;
  for (const Shard& shard : job.shards)
    for (const Piece& piece : shard.range().pieces) {
      const float* const ours = shard.kind(kind).data() + piece.shard_offset;
      const float* const theirs = dump.data() + job.starts[piece.parameter] + piece.begin;
      if (std::memcmp(ours, theirs, piece.count * 4) == 0) continue;
      for (std::uint64_t i = 0; i < piece.count; ++i) count += std::memcmp(ours + i, theirs + i, 4) != 0;
    }
  return count;
}

inline void check_roots(const Job& job, const Json& roots, StepNumber step, std::size_t form) {
  for (const Json& root : roots) {
    if (root[0] != step) continue;
    std::vector<Sha256> digests;
    for (std::size_t s = 0; s < job.shards.size(); ++s) {
      digests.push_back(job.shards[s].digest().sha);
      REQUIRE(to_hex(digests.back()) == root[1 + form][0].at(s).get<std::string>());
    }
    REQUIRE(digests.size() == root[1 + form][0].size());
    CHECK(to_hex(state_root(digests)) == root[1 + form][1].get<std::string>());
  }
}

struct Outcome {
  std::size_t wrong = 0;  // elements, over all steps and kinds
  StepNumber first = 0;   // the first step with a wrong element
};

// Replays one trace in several jobs at once (the pipe is read once).
inline std::vector<Outcome> replay(TraceSource& source, const Json& head, std::vector<Job*> jobs, std::size_t checked) {
  std::vector<Outcome> outcomes(jobs.size());
  const std::vector<float> start = source.floats(jobs[0]->total);
  for (Job* const job : jobs)
    for (Shard& shard : job->shards) {
      for (const Piece& piece : shard.range().pieces)
        REQUIRE(shard.load_range(piece.parameter, piece.begin, 0,
                                 as_bytes(start.data() + job->starts[piece.parameter] + piece.begin, piece.count)));
      REQUIRE(shard.finish_baseline(0));
    }
  for (StepNumber step = 1; step <= head["messages"].size(); ++step) {
    const Result<StepMessage> message = parse_step_message(head["messages"][step - 1], jobs[0]->schema);
    REQUIRE_MESSAGE(message, message.error().text());
    const std::vector<float> gradient = source.floats(jobs[0]->total);
    std::vector<std::vector<float>> dumps;
    for (std::size_t k = 0; k <= jobs[0]->schema.optimizer.kinds.size(); ++k)
      dumps.push_back(source.floats(jobs[0]->total));
    REQUIRE(source.ok());
    for (std::size_t j = 0; j < jobs.size(); ++j) {
      for (Shard& shard : jobs[j]->shards) {
        std::vector<const float*> pieces;
        for (const Piece& piece : shard.range().pieces)
          pieces.push_back(gradient.data() + jobs[j]->starts[piece.parameter] + piece.begin);
        const Status applied = shard.apply(message->scalars, {pieces});
        REQUIRE_MESSAGE(applied, applied.error().text());
        for (std::size_t i = 0; i < pieces.size() && j < checked; ++i) {
          const std::uint32_t parameter = shard.range().pieces[i].parameter;
          REQUIRE(shard.piece_states()[i].present == head["presence"][step - 1][parameter]);
          REQUIRE(shard.piece_states()[i].counter == head["counters"][step - 1][parameter]);
        }
      }
      const std::size_t before = outcomes[j].wrong;
      for (std::size_t k = 0; k < dumps.size(); ++k) outcomes[j].wrong += differences(*jobs[j], k, dumps[k]);
      if (before == 0 && outcomes[j].wrong != 0) outcomes[j].first = step;
    }
  }
  return outcomes;
}

}  // namespace gradtap::replica
