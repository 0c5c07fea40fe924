// `gradtap nodes`: who belongs to the cluster, and the commands that change it (docs/operations.md, Nodes).
//
// Every command may be repeated: what is done already is not done again, and one whose command line died is taken up
// where it stood. Exit codes: those of commands.h; 1 also when the cluster refuses, or --wait-s passes.
#pragma once

#include <string>

#include "apps/commands/commands.h"

namespace gradtap::commands {

struct NodesOptions {
  std::string action;  // add, drain, remove, replace
  std::string name;
  std::string link;
  std::string http;
  std::string domain;
  unsigned capacity = 0;
  bool force = false;
  bool check = false;
  unsigned wait_s = 3600;  // until shards are where they belong; 0: do not wait
};

int nodes_list(const Common& common);
int nodes_change(const Common& common, const NodesOptions& options);

}  // namespace gradtap::commands
