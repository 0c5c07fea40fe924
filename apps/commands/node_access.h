// NodeAccess: what the command line shows to a node: a token, or the signature of a job's key. Plain value.
#pragma once

#include <string>

namespace gradtap::commands {

struct NodeAccess {
  std::string token_file;   // empty: none
  std::string secret_file;  // empty: none; where both are given, the token is shown
};

}  // namespace gradtap::commands
