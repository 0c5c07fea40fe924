#include "link/bulk_server.h"

#include <algorithm>
#include <exception>

#include <fmt/format.h>

#include "schema/link_codec.h"

namespace gradtap::link {
namespace {

constexpr std::uint64_t kCreditsMax = 1u << 20;
constexpr std::uint64_t kLateCreditsMax = 64;

std::unexpected<Error> unexpected_frame(FrameType found, std::string_view expected) {
  return fail(ErrorCode::kPeerMalformed, "a peer sent a frame out of turn", {}, std::string(expected),
              std::string(frame_type_name(found)));
}

class Serving {
 public:
  Serving(SocketStream& stream, const std::string& peer, const BulkHandler& handler, const LinkLimits& limits,
          LinkCounters& counters, MemoryLedger& memory)
      : stream_(stream), peer_(peer), handler_(handler), limits_(limits), counters_(counters), memory_(memory) {}

  // One request and its answer. An error ends the connection.
  Status serve_one() {
    Result<Frame> frame = stream_.read_frame(after_ms(limits_.idle_timeout_ms));
    // Credits for the end of the answer before may come when that has been sent.
    for (std::uint64_t late = 0; frame && frame->type == FrameType::kCredit && late < kLateCreditsMax; ++late)
      frame = stream_.read_frame(after_ms(limits_.idle_timeout_ms));
    if (!frame) return std::unexpected<Error>(frame.error());
    if (frame->type != FrameType::kRequest) return unexpected_frame(frame->type, "request");
    auto header = schema::decode_link_request(frame->header);
    if (!header) return std::unexpected<Error>(header.error());
    counters_.requests.add();
    if (header->body_bytes > limits_.body_bytes_max) {
      counters_.refused_large.add();
      // Unread bytes of the body would follow: the connection cannot go on.
      const Error error{ErrorCode::kRequestTooLarge,
                        "the body of a request is too large",
                        peer_,
                        fmt::format("at most {} bytes", limits_.body_bytes_max),
                        fmt::format("{} bytes", header->body_bytes),
                        "send less at once"};
      GRADTAP_TRY(send_fault(error));
      return std::unexpected<Error>(error);
    }
    const auto lease = memory_.lease(MemoryAccount::kPeers, header->body_bytes, "the body of a peer's request");
    if (!lease) {
      GRADTAP_TRY(send_fault(lease.error()));
      return std::unexpected<Error>(lease.error());
    }
    BulkRequest request;
    request.kind = static_cast<BulkKind>(header->kind);
    request.job = header->job;
    request.lineage = header->lineage;
    request.shard = header->shard;
    request.step = header->step;
    request.argument = header->argument;
    request.text = std::move(header->text);
    request.first_chunk = header->first_chunk;
    request.body = std::move(frame->payload);
    GRADTAP_TRY(read_body(request.body, header->body_bytes));
    const std::uint64_t first = request.first_chunk;
    Result<std::unique_ptr<ChunkSource>> source = handle(std::move(request));
    if (!source) return send_fault(source.error());
    return send_answer(**source, first, header->credits);
  }

 private:
  Status read_body(std::vector<std::uint8_t>& body, std::uint64_t bytes) {
    if (body.size() > bytes) return fail(ErrorCode::kPeerMalformed, "a body is longer than announced", peer_);
    while (body.size() < bytes) {
      const Result<Frame> frame = stream_.read_frame(after_ms(limits_.stall_timeout_ms));
      if (!frame) return std::unexpected<Error>(frame.error());
      if (frame->type != FrameType::kBody) return unexpected_frame(frame->type, "body");
      if (frame->payload.empty() || frame->payload.size() > bytes - body.size())
        return fail(ErrorCode::kPeerMalformed, "a part of a body has an impossible length", peer_);
      body.insert(body.end(), frame->payload.begin(), frame->payload.end());
    }
    return {};
  }

