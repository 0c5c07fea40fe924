// Generated fabrics through the flow table: every byte that is placed is the byte that was sent there, and every packet
// is placed whose place the packets seen say.
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "dataplane/encapsulation.h"
#include "dataplane/roce_flow_table.h"
#include "tests/property/generator/fabric_case.h"

namespace gradtap::dataplane {
namespace {

using generator::FrameKind;
using generator::HeldFrame;
using gradtap::testing::FabricCase;
using gradtap::testing::FabricRun;

struct SentPacket {
  std::uint64_t message = 0;
  std::uint64_t offset = 0;  // in the message
  std::vector<std::uint8_t> payload;
  bool begins = false;  // its address, or the end with the immediate, gives the message's place
  bool ends = false;
};
struct SentConnection {
  std::map<std::uint32_t, SentPacket> packets;           // by PSN
  std::map<std::uint64_t, std::uint64_t> message_bytes;  // by message
};

// The truth, out of the frames as the job wrote them.
std::map<std::uint32_t, SentConnection> truth_of(const FabricRun& run) {
  std::map<std::uint32_t, SentConnection> truth;
  for (const HeldFrame& held : run.sent) {
    if (held.note.kind != FrameKind::kData) continue;
    MirroredPacket packet;
    RoceFrame frame;
    REQUIRE(find_packet(held.bytes, 0, ChecksumPolicy::kRequired, packet) == FrameDrop::kNone);
    REQUIRE(parse_roce(packet.ip, IcrcPolicy::kRequired, frame) == FrameDrop::kNone);
    SentConnection& connection = truth[held.note.connection];
    SentPacket sent;
    sent.message = held.note.message;
    sent.offset = connection.message_bytes[held.note.message];
    sent.payload.assign(frame.payload.begin(), frame.payload.end());
    sent.begins = frame.meaning.address && sent.offset == 0;
    sent.ends = frame.meaning.immediate;
    connection.message_bytes[held.note.message] += frame.payload.size();
    CHECK(connection.packets.emplace(frame.psn, std::move(sent)).second);
  }
  return truth;
}

class Checker final : public RoceSink {
 public:
  explicit Checker(const SentConnection* truth) : truth_(truth) {}
  void piece(const RocePiece& piece) override {
    if (truth_ == nullptr) return;
    ++pieces;
    const auto sent = truth_->packets.find(static_cast<std::uint32_t>(piece.psn & 0xffffff));
    if (sent == truth_->packets.end()) {
      ++wrong;
      return;
    }
    const SentPacket& packet = sent->second;
    if (piece.bytes != packet.payload.size() ||
        (piece.bytes > 0 && std::memcmp(piece.data, packet.payload.data(), piece.bytes) != 0))
      ++wrong;
    if (!piece.provisional && piece.offset_bytes != packet.offset) ++wrong;
    if (!piece.provisional && piece.message_bytes != 0 &&
        piece.message_bytes != truth_->message_bytes.at(packet.message))
      ++wrong;
    placed.insert(sent->first);
  }
  void message(const RoceMessage& message) override {
    if (truth_ == nullptr) return;
    const auto sent = truth_->packets.find(static_cast<std::uint32_t>(message.psns.begin & 0xffffff));
    if (sent == truth_->packets.end()) return;
    if (message.immediate_seen && message.bytes != truth_->message_bytes.at(sent->second.message)) ++wrong;
    if (message.immediate_mismatch || message.foreign) ++wrong;
  }
  // What was seen is never told as lost.
  void lost(const PsnRange& psns) override {
    if (truth_ == nullptr) return;
    for (std::uint64_t psn = psns.begin; psn < psns.end; ++psn)
      if (placed.contains(static_cast<std::uint32_t>(psn & 0xffffff))) ++wrong;
  }
  void keep(const OwnedBytes& bytes) override { kept_.push_back(bytes); }

  std::uint64_t pieces = 0;
  std::uint64_t wrong = 0;
  std::set<std::uint32_t> placed;  // PSNs

