#include "generator/nccl_job.h"

#include <string>

#include "common/interval_set.h"
#include "dataplane/roce_frame.h"

namespace gradtap::generator {
namespace {

using dataplane::NcclCollective;
using dataplane::NcclMessage;
using dataplane::NcclOp;
using dataplane::NcclSchedule;
using dataplane::Phase;

constexpr std::uint64_t kFrameGapBytes = 24;  // preamble, check sequence, gap
constexpr std::uint64_t kConnectionAddressBytes = 64ULL << 20;
constexpr std::uint64_t kSimpleOffset = 8ULL << 20;
constexpr std::uint64_t kFifoOffset = (32ULL << 20) + 0x820;  // as seen: not at the beginning of a page
constexpr std::uint64_t kMaxVectorBytes = 8ULL << 30;

ByteSpan part(ByteSpan whole, const NcclMessage& message, std::uint32_t element) {
  return whole.subspan(message.begin * element, (message.end - message.begin) * element);
}

ConnectionConfig connection_of(const JobConfig& config, std::uint32_t index, std::uint32_t sender,
                               std::uint32_t receiver) {
  const JobHost& from = config.hosts[sender];
  const JobHost& to = config.hosts[receiver];
  const std::uint32_t queue_pairs = std::max<std::uint32_t>(1, config.queue_pairs);
  const std::uint32_t sender_qpn = (config.first_qpn + 2 * index * queue_pairs) & kPsnMask;
  const std::uint32_t receiver_qpn = (sender_qpn + 1) & kPsnMask;
  ConnectionConfig c;
  c.data.source_mac = c.control.target_mac = from.mac;
  c.data.target_mac = c.control.source_mac = to.mac;
  c.data.source = c.control.target = from.address;
  c.data.target = c.control.source = to.address;
  c.data.udp_source_port = c.control.udp_source_port = dataplane::roce_source_port(sender_qpn, receiver_qpn);
  c.data.target_qpn = receiver_qpn;
  c.control.target_qpn = sender_qpn;
  for (std::uint32_t i = 1; i < queue_pairs; ++i) {
    c.more_data.push_back(c.data);
    c.more_data.back().target_qpn = (receiver_qpn + 2 * i) & kPsnMask;
    c.more_data.back().udp_source_port = dataplane::roce_source_port(sender_qpn + 2 * i, receiver_qpn + 2 * i);
  }
  c.cut_over_queue_pairs = config.cut_over_queue_pairs;
  c.ll128 = config.ll128;
  c.path_mtu_bytes = config.path_mtu_bytes;
  c.data_psn = c.control_psn = config.first_psn & kPsnMask;
  c.step = config.first_step;
  // Buffers of one connection lie apart from those of the next.
  const std::uint64_t base = config.first_address + index * kConnectionAddressBytes;
  c.ll = {base, config.first_rkey + 3 * index};
  c.simple = {base + kSimpleOffset, config.first_rkey + 3 * index + 1};
  c.fifo = {base + kFifoOffset, config.first_rkey + 3 * index + 2};
  c.tag = sender;
  c.cts = config.cts;
  c.style = config.style;
  c.immediate_big_endian = config.immediate_big_endian;
  c.acknowledge = config.acknowledge;
  c.undefined_word = config.undefined_word;
  return c;
}

}  // namespace

std::vector<ConnectionConfig> job_connections(const JobConfig& config) {
  std::vector<ConnectionConfig> connections;
  const std::uint32_t ranks = config.tuning.ranks;
  const std::uint32_t channels = config.tuning.channels;
  for (std::uint32_t position = 0; position < ranks; ++position)
    for (std::uint32_t channel = 0; channel < channels; ++channel)
      connections.push_back(connection_of(config, position * channels + channel, position, (position + 1) % ranks));
  return connections;
}

Result<NcclJob> NcclJob::make(const JobConfig& config) {
  if (config.hosts.size() != config.tuning.ranks || config.hosts.size() < 2)
    return fail(ErrorCode::kScheduleImpossible, "a job needs a host for each of its ranks, two at least", {},
                std::to_string(config.tuning.ranks), std::to_string(config.hosts.size()));
  return make(config, job_connections(config));
}

Result<NcclJob> NcclJob::make(const JobConfig& config, const std::vector<ConnectionConfig>& connections) {
  auto ring = dataplane::NcclRing::make(config.tuning);
  if (!ring) return std::unexpected(ring.error());
  const std::size_t needed = std::size_t{config.tuning.ranks} * config.tuning.channels;
  if (connections.size() != needed)
    return fail(ErrorCode::kScheduleImpossible, "a ring needs a connection for each rank and channel", {},
                std::to_string(needed), std::to_string(connections.size()));
  if (config.path_mtu_bytes < 256 || config.path_mtu_bytes > 4096 || config.path_mtu_bytes % 256 != 0)
    return fail(ErrorCode::kOutOfRange, "no path MTU of InfiniBand", {}, "256, 512, 1024, 2048 or 4096",
                std::to_string(config.path_mtu_bytes));
  if (!(config.bits_per_ns > 0))
    return fail(ErrorCode::kOutOfRange, "the rate of a link must be above zero", {}, "bits per nanosecond");
  NcclJob job(config);
  for (std::uint32_t index = 0; index < connections.size(); ++index)
    job.connections_.emplace_back(index, connections[index]);
  return job;
}

void NcclJob::pass(std::uint64_t bytes) {
  now_ns_ += static_cast<std::uint64_t>(static_cast<double>((bytes + kFrameGapBytes) * 8) / config_.bits_per_ns) + 1;
}

Status NcclJob::run(const std::optional<NcclOp>& op, const MessageBytes& bytes, FrameSink& sink) {
  const auto schedule = op ? NcclSchedule::of(*op) : std::nullopt;
  if (!schedule) return fail(ErrorCode::kScheduleImpossible, "NCCL could not run this collective");
  const std::uint32_t ranks = op->ranks;
  const std::uint32_t stride = config_.tuning.channels;
  const auto connection = [&](std::uint32_t position, std::uint32_t channel) -> NcclConnection& {
    return connections_[std::size_t{position} * stride + op->first_channel + channel];
  };
  std::uint64_t most = 0;
  for (std::uint32_t position = 0; position < ranks; ++position) {
    for (std::uint32_t channel = 0; channel < op->channels; ++channel) {
      const std::uint64_t count = schedule->message_count(position, channel);
      most = std::max(most, count);
      if (count == 0) continue;
      NcclConnection& c = connection(position, channel);
      c.begin_op(op->protocol, schedule->aligned_step(c.step()));
      for (std::uint64_t i = 0; i < std::min<std::uint64_t>(count, dataplane::kNcclSlots); ++i)
        c.clear_to_send(schedule->message(position, channel, i)->steps, now_ns_, sink);
    }
  }
  // Messages with the same number cross all links at the same time: what a rank passes on it has received before.
  for (std::uint64_t i = 0; i < most; ++i) {
    for (std::uint32_t position = 0; position < ranks; ++position) {
      for (std::uint32_t channel = 0; channel < op->channels; ++channel) {
        const auto message = schedule->message(position, channel, i);
        if (!message) continue;
        NcclConnection& c = connection(position, channel);
        MessageMeaning meaning;
        meaning.op = ops_;
        meaning.final = message->phase == Phase::kFinal;
        meaning.begin = message->begin * op->element_bytes;
        pass(c.send(bytes(position, *message), message->steps, meaning, now_ns_, sink));
        const auto later = schedule->message(position, channel, i + dataplane::kNcclSlots);
        if (later) c.clear_to_send(later->steps, now_ns_, sink);
      }
    }
  }
  ops_ += 1;
  return {};
}

Status NcclJob::all_reduce(ElementType type, ByteSpan reduced, std::span<const ByteSpan> given, FrameSink& sink) {
  const std::uint32_t element = element_bytes(type);
  const std::uint32_t ranks = config_.tuning.ranks;
  if (reduced.size() % element != 0 || reduced.size() > kMaxVectorBytes)
    return fail(ErrorCode::kOutOfRange, "a reduced vector is whole elements, of 8 GiB at most", {}, {},
                std::to_string(reduced.size()) + " bytes");
  if (!given.empty() && given.size() != ranks)
    return fail(ErrorCode::kOutOfRange, "every rank must give a vector, or none", {}, std::to_string(ranks),
                std::to_string(given.size()));
  for (const ByteSpan one : given)
    if (one.size() != reduced.size())
      return fail(ErrorCode::kOutOfRange, "what a rank gives must be as long as the result", {},
                  std::to_string(reduced.size()), std::to_string(one.size()));
  if (config_.tree) return tree_all_reduce(type, reduced, sink);
  running_.assign(reduced.size(), 0);
  if (given.empty()) halve_elements(type, running_, reduced);
  IntervalSet begun;
  const auto bytes = [&](std::uint32_t position, const NcclMessage& message) {
    if (message.phase == Phase::kFinal) return part(reduced, message, element);
    const std::size_t begin = message.begin * element;
    const std::size_t length = (message.end - message.begin) * element;
    // The rank behind the one that ends up with the chunk begins the sum; its values are moved, not added to zero.
    if (!given.empty()) {
      const ByteSpan own = given[position].subspan(begin, length);
      const std::span<std::uint8_t> sum(running_.data() + begin, length);
      if (begun.contains(begin, begin + length))
        add_elements(type, sum, own);
      else
        std::copy(own.begin(), own.end(), sum.begin());
      begun.add(begin, begin + length);
    }
    return ByteSpan(running_).subspan(begin, length);
  };
  return run(dataplane::nccl_plan(config_.tuning, NcclCollective::kAllReduce, reduced.size() / element, element), bytes,
             sink);
}

Status NcclJob::all_gather(std::span<const ByteSpan> blocks, FrameSink& sink) {
  if (blocks.size() != config_.tuning.ranks)
    return fail(ErrorCode::kOutOfRange, "every rank must give a block", {}, std::to_string(config_.tuning.ranks),
                std::to_string(blocks.size()));
  const std::size_t length = blocks.front().size();
  for (const ByteSpan block : blocks)
    if (block.size() != length) return fail(ErrorCode::kOutOfRange, "the blocks of an all-gather must be equally long");
  const auto bytes = [&](std::uint32_t, const NcclMessage& message) {
    if (message.end == message.begin) return ByteSpan{};
    return blocks[message.begin / length].subspan(message.begin % length, message.end - message.begin);
  };
  return run(dataplane::nccl_plan(config_.tuning, NcclCollective::kAllGather, length, 1), bytes, sink);
}

Status NcclJob::broadcast(std::uint32_t root, ByteSpan data, FrameSink& sink) {
  const auto bytes = [&](std::uint32_t, const NcclMessage& message) { return part(data, message, 1); };
  return run(dataplane::nccl_plan(config_.tuning, NcclCollective::kBroadcast, data.size(), 1, root), bytes, sink);
}

NcclConnection& NcclJob::apart(std::uint32_t from, std::uint32_t to, std::uint32_t channel, bool point_to_point) {
  const std::tuple name(point_to_point, from, to, channel);
  const auto found = apart_.find(name);
  if (found != apart_.end()) return found->second;
  const auto index = static_cast<std::uint32_t>(connections_.size() + apart_.size());
  ConnectionConfig config = connection_of(config_, index, from, to);
  config.point_to_point = point_to_point;
  return apart_.emplace(name, NcclConnection(index, std::move(config))).first->second;
}

// Up a binary tree in partial sums, down again in final values; the tree of odd channels has the ranks the other way
// round. NCCL's trees have another shape and its chunks other lengths, but like these, each edge of a tree carries all
// of a channel's part, both ways.
Status NcclJob::tree_all_reduce(ElementType type, ByteSpan reduced, FrameSink& sink) {
  const std::uint32_t element = element_bytes(type);
  const std::uint32_t ranks = config_.tuning.ranks;
  const std::uint64_t elements = reduced.size() / element;
  const std::uint64_t each = (elements + config_.tuning.channels - 1) / config_.tuning.channels;
  const std::uint64_t chunk = dataplane::kNcclLlMaxChunkBytes / element;
  running_.assign(reduced.size(), 0);
  halve_elements(type, running_, reduced);
  const auto pass_one = [&](std::uint32_t from, std::uint32_t to, std::uint32_t channel, ByteSpan bytes, bool final,
                            std::uint64_t begin) {
    NcclConnection& connection = apart(from, to, channel, false);
    connection.begin_op(dataplane::NcclProtocol::kLl, connection.step());
    connection.clear_to_send(1, now_ns_, sink);
    MessageMeaning meaning;
    meaning.op = ops_;
    meaning.final = final;
    meaning.begin = begin;
    pass(connection.send(bytes, 1, meaning, now_ns_, sink));
  };
  for (std::uint32_t channel = 0; channel < config_.tuning.channels; ++channel) {
    const auto rank = [&](std::uint32_t node) { return channel % 2 == 0 ? node : ranks - 1 - node; };
    const std::uint64_t slab_end = std::min(elements, (channel + 1) * each);
    for (std::uint64_t at = channel * each; at < slab_end; at += chunk) {
      const std::uint64_t begin = at * element;
      const std::uint64_t length = std::min(chunk, slab_end - at) * element;
      for (std::uint32_t node = ranks - 1; node > 0; --node)
        pass_one(rank(node), rank((node - 1) / 2), channel, ByteSpan(running_).subspan(begin, length), false, begin);
      for (std::uint32_t node = 1; node < ranks; ++node)
        pass_one(rank((node - 1) / 2), rank(node), channel, reduced.subspan(begin, length), true, begin);
    }
  }
  ops_ += 1;
  return {};
}

Status NcclJob::send(std::uint32_t from, std::uint32_t to, ByteSpan bytes, FrameSink& sink) {
  if (from >= config_.tuning.ranks || to >= config_.tuning.ranks || from == to || bytes.empty())
    return fail(ErrorCode::kOutOfRange, "a send goes from one rank of the job to another, and has bytes");
  NcclConnection& connection = apart(from, to, 0, true);
  const std::uint64_t chunk = dataplane::nccl_send_chunk_bytes(bytes.size());
  const std::uint64_t chunks = (bytes.size() + chunk - 1) / chunk;
  for (std::uint64_t i = 0; i < std::min<std::uint64_t>(chunks, dataplane::kNcclSlots); ++i)
    connection.clear_to_send(1, now_ns_, sink);
  for (std::uint64_t i = 0; i < chunks; ++i) {
    MessageMeaning meaning;
    meaning.op = ops_;
    const ByteSpan piece = bytes.subspan(i * chunk, std::min<std::uint64_t>(chunk, bytes.size() - i * chunk));
    pass(connection.send(piece, 1, meaning, now_ns_, sink));
    if (i + dataplane::kNcclSlots < chunks) connection.clear_to_send(1, now_ns_, sink);
  }
  ops_ += 1;
  return {};
}

}  // namespace gradtap::generator
