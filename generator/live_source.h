// LiveSource: a training script's collectives on the wire, as they are asked for.
//
// Purpose: the loop between a request stream and a network interface: each request becomes the frames of R ranks, then
// its sequence number is written back (eight bytes). The script may ask for another mirror port and wrapping, and for a
// mirror that is blind for some frames. Ownership: owns the sockets it sends on. Threads: one, run() blocks until the
// stream ends. Failure behaviour: the first request that cannot be served ends it with a named error.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "common/error.h"
#include "generator/request_stream.h"
#include "generator/traffic.h"

namespace gradtap::generator {

struct LiveConfig {
  TrafficConfig traffic;  // its job, faults and wrapping
  std::string interface;
};

struct LiveReport {
  std::uint64_t requests = 0;
  std::uint64_t frames = 0;
  std::uint64_t blinded = 0;
};

// Opens the way out to an interface; tests give their own.
using OpenPort = std::function<Result<std::unique_ptr<FrameSink>>(const std::string& interface)>;

class LiveSource {
 public:
  [[nodiscard]] static Result<std::unique_ptr<LiveSource>> create(const LiveConfig& config, OpenPort open);

  // `answer` is called with the sequence number of each request once its frames have left; false ends the loop.
  [[nodiscard]] Status run(RequestStream& requests, const std::function<bool(std::uint64_t sequence)>& answer);
  [[nodiscard]] LiveReport report() const;

 private:
  // The end of the line: the port that frames leave by now, and how many the mirror still does not see.
  class Exit final : public FrameSink {
   public:
    void frame(std::uint64_t time_ns, ByteSpan bytes, const FrameNote& note) override;
    std::unique_ptr<FrameSink> port;
    std::uint64_t blind_left = 0;
    std::uint64_t blinded = 0;
    std::uint64_t frames = 0;
  };

  LiveSource(const LiveConfig& config, NcclJob job, OpenPort open);
  [[nodiscard]] Status serve(const Request& request);

  LiveConfig config_;
  NcclJob job_;
  OpenPort open_;
  Exit exit_;
  FabricStages stages_;
  std::uint64_t requests_ = 0;
};

}  // namespace gradtap::generator
