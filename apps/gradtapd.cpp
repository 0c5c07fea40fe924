// gradtapd: the node daemon. Wiring only.
//
// Exit codes: 0 ended by SIGTERM or SIGINT (or --check found nothing wrong); 2 wrong configuration, certificates among
// it; 3 could not start; 4 an actor died; 5 the node was taken out of its cluster. SIGHUP: look for new certificates
// now.
#include <csignal>
#include <cstdio>
#include <cstdlib>

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <unistd.h>

#include "actors/node.h"
#include "common/cluster_config.h"
#include "common/config.h"
#include "common/log.h"

namespace {
volatile std::sig_atomic_t g_stop = 0;
volatile std::sig_atomic_t g_reload = 0;
void on_signal(int signal) {
  (signal == SIGHUP ? g_reload : g_stop) = 1;
}
}  // namespace

int main(int argc, char** argv) {
  CLI::App app{"gradtapd: the gradtap node daemon"};
  std::string file;
  bool check = false;
  app.add_option("--config", file, "node configuration (TOML)")->required();
  app.add_flag("--check", check, "read the configuration, say what is wrong with it, and end");
  CLI11_PARSE(app, argc, argv);

  const auto config = gradtap::load_config(file);
  if (!config) {
    fmt::print(stderr, "{}\n", config.error().text());
    return 2;
  }
  if (const auto possible = gradtap::actors::check_node_config(*config); !possible) {
    fmt::print(stderr, "{}: {}\n", file, possible.error().text());
    return 2;
  }
  const auto cluster = gradtap::cluster_of(*config, file);
  if (!cluster) {
    fmt::print(stderr, "{}\n", cluster.error().text());
    return 2;
  }
  if (const auto secured = gradtap::actors::check_node_security(*config, *cluster); !secured) {
    fmt::print(stderr, "{}: {}\n", file, secured.error().text());
    return 2;
  }
  if (check) {
    fmt::print("{}: no error found\n", file);
    return 0;
  }
  gradtap::log_init(config->node.log_level, config->node.name);
  struct sigaction action{};
  action.sa_handler = on_signal;
  sigaction(SIGTERM, &action, nullptr);
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGHUP, &action, nullptr);
  std::signal(SIGPIPE, SIG_IGN);

  auto node = gradtap::actors::Node::start(*config, *cluster);
  // Whoever is not a member yet waits for the epoch that names it.
  if (!node && node.error().code == gradtap::ErrorCode::kNotAMember) {
    gradtap::log_warn("waiting to become a member", {{"error", node.error().text()}});
    while (!node && node.error().code == gradtap::ErrorCode::kNotAMember && g_stop == 0) {
      ::usleep(500'000);
      node = gradtap::actors::Node::start(*config, *cluster);
    }
    if (g_stop != 0 && !node) return 0;
  }
  if (!node) {
    gradtap::log_error("the node could not start", {{"error", node.error().text()}});
    return 3;
  }
  gradtap::log_info("ready", {{"listen_port", (*node)->http_port()}});
  while (g_stop == 0) {
    if (const auto death = (*node)->wait(200)) {
      if ((*node)->left()) {
        gradtap::log_warn("ending", {{"cause", *death}});
        (*node)->stop();
        return 5;
      }
      gradtap::log_error("ending", {{"cause", *death}});
      // No orderly stop: whoever died may be waited for without end. What is durable stays durable.
      std::_Exit(4);
    }
    if (g_reload == 0) continue;
    g_reload = 0;
    (*node)->reload_certificates();
  }
  gradtap::log_info("stopping");
  (*node)->stop();
  return 0;
}
