// `gradtap doctor`: whether this machine can be the checkpoint node that a configuration describes.
//
// Run on the node's machine, before or beside the node; changes nothing but one file beside the store and one in the
// object directory, both removed again. Exit codes: 0 nothing is wrong (warnings are possible), 1 something is, 2 the
// configuration cannot be read.
#pragma once

#include <string>

namespace gradtap::commands {

struct DoctorOptions {
  std::string config;
  unsigned seconds = 3;  // of listening to the mirror
  bool json = false;
};

int doctor(const DoctorOptions& options);

}  // namespace gradtap::commands
