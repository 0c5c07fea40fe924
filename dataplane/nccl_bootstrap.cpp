#include "dataplane/nccl_bootstrap.h"

#include <algorithm>
#include <cstring>

#include "dataplane/nccl_schedule.h"

namespace gradtap::dataplane {
namespace {

constexpr std::uint64_t kSocketMagic = 0x564ab9f2fc4b9d6c;
constexpr std::uint32_t kBootstrapSocket = 1;
constexpr std::uint32_t kNetIbSocket = 4;
constexpr std::size_t kHelloBytes = 12;  // magic and kind of socket
constexpr std::size_t kHandleBytes = 128;
constexpr std::size_t kCheckInBytes = 64;
constexpr std::uint16_t kFamilyV4 = 2;
constexpr std::uint16_t kFamilyV6 = 10;

// The sockaddr that NCCL copies as it stands in memory; `p` holds 28 bytes.
std::optional<std::pair<IpAddress, std::uint16_t>> read_socket_address(const std::uint8_t* p) {
  IpAddress address;
  const auto family = load_le<std::uint16_t>(p);
  const auto port = load_be<std::uint16_t>(p + 2);
  if (port == 0) return std::nullopt;
  if (family == kFamilyV4) {
    address.bytes = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, p[4], p[5], p[6], p[7]};
  } else if (family == kFamilyV6) {
    std::memcpy(address.bytes.data(), p + 8, 16);
  } else {
    return std::nullopt;
  }
  return std::pair(address, port);
}

}  // namespace

std::optional<NcclQpInfo> read_nccl_qp_info(ByteSpan bytes) {
  if (bytes.size() != kNcclQpInfoBytes && bytes.size() != kNcclOldQpInfoBytes) return std::nullopt;
  const std::uint8_t* const tail = &bytes[bytes.size() - 32];
  NcclQpInfo info;
  std::memcpy(info.gid.bytes.data(), tail, 16);
  const auto mtu = load_le<std::uint32_t>(tail + 16);
  info.fifo_key = load_le<std::uint32_t>(tail + 20);
  info.fifo_address = load_le<std::uint64_t>(tail + 24);
  info.qp = load_le<std::uint32_t>(&bytes[8]);
  constexpr std::uint8_t kEthernet = 2;
  if (bytes[5] != kEthernet || mtu < 1 || mtu > 5 || info.qp == 0 || info.qp >= 1U << 24) return std::nullopt;
  if (info.gid == IpAddress{}) return std::nullopt;
  info.mtu_bytes = 128U << mtu;
  return info;
}

void NcclBootstrap::segment(const FrameView& view) {
  if (view.payload.empty() && (view.flags & kTcpSyn) == 0) return;
  const StreamName name{{view.source, view.source_port}, {view.target, view.target_port}};
  auto found = streams_.find(name);
  if (found == streams_.end()) {
    if (streams_.size() >= config_.max_streams) {
      ++refused_;
      return;
    }
    found = streams_.emplace(name, Stream{}).first;
    found->second.first_sequence = view.sequence + ((view.flags & kTcpSyn) != 0 ? 1 : 0);
  } else if ((view.flags & kTcpSyn) != 0 && found->second.first_sequence != view.sequence + 1) {
    found->second = {};  // the ports are used again
    found->second.first_sequence = view.sequence + 1;
  }
  Stream& stream = found->second;
  if (stream.over || view.payload.empty()) return;
  const std::uint32_t offset = view.sequence - stream.first_sequence;
  if (offset >= config_.max_stream_bytes) return;
  const std::size_t count = std::min<std::size_t>(view.payload.size(), config_.max_stream_bytes - offset);
  if (stream.bytes.size() < offset + count) stream.bytes.resize(offset + count);
  std::memcpy(&stream.bytes[offset], view.payload.data(), count);
  stream.have.add(offset, offset + count);
  if (stream.have.contains(0, 1)) read(name, stream);
  if (stream.over) {
    stream.bytes = {};
    stream.have.clear();
  }
}

// The listener's answer has no hello.
bool NcclBootstrap::read_answer(Half& exchange, Stream& stream) {
  if (exchange.listener || stream.over || !stream.have.contains(0, 1)) return false;
  const ByteSpan whole = ByteSpan(stream.bytes).first(stream.have.ranges().front().end);
  if (whole.size() != kNcclOldQpInfoBytes && whole.size() != kNcclQpInfoBytes) return false;
  exchange.listener = read_nccl_qp_info(whole);
  stream.over = exchange.listener.has_value();
  return stream.over;
}

