#include "actors/transport.h"

#include "dataplane/gloo_decoder.h"
#include "dataplane/gloo_ring.h"
#include "dataplane/nccl_decoder.h"
#include "dataplane/nccl_ring.h"

namespace gradtap::actors {
namespace {

Transport gloo_transport(const TapSection& tap, std::uint32_t world,
                         const std::shared_ptr<dataplane::FlowDirectory>& directory,
                         const std::shared_ptr<const Clock>& clock, const std::shared_ptr<MemoryLedger>& memory) {
  dataplane::GlooDecoderConfig config;
  config.memory = memory;
  config.checksum = tap.l4_checksum == L4Checksum::kRequired ? dataplane::ChecksumPolicy::kRequired
                                                             : dataplane::ChecksumPolicy::kOffload;
  config.total_reorder_bytes = tap.reorder_total_bytes;
  config.flow.reorder_window_bytes = tap.reorder_window_bytes;
  config.flow.reorder_grace_ms = tap.reorder_grace_ms;
  config.flow.reorder_grace_packets = tap.reorder_grace_packets;
  Transport transport;
  transport.direction = dataplane::RingDirection::kToRankBefore;
  transport.schedule = std::make_shared<const dataplane::GlooRing>(world);
  transport.make_decoder = [config, directory, clock](std::uint16_t queue) {
    return std::make_unique<dataplane::GlooDecoder>(config, *directory, *clock, queue);
  };
  return transport;
}

Result<Transport> nccl_transport(const TapSection& tap, const JobSection& job,
                                 const std::shared_ptr<dataplane::FlowDirectory>& directory,
                                 const std::shared_ptr<const Clock>& clock,
                                 const std::shared_ptr<MemoryLedger>& memory) {
  const auto layout = dataplane::nccl_layout_of(job.nccl.version);
  if (!layout)
    return fail(ErrorCode::kConfigImpossibleValue, "this version of NCCL is not known", "job.nccl_version",
                "2.8 or later, as in 2.19.3", job.nccl.version, "NCCL_DEBUG=VERSION in the job prints it");
  if (tap.queues != 1)
    return fail(ErrorCode::kUnsupported, "transport nccl reads one receive queue", "tap.queues", "1",
                std::to_string(tap.queues), "both directions of a queue pair must reach the same queue");
  if (job.nccl.completing_send)
    return fail(ErrorCode::kUnsupported, "completing sends are understood by gradtap inspect only",
                "job.nccl_completing_send", "false", "true", "mirror both directions instead");
  dataplane::NcclDecoderConfig config;
  config.table.memory = memory;
  config.comm.tuning.layout = *layout;
  config.comm.tuning.ranks = static_cast<std::uint32_t>(job.endpoints.size());
  config.comm.tuning.channels = static_cast<std::uint32_t>(job.nccl.channels);
  config.comm.tuning.simple_threads = static_cast<std::uint32_t>(job.nccl.threads);
  config.comm.tuning.ll_max_bytes = job.nccl.ll_bytes_max;
  config.icrc =
      tap.l4_checksum == L4Checksum::kRequired ? dataplane::IcrcPolicy::kRequired : dataplane::IcrcPolicy::kIgnored;
  config.table.total_reorder_bytes = tap.reorder_total_bytes;
  config.table.flow.reorder_window_bytes = tap.reorder_window_bytes;
  config.table.flow.reorder_grace_ms = tap.reorder_grace_ms;
  config.table.flow.reorder_grace_packets = tap.reorder_grace_packets;
  auto ring = dataplane::NcclRing::make(config.comm.tuning);
  if (!ring) return std::unexpected(ring.error());
  Transport transport;
  transport.direction = dataplane::RingDirection::kToRankBehind;
  transport.schedule = std::make_shared<const dataplane::NcclRing>(std::move(*ring));
  transport.make_decoder = [config, directory, clock](std::uint16_t) {
    return std::make_unique<dataplane::NcclDecoder>(config, *directory, *clock);
  };
  return transport;
}

}  // namespace

Result<Transport> make_transport(const TapSection& tap, const JobSection& job,
                                 const std::shared_ptr<dataplane::FlowDirectory>& directory,
                                 const std::shared_ptr<const Clock>& clock,
                                 const std::shared_ptr<MemoryLedger>& memory) {
  if (job.transport == WireTransport::kNccl) return nccl_transport(tap, job, directory, clock, memory);
  return gloo_transport(tap, static_cast<std::uint32_t>(job.endpoints.size()), directory, clock, memory);
}

}  // namespace gradtap::actors
