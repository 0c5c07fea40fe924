#include "schema/link_codec.h"

#include <cstring>
#include <exception>

#include <capnp/message.h>
#include <capnp/serialize.h>
#include <fmt/format.h>
#include <kj/exception.h>
#include <schema/link.capnp.h>

#include "schema/sealed_message.h"

namespace gradtap::schema {
namespace {

using namespace sealed_message;

constexpr std::size_t kFaultTextMax = 4096;

std::vector<std::uint8_t> flat(capnp::MessageBuilder& message) {
  const kj::Array<capnp::word> words = capnp::messageToFlatArray(message);
  const auto bytes = words.asBytes();
  return {bytes.begin(), bytes.end()};
}

std::unexpected<Error> malformed(std::string_view what, std::string_view actual) {
  return fail(ErrorCode::kPeerMalformed, "a header from a peer is malformed", std::string(what), {},
              std::string(actual));
}

// The one place that touches hostile Cap'n Proto here: aligned copy, bounded traversal, no exception beyond it.
template <class Struct, class Header, class Read>
Result<Header> decoded(ByteSpan bytes, Read read) {
  if (bytes.size() > kLinkHeaderBytesMax || bytes.size() % sizeof(capnp::word) != 0)
    return malformed("length", fmt::format("{} bytes", bytes.size()));
  try {
    const std::size_t words = bytes.size() / sizeof(capnp::word);
    kj::Array<capnp::word> aligned = kj::heapArray<capnp::word>(words);
    if (words > 0) std::memcpy(aligned.begin(), bytes.data(), bytes.size());
    capnp::ReaderOptions options;
    options.traversalLimitInWords = words * 2 + 64;
    options.nestingLimit = 4;
    capnp::FlatArrayMessageReader reader(aligned, options);
    Header header;
    if (const std::string_view wrong = read(reader.getRoot<Struct>(), header); !wrong.empty())
      return malformed(wrong, "impossible value");
    return header;
  } catch (const kj::Exception& exception) {
    return malformed("message", exception.getDescription().cStr());
  } catch (const std::exception& exception) {
    return malformed("message", exception.what());
  }
}

std::string cut(const std::string& value) {
  return value.substr(0, kFaultTextMax);
}

void fill(wire::LinkFault::Builder to, const Error& from) {
  to.setCode(static_cast<std::uint16_t>(from.code));
  to.setWhat(text(cut(from.what)));
  to.setWhere(text(cut(from.where)));
  to.setExpected(text(cut(from.expected)));
  to.setActual(text(cut(from.actual)));
  to.setRemedy(text(cut(from.remedy)));
}

std::optional<Error> fault(wire::LinkFault::Reader from) {
  if (from.getCode() == 0) return std::nullopt;
  Error error{static_cast<ErrorCode>(from.getCode()),
              str(from.getWhat()),
              str(from.getWhere()),
              str(from.getExpected()),
              str(from.getActual()),
              str(from.getRemedy())};
  // A number that this build does not know stays readable.
  if (error_name(error.code) == "UNKNOWN_CODE") {
    error.what = fmt::format("E{} of a newer peer: {}", from.getCode(), error.what);
    error.code = ErrorCode::kUnsupported;
  }
  return error;
}

}  // namespace

std::vector<std::uint8_t> encode(const LinkHello& hello) {
  capnp::MallocMessageBuilder message;
  auto root = message.initRoot<wire::LinkHello>();
  root.setName(text(hello.name));
  root.setPeer(text(hello.peer));
  root.setCluster(data(hello.cluster));
  root.setKind(static_cast<std::uint16_t>(hello.kind));
  root.setTunnel(hello.tunnel);
  root.setRenews(hello.renews);
  return flat(message);
}

std::vector<std::uint8_t> encode(const LinkWelcome& welcome) {
  capnp::MallocMessageBuilder message;
  auto root = message.initRoot<wire::LinkWelcome>();
  root.setName(text(welcome.name));
  if (welcome.fault) fill(root.initFault(), *welcome.fault);
  return flat(message);
}

std::vector<std::uint8_t> encode(const LinkRequest& request) {
  capnp::MallocMessageBuilder message;
  auto root = message.initRoot<wire::LinkRequest>();
  root.setKind(request.kind);
  root.setJob(data(request.job));
  root.setLineage(request.lineage);
  root.setShard(request.shard);
  root.setStep(request.step);
  root.setArgument(request.argument);
  root.setText(text(request.text));
  root.setFirstChunk(request.first_chunk);
  root.setBodyBytes(request.body_bytes);
  root.setCredits(request.credits);
  return flat(message);
}

std::vector<std::uint8_t> encode(const LinkAnswer& answer) {
  capnp::MallocMessageBuilder message;
  auto root = message.initRoot<wire::LinkAnswer>();
  if (answer.fault) fill(root.initFault(), *answer.fault);
  root.setMeta(text(answer.meta));
  root.setIdentity(text(answer.identity));
  root.setChunks(answer.chunks);
  return flat(message);
}

std::vector<std::uint8_t> encode(const LinkChunk& chunk) {
  capnp::MallocMessageBuilder message;
  message.initRoot<wire::LinkChunk>().setIndex(chunk.index);
  return flat(message);
}

std::vector<std::uint8_t> encode(const LinkCredit& credit) {
  capnp::MallocMessageBuilder message;
  message.initRoot<wire::LinkCredit>().setChunks(credit.chunks);
  return flat(message);
}

std::vector<std::uint8_t> encode(const LinkEnd& end) {
  capnp::MallocMessageBuilder message;
  auto root = message.initRoot<wire::LinkEnd>();
  if (end.fault) fill(root.initFault(), *end.fault);
  return flat(message);
}

Result<LinkHello> decode_link_hello(ByteSpan bytes) {
  return decoded<wire::LinkHello, LinkHello>(bytes,
                                             [](wire::LinkHello::Reader root, LinkHello& hello) -> std::string_view {
                                               hello.name = str(root.getName());
                                               hello.peer = str(root.getPeer());
                                               if (!copy_exact(root.getCluster(), hello.cluster)) return "cluster";
                                               hello.kind = static_cast<LinkKind>(root.getKind());
                                               if (hello.kind != LinkKind::kControl && hello.kind != LinkKind::kBulk)
                                                 return "kind";
                                               hello.tunnel = root.getTunnel();
                                               hello.renews = root.getRenews();
                                               return {};
                                             });
}

Result<LinkWelcome> decode_link_welcome(ByteSpan bytes) {
  return decoded<wire::LinkWelcome, LinkWelcome>(
      bytes, [](wire::LinkWelcome::Reader root, LinkWelcome& welcome) -> std::string_view {
        welcome.name = str(root.getName());
        welcome.fault = fault(root.getFault());
        return {};
      });
}

Result<LinkRequest> decode_link_request(ByteSpan bytes) {
  return decoded<wire::LinkRequest, LinkRequest>(
      bytes, [](wire::LinkRequest::Reader root, LinkRequest& request) -> std::string_view {
        request.kind = root.getKind();
        if (!copy_exact(root.getJob(), request.job)) return "job";
        request.lineage = root.getLineage();
        request.shard = root.getShard();
        request.step = root.getStep();
        request.argument = root.getArgument();
        request.text = str(root.getText());
        request.first_chunk = root.getFirstChunk();
        request.body_bytes = root.getBodyBytes();
        request.credits = root.getCredits();
        if (request.credits == 0) return "credits";
        return {};
      });
}

Result<LinkAnswer> decode_link_answer(ByteSpan bytes) {
  return decoded<wire::LinkAnswer, LinkAnswer>(
      bytes, [](wire::LinkAnswer::Reader root, LinkAnswer& answer) -> std::string_view {
        answer.fault = fault(root.getFault());
        answer.meta = str(root.getMeta());
        answer.identity = str(root.getIdentity());
        answer.chunks = root.getChunks();
        return {};
      });
}

Result<LinkChunk> decode_link_chunk(ByteSpan bytes) {
  return decoded<wire::LinkChunk, LinkChunk>(bytes,
                                             [](wire::LinkChunk::Reader root, LinkChunk& chunk) -> std::string_view {
                                               chunk.index = root.getIndex();
                                               return {};
                                             });
}

Result<LinkCredit> decode_link_credit(ByteSpan bytes) {
  return decoded<wire::LinkCredit, LinkCredit>(
      bytes, [](wire::LinkCredit::Reader root, LinkCredit& credit) -> std::string_view {
        credit.chunks = root.getChunks();
        if (credit.chunks == 0) return "chunks";
        return {};
      });
}

Result<LinkEnd> decode_link_end(ByteSpan bytes) {
  return decoded<wire::LinkEnd, LinkEnd>(bytes, [](wire::LinkEnd::Reader root, LinkEnd& end) -> std::string_view {
    end.fault = fault(root.getFault());
    return {};
  });
}

}  // namespace gradtap::schema
