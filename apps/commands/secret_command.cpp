#include "apps/commands/secret_command.h"

#include <cstdio>

#include <fmt/format.h>

#include "common/secret_file.h"

namespace gradtap::commands {

void secret_flags(CLI::App* command, SecretOptions& options) {
  command->require_subcommand(1);
  const auto add = [&](const char* name, const char* help) {
    auto* made = command->add_subcommand(name, help);
    made->add_option("file", options.file, "the file to make, of mode 0600; one that is there is not replaced")
        ->required();
    made->callback([&options, name] { options.action = name; });
    return made;
  };
  add("new", "a key of a job: job.secret_file of its nodes, GRADTAP_SECRET_FILE of its trainer")
      ->add_option("--id", options.id, "name of the key, which is no secret")
      ->capture_default_str();
  add("token", "a token of a node: security.read_token_file or security.admin_token_file");
}

int secret(const SecretOptions& options) {
  const Status made =
      options.action == "new" ? create_secret_file(options.file, options.id) : create_token_file(options.file);
  if (!made) {
    std::fputs((made.error().text() + "\n").c_str(), stderr);
    return made.error().code == ErrorCode::kBadText ? 2 : 1;
  }
  fmt::print("{}: made, readable by its owner only\n", options.file);
  return 0;
}

}  // namespace gradtap::commands
