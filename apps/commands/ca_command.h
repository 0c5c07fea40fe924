// `gradtap ca`: the authority of a cluster, the certificates that it issues, and what a file holds.
//
// ca() returns the process's exit code: 0 done, 1 not done because of what is there, 2 it could not be asked.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

namespace gradtap::commands {

struct CaOptions {
  std::string action;  // init, issue, rotate, show
  std::string folder;
  std::vector<std::string> names;      // nodes
  std::vector<std::string> addresses;  // of the only node that is named
  std::string cluster_file;            // its members are issued for, with their addresses
  std::vector<std::string> files;      // to show
  std::string phase;                   // of a change of authority: trust, switch, retire
  std::uint64_t days = 0;              // 0: 3650 for an authority, 365 for a node
  bool force = false;
  bool json = false;
};

void ca_flags(CLI::App* command, CaOptions& options);
int ca(const CaOptions& options);

}  // namespace gradtap::commands
