// The commands about recovery points; every one returns the process's exit code.
//
// Exit codes: 0 done, and the newest point is whole; 1 the answer is no: no valid point, or damage was found; 2 it
// could not be asked. What is not taken is named on standard error, with its reason.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "apps/commands/node_access.h"

namespace gradtap::commands {

struct PointOptions {
  std::string source;  // a directory, or http://host:port of a node
  std::string job;     // empty: the source's only job
  std::optional<std::uint64_t> lineage;
  std::optional<std::uint64_t> step;
  bool json = false;
  NodeAccess access;  // where the source is a node
};

int points_list(const PointOptions& options);
int points_show(const PointOptions& options);
int points_verify(const PointOptions& options, bool all);
int points_side(const PointOptions& options, std::uint32_t rank, const std::string& file);
// Holds a point of a directory by a lease until standard input is closed or a signal comes.
int points_hold(const PointOptions& options, const std::string& holder, unsigned renew_s);
struct ExportOptions {
  std::string file;
  std::string format;
  bool optimizer = false;
  unsigned threads = 0;         // shards rebuilt at once; 0: the cores, at most kExportThreadsDefault
  std::uint64_t memory_mb = 0;  // of rebuilt shards kept until they are written; 0: a quarter of what is free
};
inline constexpr unsigned kExportThreadsDefault = 8;
int export_point(const PointOptions& options, const ExportOptions& wanted);
int lineages(const PointOptions& options);

}  // namespace gradtap::commands