 private:
  const SentConnection* truth_;
  std::vector<OwnedBytes> kept_;
};

class User final : public RoceFlowUser {
 public:
  User(const FabricRun& run, const std::map<std::uint32_t, SentConnection>& truth) : truth_(truth) {
    const auto connections = generator::job_connections(run.job);
    for (std::uint32_t index = 0; index < connections.size(); ++index)
      by_qpn_[{connections[index].data.target, connections[index].data.target_qpn}] = index;
  }
  RoceSink& opened(const RoceFlowIdentity& identity) override {
    const auto found = by_qpn_.find({identity.target, identity.target_qp});
    const bool known = found != by_qpn_.end() && truth_.contains(found->second);
    sinks_.push_back(std::make_unique<Checker>(known ? &truth_.at(found->second) : nullptr));
    if (known) checkers[found->second] = sinks_.back().get();
    return *sinks_.back();
  }
  std::map<std::uint32_t, Checker*> checkers;

 private:
  std::map<std::pair<IpAddress, std::uint32_t>, std::uint32_t> by_qpn_;
  const std::map<std::uint32_t, SentConnection>& truth_;
  std::vector<std::unique_ptr<Checker>> sinks_;
};

void check_case(std::uint64_t number, std::uint64_t& pieces) {
  const FabricCase c = gradtap::testing::draw_case(number);
  CAPTURE(c.text());
  const FabricRun run = gradtap::testing::run_case(c);
  const auto truth = truth_of(run);
  User user(run, truth);
  RoceFlowTable table({}, user);
  std::uint64_t packets = 0;
  std::map<std::uint32_t, std::set<std::uint32_t>> delivered;  // by connection: PSNs
  for (const HeldFrame& held : run.seen) {
    ++packets;
    if (held.note.kind == FrameKind::kData) delivered[held.note.connection].insert(held.note.psn);
    MirroredPacket packet;
    RoceFrame frame;
    if (find_packet(held.bytes, 0, ChecksumPolicy::kRequired, packet) != FrameDrop::kNone) continue;
    if (parse_roce(packet.ip, IcrcPolicy::kRequired, frame) != FrameDrop::kNone) continue;
    table.frame(frame, held.time_ns, packets);
  }
  table.finish(run.seen.empty() ? 0 : run.seen.back().time_ns, packets);
  for (const auto& [connection, psns] : delivered) {
    CAPTURE(connection);
    const auto found = user.checkers.find(connection);
    REQUIRE(found != user.checkers.end());
    const Checker& checker = *found->second;
    CHECK(checker.wrong == 0);
    pieces += checker.pieces;
    // The place of a message is given by its first packet, or by its end, which says its length, and one more packet,
    // which says how long packets are.
    std::set<std::uint64_t> located;
    std::map<std::uint64_t, int> packets_of;
    for (const std::uint32_t psn : psns) packets_of[truth.at(connection).packets.at(psn).message] += 1;
    for (const std::uint32_t psn : psns) {
      const SentPacket& packet = truth.at(connection).packets.at(psn);
      if (packet.begins || (packet.ends && packets_of[packet.message] > 1)) located.insert(packet.message);
    }
    std::uint64_t unplaced = 0;
    for (const std::uint32_t psn : psns) {
      const SentPacket& packet = truth.at(connection).packets.at(psn);
      if (!packet.payload.empty() && located.contains(packet.message) && !checker.placed.contains(psn)) ++unplaced;
    }
    CHECK(unplaced == 0);
    for (const std::uint32_t psn : checker.placed) CHECK(psns.contains(psn));
  }
}

}  // namespace

TEST_CASE("cases: every pair of settings comes up") {
  CHECK(gradtap::testing::pairs_in(520).size() == gradtap::testing::all_pairs());
}

TEST_CASE("RoCE flows: bytes of generated fabrics are placed where they were sent") {
  std::uint64_t pieces = 0;
  for (std::uint64_t number = 0; number < 520; ++number) check_case(number, pieces);
  CHECK(pieces > 100'000);
}

}  // namespace gradtap::dataplane
