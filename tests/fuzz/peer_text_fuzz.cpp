// What a peer says of itself and of its shards: a text that is taken can be said again, and means the same.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "actors/peer_codec.h"

using namespace gradtap;
using namespace gradtap::actors;

namespace {

void require(bool holds) {
  if (!holds) std::abort();
}

void hello(std::string_view text) {
  const auto one = decode_hello(text);
  if (!one) return require(!one.error().what.empty());
  require(one->node.size() <= 256 && one->presence_key.size() <= 1024);
  const auto two = decode_hello(encode_hello(*one));
  require(two && two->node == one->node && two->cluster == one->cluster && two->ready == one->ready &&
          two->lineage == one->lineage && two->store_id == one->store_id && two->presence_key == one->presence_key &&
          two->epoch == one->epoch && two->tap == one->tap);
}

void report(std::string_view text) {
  const auto one = decode_report(text);
  if (!one) return require(!one.error().what.empty());
  const PeerReport& a = one->report;
  require(a.gaps.size() <= 64);
  const auto two = decode_report(encode_report(a, one->lineage));
  require(two.has_value());
  const PeerReport& b = two->report;
  require(two->lineage == one->lineage && a.member == b.member && a.training == b.training && a.bound == b.bound &&
          a.published == b.published && a.epoch == b.epoch && a.delta == b.delta &&
          a.digests_wanted == b.digests_wanted && a.shards.size() == b.shards.size() &&
          a.digests.size() == b.digests.size() && a.gaps.size() == b.gaps.size());
  for (std::size_t i = 0; i < a.shards.size(); ++i)
    require(a.shards[i].shard == b.shards[i].shard && a.shards[i].version == b.shards[i].version &&
            a.shards[i].durable == b.shards[i].durable && a.shards[i].from == b.shards[i].from);
  for (std::size_t i = 0; i < a.digests.size(); ++i)
    require(a.digests[i].shard == b.digests[i].shard && a.digests[i].step == b.digests[i].step &&
            a.digests[i].digest == b.digests[i].digest);
  for (std::size_t i = 0; i < a.gaps.size(); ++i)
    require(a.gaps[i].reason == b.gaps[i].reason && a.gaps[i].since_step == b.gaps[i].since_step);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  hello(text);
  report(text);
  return 0;
}
