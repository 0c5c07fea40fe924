#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include "apps/commands/commands.h"
#include "apps/commands/node_client.h"

namespace gradtap::commands {

// Writes FILE.partial, syncs it, renames it: FILE is whole or not there.
int export_state(const Common& common, std::uint64_t step, const std::string& file, bool optimizer) {
  const NodeClient client(common.endpoint, 10'000);
  const auto job = client.job_or_only(common.job);
  if (!job) return unusable(job.error());
  const std::string partial = file + ".partial";
  std::FILE* out = std::fopen(partial.c_str(), "wb");
  if (out == nullptr)
    return unusable({ErrorCode::kFileUnwritable, "cannot write the file", partial, {}, std::strerror(errno), {}});
  std::uint64_t bytes = 0;
  bool written = true;
  const auto done = client.download(
      fmt::format("/v1/jobs/{}/state?step={}&optimizer={}", *job, step, optimizer ? 1 : 0), [&](std::string_view part) {
        written = std::fwrite(part.data(), 1, part.size(), out) == part.size();
        bytes += part.size();
        return written;
      });
  written = std::fflush(out) == 0 && written;
  written = fsync(fileno(out)) == 0 && written;
  std::fclose(out);
  std::error_code code;
  if (!done || !written) {
    std::filesystem::remove(partial, code);
    fmt::print(stderr, "{}\n",
               written ? done.error().text() : fmt::format("E106 cannot write {}: is the disk full?", partial));
    return 1;
  }
  std::filesystem::rename(partial, file, code);
  if (code) return unusable({ErrorCode::kFileUnwritable, "cannot rename " + partial, file, {}, code.message(), {}});
  fmt::print("step {} of job {}: {} bytes in {}\n", step, *job, bytes, file);
  return 0;
}

}  // namespace gradtap::commands