void NcclBootstrap::read(const StreamName& name, Stream& stream) {
  const ByteSpan whole = ByteSpan(stream.bytes).first(stream.have.ranges().front().end);
  const StreamName reversed{name.second, name.first};
  if (const auto half = halves_.find(reversed); half != halves_.end() && read_answer(half->second, stream)) return;
  if (whole.size() < kHelloBytes) return;
  const auto magic = load_le<std::uint64_t>(whole.data());
  const auto kind = load_le<std::uint32_t>(&whole[8]);
  if (magic == kSocketMagic && kind == kNetIbSocket) {
    if (halves_.size() >= config_.max_exchanges) {
      ++refused_;
      stream.over = true;
      return;
    }
    Half& exchange = halves_[name];
    for (const std::size_t size : {kNcclQpInfoBytes, kNcclOldQpInfoBytes}) {
      if (whole.size() != kHelloBytes + size && whole.size() != kHelloBytes + size + 4) continue;
      exchange.connector = read_nccl_qp_info(whole.subspan(kHelloBytes, size));
      stream.over = exchange.connector.has_value() && size == kNcclQpInfoBytes;
    }
    // What came the other way before may be the answer.
    if (const auto answer = streams_.find(reversed); answer != streams_.end() && &answer->second != &stream)
      (void)read_answer(exchange, answer->second);
    return;
  }
  if (kind == kBootstrapSocket) {
    read_records(magic, whole.subspan(kHelloBytes), stream.over);
    return;
  }
  if (whole.size() > kNcclQpInfoBytes) stream.over = true;  // nothing of NCCL's
}

void NcclBootstrap::read_records(std::uint64_t comm, ByteSpan records, bool& over) {
  std::size_t count = 0;
  std::uint32_t rank = 0, tag = 0;
  for (ByteReader reader(records); reader.remaining() >= 4; ++count) {
    const auto size = reader.le<std::uint32_t>();
    if (size > config_.max_stream_bytes) {
      over = true;
      return;
    }
    if (size > reader.remaining()) return;
    const ByteSpan record = reader.take(size);
    if (count == 0 && size == kCheckInBytes) {
      const auto ranks = load_le<std::uint32_t>(&record[4]);
      if (load_le<std::uint32_t>(record.data()) < ranks && ranks <= kMaxNcclRanks &&
          ranks_.size() < config_.max_handles)
        ranks_[comm] = ranks;
    } else if (count == 0 && size == 4) {
      rank = load_le<std::uint32_t>(record.data());
    } else if (count == 1 && size == 4) {
      tag = load_le<std::uint32_t>(record.data());
    } else if (count == 2 && tag != 0 && size >= kHandleBytes && size % kHandleBytes == 0) {
      read_handles(comm, rank, tag, record);
      over = true;
      return;
    }
  }
}

void NcclBootstrap::read_handles(std::uint64_t comm, std::uint32_t rank, std::uint32_t tag, ByteSpan entries) {
  for (std::uint32_t channel = 0; entries.size() >= kHandleBytes; ++channel, entries = entries.subspan(kHandleBytes)) {
    const auto address = read_socket_address(entries.data());
    if (!address || load_le<std::uint64_t>(&entries[32]) != kSocketMagic) return;  // the first ones are the receiver's
    if (handles_.size() >= config_.max_handles) {
      ++refused_;
      return;
    }
    handles_[{address->first, address->second}] = {comm, rank, tag, channel};
  }
}

std::vector<NcclExchange> NcclBootstrap::exchanges() const {
  std::vector<NcclExchange> result;
  for (const auto& [name, half] : halves_) {
    if (!half.connector || !half.listener) continue;
    NcclExchange exchange{*half.connector, *half.listener, std::nullopt};
    const auto handle = handles_.find(name.second);
    const auto ranks = handle == handles_.end() ? ranks_.end() : ranks_.find(handle->second.comm);
    if (ranks != ranks_.end() && handle->second.receiver < ranks->second) {
      const std::uint32_t offset = handle->second.tag >> 8;  // how many ranks the sender stands before the receiver
      NcclConnectionName named;
      named.comm = handle->second.comm;
      named.ranks = ranks->second;
      named.receiver = handle->second.receiver;
      named.sender = (named.receiver + named.ranks - offset % named.ranks) % named.ranks;
      named.ring = (handle->second.tag & 0xff) == 1;
      named.channel = handle->second.channel;
      exchange.name = named;
    }
    result.push_back(exchange);
  }
  return result;
}

}  // namespace gradtap::dataplane
