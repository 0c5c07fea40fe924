#include "schema/epoch_codec.h"

#include <algorithm>
#include <unordered_set>

#include <schema/epoch.capnp.h>

#include "schema/sealed_message.h"

namespace gradtap::schema {
namespace {

using namespace sealed_message;

constexpr std::uint32_t kCapacityMax = 65'535;

std::unexpected<Error> beyond(const char* what, std::size_t most, std::size_t actual) {
  return fail(ErrorCode::kLimitReached, fmt::format("epoch record has too many {}", what), {},
              fmt::format("at most {}", most), fmt::format("{}", actual));
}

std::string_view read(wire::EpochMember::Reader from, std::uint64_t number, EpochMember& to) {
  to.name = str(from.getName());
  if (to.name.empty() || to.name.size() > kEpochTextMax) return "members.name";
  to.link = str(from.getLink());
  if (to.link.size() > kEpochTextMax) return "members.link";
  to.http = str(from.getHttp());
  if (to.http.size() > kEpochTextMax) return "members.http";
  to.domain = str(from.getDomain());
  if (to.domain.size() > kEpochTextMax) return "members.domain";
  to.capacity = from.getCapacity();
  if (to.capacity == 0 || to.capacity > kCapacityMax) return "members.capacity";
  if (from.getState() > static_cast<std::uint16_t>(MemberState::kOut)) return "members.state";
  to.state = static_cast<MemberState>(from.getState());
  to.since_epoch = from.getSinceEpoch();
  if (to.since_epoch == 0 || to.since_epoch > number) return "members.sinceEpoch";
  return {};
}

// Owners of one shard: at least one, different members that are not out.
bool read(capnp::List<std::uint16_t>::Reader from, const EpochRecord& record, std::vector<std::uint32_t>& to) {
  if (from.size() == 0 || from.size() > record.replicas) return false;
  for (const std::uint32_t owner : from) {
    if (owner >= record.members.size() || record.members[owner].state == MemberState::kOut) return false;
    if (std::find(to.begin(), to.end(), owner) != to.end()) return false;
    to.push_back(owner);
  }
  return true;
}

std::string_view read(wire::Epoch::Reader from, EpochRecord& to) {
  to.number = from.getNumber();
  if (to.number == 0) return "number";
  if (!copy_exact(from.getPrevious(), to.previous)) return "previous";
  if ((to.previous == Sha256{}) != (to.number == 1)) return "previous";
  to.replicas = from.getReplicas();
  if (to.replicas == 0 || to.replicas > kEpochReplicasMax) return "replicas";
  const auto members = from.getMembers();
  if (members.size() == 0 || members.size() > kEpochMembersMax) return "members";
  std::unordered_set<std::string> names;
  for (const auto entry : members) {
    EpochMember member;
    if (const std::string_view wrong = read(entry, to.number, member); !wrong.empty()) return wrong;
    if (!names.insert(member.name).second) return "members.name";
    to.members.push_back(std::move(member));
  }
  const auto owners = from.getOwners();
  if (owners.size() > kEpochShardsMax) return "owners";
  to.owners.reserve(owners.size());
  for (const auto entry : owners)
    if (!read(entry, to, to.owners.emplace_back())) return "owners";
  to.proposer = str(from.getProposer());
  if (to.proposer.size() > kEpochTextMax) return "proposer";
  to.cause = str(from.getCause());
  to.created_wall_ms = from.getCreatedWallMs();
  return {};
}

}  // namespace

Result<std::vector<std::uint8_t>> encode(const EpochRecord& record) {
  if (record.members.size() > kEpochMembersMax) return beyond("members", kEpochMembersMax, record.members.size());
  if (record.owners.size() > kEpochShardsMax) return beyond("shards", kEpochShardsMax, record.owners.size());
  capnp::MallocMessageBuilder message;
  auto root = message.initRoot<wire::Epoch>();
  root.setNumber(record.number);
  root.setPrevious(data(record.previous));
  root.setReplicas(record.replicas);
  auto members = root.initMembers(static_cast<unsigned>(record.members.size()));
  for (unsigned i = 0; i < record.members.size(); ++i) {
    const EpochMember& from = record.members[i];
    members[i].setName(text(from.name));
    members[i].setLink(text(from.link));
    members[i].setHttp(text(from.http));
    members[i].setDomain(text(from.domain));
    members[i].setCapacity(from.capacity);
    members[i].setState(static_cast<std::uint16_t>(from.state));
    members[i].setSinceEpoch(from.since_epoch);
  }
  auto owners = root.initOwners(static_cast<unsigned>(record.owners.size()));
  for (unsigned shard = 0; shard < record.owners.size(); ++shard) {
    const std::vector<std::uint32_t>& from = record.owners[shard];
    if (from.size() > kEpochReplicasMax) return beyond("owners of a shard", kEpochReplicasMax, from.size());
    auto to = owners.init(shard, static_cast<unsigned>(from.size()));
    for (unsigned i = 0; i < from.size(); ++i) {
      if (from[i] >= kEpochMembersMax) return beyond("members", kEpochMembersMax, std::size_t{from[i]} + 1);
      to.set(i, static_cast<std::uint16_t>(from[i]));
    }
  }
  root.setProposer(text(record.proposer));
  root.setCause(text(record.cause));
  root.setCreatedWallMs(record.created_wall_ms);
  std::vector<std::uint8_t> bytes = sealed(RecordType::kEpoch, message);
  if (bytes.size() > kEpochBytesMax)
    return fail(ErrorCode::kLimitReached, "epoch record is too large", {},
                fmt::format("at most {} bytes", kEpochBytesMax), fmt::format("{} bytes", bytes.size()),
                "use shorter names and a shorter cause");
  return bytes;
}

Result<EpochRecord> decode_epoch(ByteSpan bytes) {
  return decoded<wire::Epoch, EpochRecord>(
      RecordType::kEpoch, bytes, kEpochBytesMax,
      [](wire::Epoch::Reader root, EpochRecord& record) -> std::string_view { return read(root, record); });
}

}  // namespace gradtap::schema
