#include "actors/session_table.h"

#include <fmt/format.h>

namespace gradtap::actors {

Result<Session*> SessionTable::open(const std::string& run_nonce, std::uint32_t rank, LineageId lineage) {
  if (Session* existing = find(run_nonce, rank)) return existing;
  if (sessions_.size() >= kSessionsMax)
    return fail(ErrorCode::kLimitReached, "too many sessions", "attach", fmt::format("at most {}", kSessionsMax), {},
                "restart the node");
  Session session;
  session.id = fmt::format("{:016x}{:016x}", random_.next(), random_.next());
  session.run_nonce = run_nonce;
  session.rank = rank;
  session.lineage = lineage;
  const std::string id = session.id;
  return &sessions_.emplace(id, std::move(session)).first->second;
}

void SessionTable::restore(Session session) {
  const std::string id = session.id;
  sessions_.insert_or_assign(id, std::move(session));
}

Session* SessionTable::find(std::string_view id) {
  const auto it = sessions_.find(id);
  return it == sessions_.end() ? nullptr : &it->second;
}

Session* SessionTable::find(std::string_view run_nonce, std::uint32_t rank) {
  for (auto& [id, session] : sessions_)
    if (session.rank == rank && session.run_nonce == run_nonce) return &session;
  return nullptr;
}

Result<SeqVerdict> SessionTable::accept(Session& session, std::uint64_t seq, const Sha256& digest) {
  // A number that was declared dropped has no digest: what comes for it after all is a duplicate.
  auto conflict = [&](const Sha256& known) { return known != Sha256{} && known != digest; };
  const auto where = [&] { return fmt::format("session {} rank {} seq {}", session.id, session.rank, seq); };
  if (seq == 0) return fail(ErrorCode::kRequestMalformed, "sequence numbers start at 1", where(), ">= 1", "0");
  const auto known_recent = session.recent.find(seq);
  const auto known_ahead = session.ahead.find(seq);
  if ((known_recent != session.recent.end() && conflict(known_recent->second)) ||
      (known_ahead != session.ahead.end() && conflict(known_ahead->second)))
    return fail(ErrorCode::kSequenceConflict, "the same sequence number came with other content", where(),
                "the bytes received before", "other bytes", "restart the job: its client is confused");
  if (seq <= session.received_seq || known_ahead != session.ahead.end()) {
    ++session.duplicates;
    return SeqVerdict::kDuplicate;
  }
  if (seq - session.received_seq > kAheadMax)
    return fail(ErrorCode::kLimitReached, "a sequence number is too far ahead of the last gapless one", where(),
                fmt::format("at most {}", session.received_seq + kAheadMax), fmt::format("{}", seq),
                "declare what was dropped");
  session.ahead.emplace(seq, digest);
  advance(session);
  return SeqVerdict::kNew;
}

Status SessionTable::declare_dropped(Session& session, const std::vector<std::uint64_t>& seqs) {
  for (const std::uint64_t seq : seqs)
    if (seq > session.received_seq && seq - session.received_seq > kAheadMax)
      return fail(ErrorCode::kLimitReached, "a dropped sequence number is too far ahead",
                  fmt::format("session {} seq {}", session.id, seq), {}, {}, "declare drops in order");
  for (const std::uint64_t seq : seqs)
    if (seq > session.received_seq) session.ahead.emplace(seq, Sha256{});
  advance(session);
  return {};
}

void SessionTable::advance(Session& session) {
  while (!session.ahead.empty() && session.ahead.begin()->first == session.received_seq + 1) {
    session.recent.insert(session.ahead.extract(session.ahead.begin()));
    ++session.received_seq;
  }
  while (session.recent.size() > kRecentMax) session.recent.erase(session.recent.begin());
}

}  // namespace gradtap::actors
