#include "link/bulk_client.h"

#include <algorithm>

#include <fmt/format.h>

#include "schema/link_codec.h"

namespace gradtap::link {
namespace {

constexpr std::size_t kBodyPartBytes = std::size_t{1} << 20;

std::unexpected<Error> malformed(std::string what, std::string expected, std::string actual) {
  return fail(ErrorCode::kPeerMalformed, std::move(what), {}, std::move(expected), std::move(actual),
              "run the same version on all nodes");
}

Status send_request(SocketStream& stream, const BulkRequest& request, std::uint64_t first_chunk,
                    const LinkLimits& limits, Deadline deadline) {
  schema::LinkRequest header;
  header.kind = static_cast<std::uint16_t>(request.kind);
  header.job = request.job;
  header.lineage = request.lineage;
  header.shard = request.shard;
  header.step = request.step;
  header.argument = request.argument;
  header.text = request.text;
  header.first_chunk = first_chunk;
  header.body_bytes = request.body.size();
  header.credits = static_cast<std::uint32_t>(limits.credits);
  const ByteSpan body(request.body);
  std::size_t sent = std::min(body.size(), kBodyPartBytes);
  GRADTAP_TRY(stream.write_frame(FrameType::kRequest, schema::encode(header), body.first(sent), deadline));
  while (sent < body.size()) {
    const std::size_t part = std::min(body.size() - sent, kBodyPartBytes);
    GRADTAP_TRY(stream.write_frame(FrameType::kBody, {}, body.subspan(sent, part), deadline));
    sent += part;
  }
  return {};
}

class Exchange {
 public:
  Exchange(SocketStream& stream, AnswerProgress& progress, const ChunkSink& sink, const LinkLimits& limits,
           LinkCounters& counters, Deadline deadline)
      : stream_(stream), progress_(progress), sink_(sink), limits_(limits), counters_(counters), deadline_(deadline) {}

  ExchangeResult run(const BulkRequest& request) {
    // An answer without an identity is asked for from its first chunk again.
    const std::uint64_t first = progress_.identity.empty() ? request.first_chunk : progress_.next;
    if (const Status sent = send_request(stream_, request, first, limits_, deadline_); !sent)
      return sent.error().code == ErrorCode::kLimitReached ? fault(sent.error(), false) : broken(sent.error());
    const Result<Frame> frame = next(FrameType::kAnswer, FrameType::kAnswer);
    if (!frame) return broken(frame.error());
    auto answer = schema::decode_link_answer(frame->header);
    if (!answer) return broken(answer.error());
    answered_ = true;
    if (answer->fault) return fault(*answer->fault, true);
    if (const Status begun = begin(std::move(*answer), first, request.first_chunk); !begun)
      return broken(begun.error());
    return take_chunks();
  }

 private:
  // Takes over what the answer says of itself, unless it is not the one that was begun.
  Status begin(schema::LinkAnswer&& answer, std::uint64_t first, std::uint64_t start) {
    const bool same = progress_.begun && !answer.identity.empty() && answer.identity == progress_.identity &&
                      answer.chunks == progress_.chunks && answer.meta == progress_.meta;
    if (progress_.begun && same && first != start) counters_.resumed.add();
    if (progress_.begun && !same && progress_.next != start) counters_.started_over.add();
    if (first != start && !same) {
      progress_ = AnswerProgress{};
      progress_.next = start;
      return fail(ErrorCode::kPeerUnreachable, "the answer changed while it was being sent");
    }
    progress_ = {true, std::move(answer.meta), std::move(answer.identity), answer.chunks, first};
    return {};
  }

  ExchangeResult take_chunks() {
    std::uint64_t granted = limits_.credits;
    for (;;) {
      Result<Frame> frame = next(FrameType::kChunk, FrameType::kEnd);
      if (!frame) return broken(frame.error());
      if (frame->type == FrameType::kEnd) return take_end(*frame);
      const auto header = schema::decode_link_chunk(frame->header);
      if (!header) return broken(header.error());
      if (header->index != progress_.next || header->index >= progress_.chunks)
        return broken(
            malformed("a chunk comes out of turn", fmt::format("{}", progress_.next), fmt::format("{}", header->index))
                .error());
      counters_.chunks_in.add();
      counters_.bytes_in.add(frame->payload.size());
      if (Status taken = sink_(header->index, std::move(frame->payload)); !taken) return fault(taken.error(), false);
      ++progress_.next;
      // Half of the window at a time, so that the peer need not wait.
      if (--granted <= limits_.credits / 2 && progress_.next < progress_.chunks) {
        const auto more = static_cast<std::uint32_t>(limits_.credits - granted);
        const Status sent =
            stream_.write_frame(FrameType::kCredit, schema::encode(schema::LinkCredit{more}), {}, deadline_);
        if (!sent) return broken(sent.error());
        granted = limits_.credits;
      }
    }
  }

  ExchangeResult take_end(const Frame& frame) {
    const auto end = schema::decode_link_end(frame.header);
    if (!end) return broken(end.error());
    if (end->fault) return fault(*end->fault, true);
    if (progress_.next < progress_.chunks)
      return broken(malformed("an answer ends early", fmt::format("{} chunks", progress_.chunks),
                              fmt::format("{}", progress_.next))
                        .error());
    return {ExchangeEnd::kDone, true, true, {}};
  }

  Result<Frame> next(FrameType one, FrameType other) {
    Result<Frame> frame = stream_.read_frame(deadline_);
    if (frame && frame->type != one && frame->type != other)
      return malformed("a peer sent a frame out of turn", std::string(frame_type_name(one)),
                       std::string(frame_type_name(frame->type)));
    return frame;
  }

  ExchangeResult fault(Error error, bool reusable) const {
    return {ExchangeEnd::kFault, reusable, answered_, std::move(error)};
  }
  ExchangeResult broken(Error error) const {
    if (error.code == ErrorCode::kPeerMalformed) counters_.malformed.add();
    return {ExchangeEnd::kBroken, false, answered_, std::move(error)};
  }

  SocketStream& stream_;
  AnswerProgress& progress_;
  const ChunkSink& sink_;
  const LinkLimits& limits_;
  LinkCounters& counters_;
  const Deadline deadline_;
  bool answered_ = false;
};

}  // namespace

Status greet(SocketStream& stream, const NodeLinkOptions& options, const std::string& peer, Deadline deadline) {
  const schema::LinkHello hello{options.self, peer, options.cluster, schema::LinkKind::kBulk};
  GRADTAP_TRY(stream.write_frame(FrameType::kHello, schema::encode(hello), {}, deadline));
  const Result<Frame> frame = stream.read_frame(deadline);
  if (!frame) return std::unexpected<Error>(frame.error());
  if (frame->type != FrameType::kWelcome)
    return malformed("a peer sent a frame out of turn", "welcome", std::string(frame_type_name(frame->type)));
  const auto welcome = schema::decode_link_welcome(frame->header);
  if (!welcome) return std::unexpected<Error>(welcome.error());
  if (welcome->fault) return std::unexpected<Error>(*welcome->fault);
  if (welcome->name != peer)
    return fail(ErrorCode::kPeerRefused, "another node answers at a peer's address", {}, peer, welcome->name,
                "give all nodes the same cluster file and object store");
  return {};
}

ExchangeResult exchange(SocketStream& stream, const BulkRequest& request, AnswerProgress& progress,
                        const ChunkSink& sink, const LinkLimits& limits, LinkCounters& counters, Deadline deadline) {
  return Exchange(stream, progress, sink, limits, counters, deadline).run(request);
}

}  // namespace gradtap::link
