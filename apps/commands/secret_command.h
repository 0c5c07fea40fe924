// `gradtap secret`: makes the key of a job, or a token of a node, in a file that nobody else can read.
//
// secret() returns the process's exit code: 0 done, 1 the file is there already or cannot be written, 2 wrong usage.
#pragma once

#include <string>

#include <CLI/CLI.hpp>

namespace gradtap::commands {

struct SecretOptions {
  std::string action;  // new, token
  std::string file;
  std::string id = "key1";
};

void secret_flags(CLI::App* command, SecretOptions& options);
int secret(const SecretOptions& options);

}  // namespace gradtap::commands
