// SessionTable: who talks to the side channel, and how far each has come (PROTOCOLS 3.2).
//
// Purpose: sessions by (run_nonce, rank), the cumulative received_seq of each, duplicates told from conflicts.
// Ownership: owned by the side-channel actor; one thread. Invariants: received_seq never falls; a sequence number is
// accepted once; numbers ahead of a gap are remembered up to `ahead_max`. Failure behaviour: a named Error; nothing
// is changed by a refused call. Randomness is a parameter.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "common/error.h"
#include "common/ids.h"
#include "common/random.h"

namespace gradtap::actors {

struct Session {
  std::string id;
  std::string run_nonce;
  std::uint32_t rank = 0;
  LineageId lineage = 0;
  std::uint64_t received_seq = 0;          // every number up to this one was received or declared dropped
  std::map<std::uint64_t, Sha256> ahead;   // received beyond a gap
  std::map<std::uint64_t, Sha256> recent;  // digests of the newest ones, to tell a duplicate from a conflict
  std::uint64_t duplicates = 0;
};

enum class SeqVerdict : std::uint8_t { kNew, kDuplicate };

class SessionTable {
 public:
  static constexpr std::size_t kSessionsMax = 65'536;
  static constexpr std::size_t kAheadMax = 4096;
  static constexpr std::size_t kRecentMax = 1024;

  explicit SessionTable(Random& random) : random_(random) {}

  // The session of (run_nonce, rank): the existing one, or a new one.
  [[nodiscard]] Result<Session*> open(const std::string& run_nonce, std::uint32_t rank, LineageId lineage);
  // Puts back a session that was read from the store.
  void restore(Session session);
  [[nodiscard]] Session* find(std::string_view id);
  [[nodiscard]] Session* find(std::string_view run_nonce, std::uint32_t rank);

  // Whether this message is new. SEQUENCE_CONFLICT: same number, other content. LIMIT_REACHED: too far ahead.
  [[nodiscard]] Result<SeqVerdict> accept(Session& session, std::uint64_t seq, const Sha256& digest);
  // The client declared that these numbers will never come.
  [[nodiscard]] Status declare_dropped(Session& session, const std::vector<std::uint64_t>& seqs);

  [[nodiscard]] std::size_t size() const { return sessions_.size(); }
  [[nodiscard]] const std::map<std::string, Session, std::less<>>& sessions() const { return sessions_; }

 private:
  static void advance(Session& session);

  Random& random_;
  std::map<std::string, Session, std::less<>> sessions_;
};

}  // namespace gradtap::actors
