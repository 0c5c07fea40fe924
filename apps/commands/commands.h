// The commands of `gradtap`, one function each; every one returns the process's exit code.
//
// Exit codes: 0 done; 1 the answer is a failure (an incomplete capture, a missing step); 2 wrong usage or a node that
// does not answer.
#pragma once

#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "apps/commands/node_access.h"
#include "common/error.h"

namespace gradtap::commands {

struct Common {
  std::string endpoint = "http://127.0.0.1:7700";
  std::string job;  // empty: the node's only job
  bool json = false;
  NodeAccess access;
};

// Says on standard error what is wrong; returns exit code 2.
inline int unusable(const Error& error) {
  std::fputs((error.text() + "\n").c_str(), stderr);
  return 2;
}

int status(const Common& common, bool watch, unsigned interval_ms);
int shards(const Common& common);
int placement(const Common& common);
int version(const Common& common, std::uint64_t shard, std::uint64_t step);
int limits(const Common& common);
int epoch(const Common& common);
int digests(const Common& common, std::uint64_t from, std::uint64_t to);
int events(const Common& common);
int export_state(const Common& common, std::uint64_t step, const std::string& file, bool optimizer);

struct InspectOptions {
  std::string file;
  std::string dump_directory;        // empty: no dump
  std::vector<std::string> buckets;  // RoCE: ELEMENTS:DTYPE of the all-reduces to look for
  std::string nccl;                  // RoCE: version, where several layouts fit
  bool completing_send = false;      // RoCE: the trainer sends the chunk that its own link lacks
  std::string ranks;                 // comma-separated addresses in rank order; empty: addresses in ascending order
  bool json = false;
  bool required_checksums = false;
};
int inspect(const InspectOptions& options);

}  // namespace gradtap::commands