  Result<std::unique_ptr<ChunkSource>> handle(BulkRequest&& request) {
    try {
      auto source = handler_(peer_, std::move(request));
      if (source && *source == nullptr) return fail(ErrorCode::kUnsupported, "this request has no answer", peer_);
      return source;
    } catch (const std::exception& exception) {
      return fail(ErrorCode::kNodeBusy, "a request could not be handled", peer_, {}, exception.what(),
                  "try again later");
    }
  }

  Status send_fault(const Error& error) {
    counters_.requests_failed.add();
    schema::LinkAnswer answer;
    answer.fault = error;
    return stream_.write_frame(FrameType::kAnswer, schema::encode(answer), {}, after_ms(limits_.stall_timeout_ms));
  }

  Status send_end(std::optional<Error> fault) {
    if (fault) counters_.requests_failed.add();
    return stream_.write_frame(FrameType::kEnd, schema::encode(schema::LinkEnd{std::move(fault)}), {},
                               after_ms(limits_.stall_timeout_ms));
  }

  Status send_answer(ChunkSource& source, std::uint64_t first, std::uint64_t credits) {
    schema::LinkAnswer answer;
    answer.meta = source.meta();
    answer.identity = source.identity();
    answer.chunks = source.chunks();
    const std::vector<std::uint8_t> header = schema::encode(answer);
    if (header.size() > kHeaderBytesMax)
      return send_fault({ErrorCode::kLimitReached, "the text before an answer is too long", peer_,
                         fmt::format("at most {} bytes", kHeaderBytesMax), fmt::format("{} bytes", header.size()),
                         "put it into the chunks"});
    GRADTAP_TRY(stream_.write_frame(FrameType::kAnswer, header, {}, after_ms(limits_.stall_timeout_ms)));
    for (std::uint64_t index = first; index < answer.chunks; ++index) {
      GRADTAP_TRY(wait_for_credit(credits));
      --credits;
      const Result<std::vector<std::uint8_t>> bytes = source.chunk(index);
      if (!bytes) return send_end(bytes.error());
      if (bytes->size() > kPayloadBytesMax)
        return send_end(Error{ErrorCode::kLimitReached, "a chunk is too large", peer_,
                              fmt::format("at most {} bytes", kPayloadBytesMax), fmt::format("{} bytes", bytes->size()),
                              "use smaller chunks"});
      GRADTAP_TRY(stream_.write_frame(FrameType::kChunk, schema::encode(schema::LinkChunk{index}), *bytes,
                                      after_ms(limits_.stall_timeout_ms)));
      counters_.chunks_out.add();
      counters_.bytes_out.add(bytes->size());
    }
    return send_end(std::nullopt);
  }

  Status wait_for_credit(std::uint64_t& credits) {
    if (credits > 0) return {};
    counters_.waits_for_credit.add();
    const Result<Frame> frame = stream_.read_frame(after_ms(limits_.stall_timeout_ms));
    if (!frame) return std::unexpected<Error>(frame.error());
    if (frame->type != FrameType::kCredit) return unexpected_frame(frame->type, "credit");
    const auto credit = schema::decode_link_credit(frame->header);
    if (!credit) return std::unexpected<Error>(credit.error());
    credits = std::min<std::uint64_t>(credit->chunks, kCreditsMax);
    return {};
  }

  SocketStream& stream_;
  const std::string& peer_;
  const BulkHandler& handler_;
  const LinkLimits& limits_;
  LinkCounters& counters_;
  MemoryLedger& memory_;
};

}  // namespace

void serve_bulk(SocketStream& stream, const std::string& peer, const BulkHandler& handler, const LinkLimits& limits,
                LinkCounters& counters, MemoryLedger& memory) {
  Serving serving(stream, peer, handler, limits, counters, memory);
  for (;;) {
    const Status served = serving.serve_one();
    if (served) continue;
    if (served.error().code == ErrorCode::kPeerMalformed || served.error().code == ErrorCode::kUnsupported ||
        served.error().code == ErrorCode::kRequestTooLarge)
      counters.malformed.add();
    stream.close();
    return;
  }
}

}  // namespace gradtap::link
