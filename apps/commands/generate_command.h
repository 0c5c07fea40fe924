// `gradtap generate`: the RoCE traffic of NCCL jobs, into a capture file or out of an interface.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace gradtap::commands {

struct GenerateOptions {
  // Where to: a file, or an interface with requests from a socket or file.
  std::string file;
  std::string live_interface;
  std::string from;  // a Unix socket to listen on, a file, or - for standard input
  bool from_file = false;
  std::uint64_t bytes_per_second = 100'000'000;
  std::uint64_t max_request_bytes = 1ULL << 30;

  std::uint32_t ranks = 2;
  std::uint32_t channels = 1;
  std::string nccl = "2.19.3";
  std::string hosts;  // comma-separated; empty: invented
  bool v6 = false;
  std::uint32_t mtu = 1024;
  std::uint64_t ll_max_bytes = 65536;
  std::uint32_t simple_threads = 512;
  std::uint32_t first_qpn = 0x100;
  std::uint32_t first_psn = 0;
  std::string style = "write-imm";
  std::string manner = "ring";
  std::uint32_t queue_pairs = 1;
  bool cut_over_queue_pairs = false;
  double gigabits = 100;

  std::uint32_t jobs = 1;
  std::string dtype = "float32";
  std::vector<std::uint64_t> elements{5000};
  std::uint64_t steps = 1;
  bool ddp_start = false;
  std::string reduced;       // file of reduced values, all steps after one another
  std::string dump_reduced;  // where to write those that were drawn
  std::uint64_t seed = 1;

  double retransmit = 0;
  double drop = 0;
  std::uint64_t drop_burst = 1;
  double duplicate = 0;
  double reorder = 0;
  double side = 0;
  std::string wrap = "none";
  bool json = false;
};

int generate(const GenerateOptions& options);

}  // namespace gradtap::commands
