#include "generator/live_source.h"

#include <string>
#include <utility>
#include <vector>

namespace gradtap::generator {
namespace {

constexpr std::uint8_t kWrappings = static_cast<std::uint8_t>(Wrapping::kVxlan) + 1;
constexpr std::size_t kMaxInterfaceName = 15;

Error malformed(std::string what, std::string expected) {
  return Error{ErrorCode::kRequestMalformed, std::move(what), {}, std::move(expected), {}, "see docs/generate.md"};
}

std::vector<RocePath> first_path(const JobConfig& config) {
  return {job_connections(config).front().data};
}

}  // namespace

void LiveSource::Exit::frame(std::uint64_t time_ns, ByteSpan bytes, const FrameNote& note) {
  if (blind_left > 0) {
    blind_left -= 1;
    blinded += 1;
    return;
  }
  frames += 1;
  port->frame(time_ns, bytes, note);
}

LiveSource::LiveSource(const LiveConfig& config, NcclJob job, OpenPort open)
    : config_(config),
      job_(std::move(job)),
      open_(std::move(open)),
      stages_(config_.traffic, first_path(config_.traffic.job), exit_) {}

Result<std::unique_ptr<LiveSource>> LiveSource::create(const LiveConfig& config, OpenPort open) {
  auto job = NcclJob::make(config.traffic.job);
  if (!job) return std::unexpected(job.error());
  auto port = open(config.interface);
  if (!port) return std::unexpected(port.error());
  std::unique_ptr<LiveSource> source(new LiveSource(config, std::move(*job), std::move(open)));
  source->exit_.port = std::move(*port);
  return source;
}

Status LiveSource::serve(const Request& request) {
  const ByteSpan payload = request.payload;
  const std::uint32_t ranks = config_.traffic.job.tuning.ranks;
  FrameSink& fabric = stages_.front();
  switch (request.kind) {
    case RequestKind::kAllReduce:
      return job_.all_reduce(request.type, payload, {}, fabric);
    case RequestKind::kBroadcast:
      return job_.broadcast(request.root, payload, fabric);
    case RequestKind::kAllGather: {
      if (payload.size() % ranks != 0)
        return std::unexpected(
            malformed("the blocks of an all-gather must be equally long", std::to_string(ranks) + " blocks"));
      std::vector<ByteSpan> blocks;
      for (std::uint32_t rank = 0; rank < ranks; ++rank)
        blocks.push_back(payload.subspan(rank * (payload.size() / ranks), payload.size() / ranks));
      return job_.all_gather(blocks, fabric);
    }
    case RequestKind::kSend:
      return job_.send(request.root, request.target, payload, fabric);
    case RequestKind::kMirror: {
      if (payload.size() < 2 || payload.size() > 1 + kMaxInterfaceName || payload[0] >= kWrappings)
        return std::unexpected(malformed("this names no wrapping and interface", "a byte and a name of 1 to 15 bytes"));
      auto port = open_(std::string(payload.begin() + 1, payload.end()));
      if (!port) return std::unexpected(port.error());
      exit_.port = std::move(*port);
      stages_.change(static_cast<Wrapping>(payload[0]));
      return {};
    }
    case RequestKind::kBlind:
      if (payload.size() != sizeof(std::uint64_t))
        return std::unexpected(malformed("how many frames is a number of eight bytes", "8 bytes"));
      exit_.blind_left = load_le<std::uint64_t>(payload.data());
      return {};
  }
  return std::unexpected(malformed("the request's kind is unknown", "1 to 6"));
}

Status LiveSource::run(RequestStream& requests, const std::function<bool(std::uint64_t sequence)>& answer) {
  for (;;) {
    const auto request = requests.next();
    if (!request) return std::unexpected(request.error());
    if (!*request) return {};
    GRADTAP_TRY(serve(**request));
    stages_.finish();
    requests_ += 1;
    if (!answer((*request)->sequence)) return {};
  }
}

LiveReport LiveSource::report() const {
  return {requests_, exit_.frames, exit_.blinded};
}

}  // namespace gradtap::generator
