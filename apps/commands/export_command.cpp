#include <fmt/format.h>

#include "apps/commands/commands.h"
#include "apps/commands/node_client.h"
#include "apps/commands/output_file.h"

namespace gradtap::commands {

int export_state(const Common& common, std::uint64_t step, const std::string& file, bool optimizer) {
  const NodeClient client(common.endpoint, common.access, 10'000);
  const auto job = client.job_or_only(common.job);
  if (!job) return unusable(job.error());
  auto out = OutputFile::create(file);
  if (!out) return unusable(out.error());
  const auto done =
      client.download(fmt::format("/v1/jobs/{}/state?step={}&optimizer={}", *job, step, optimizer ? 1 : 0),
                      [&](std::string_view part) { return out->write(part); });
  if (!done || !out->good()) {
    fmt::print(stderr, "{}\n", out->good() ? done.error().text() : out->error().text());
    return 1;
  }
  const std::uint64_t bytes = out->bytes();
  if (const auto whole = out->commit(); !whole) return unusable(whole.error());
  fmt::print("step {} of job {}: {} bytes in {}\n", step, *job, bytes, file);
  return 0;
}

}  // namespace gradtap::commands
