#include "actors/session_table.h"

#include <map>
#include <set>

#include <doctest/doctest.h>

#include "common/sha256.h"

namespace gradtap::actors {
namespace {

Sha256 content(std::uint64_t n) {
  return sha256(std::to_string(n));
}

Session stored_session(std::string id, std::string run_nonce, std::uint32_t rank) {
  Session session;
  session.id = std::move(id);
  session.run_nonce = std::move(run_nonce);
  session.rank = rank;
  return session;
}

struct Table {
  SeededRandom random{7};
  SessionTable table{random};
  Session& session = **table.open("aa", 0, 1);

  bool is_new(std::uint64_t seq) {
    const auto verdict = table.accept(session, seq, content(seq));
    REQUIRE_MESSAGE(verdict, verdict.error().text());
    return *verdict == SeqVerdict::kNew;
  }
  ErrorCode refused(std::uint64_t seq, std::uint64_t body) {
    const std::uint64_t received = session.received_seq;
    const std::size_t ahead = session.ahead.size();
    const auto verdict = table.accept(session, seq, content(body));
    REQUIRE(!verdict);
    CHECK(session.received_seq == received);
    CHECK(session.ahead.size() == ahead);
    return verdict.error().code;
  }
};

}  // namespace

TEST_CASE("a session belongs to a run and a rank") {
  Table t;
  CHECK(*t.table.open("aa", 0, 1) == &t.session);
  CHECK(*t.table.open("aa", 1, 1) != &t.session);
  CHECK(*t.table.open("bb", 0, 2) != &t.session);
  CHECK(t.table.size() == 3);
  CHECK(t.session.id.size() == 32);
  CHECK(t.table.find(t.session.id) == &t.session);
  CHECK(t.table.find("bb", 1) == nullptr);
  CHECK(t.table.find("none") == nullptr);
  std::set<std::string> ids;
  for (const auto& [id, session] : t.table.sessions()) ids.insert(id);
  CHECK(ids.size() == 3);
}

TEST_CASE("the number of sessions is bounded, and those that exist are still found") {
  SeededRandom random(1);
  SessionTable table(random);
  for (std::uint32_t i = 0; i < SessionTable::kSessionsMax; ++i)
    table.restore(stored_session(std::to_string(i), "r", i));
  const auto more = table.open("other", 0, 1);
  REQUIRE(!more);
  CHECK(more.error().code == ErrorCode::kLimitReached);
  CHECK(table.open("r", 3, 1).has_value());
  CHECK(table.size() == SessionTable::kSessionsMax);
}

TEST_CASE("numbers are accepted once, in any order") {
  Table t;
  CHECK(t.is_new(1));
  CHECK_FALSE(t.is_new(1));
  CHECK(t.session.received_seq == 1);
  CHECK(t.is_new(3));
  CHECK(t.is_new(4));
  CHECK(t.session.received_seq == 1);
  CHECK_FALSE(t.is_new(4));
  CHECK(t.is_new(2));
  CHECK(t.session.received_seq == 4);
  CHECK(t.session.ahead.empty());
  CHECK(t.session.duplicates == 2);
}

TEST_CASE("the same number with other content is a conflict, received or ahead") {
  Table t;
  CHECK(t.is_new(1));
  CHECK(t.is_new(5));
  CHECK(t.refused(1, 999) == ErrorCode::kSequenceConflict);
  CHECK(t.refused(5, 999) == ErrorCode::kSequenceConflict);
  CHECK(t.refused(0, 0) == ErrorCode::kRequestMalformed);
  CHECK(t.session.duplicates == 0);
}

TEST_CASE("how far ahead a number may be is bounded") {
  Table t;
  CHECK(t.is_new(SessionTable::kAheadMax));
  CHECK(t.refused(SessionTable::kAheadMax + 1, 1) == ErrorCode::kLimitReached);
  CHECK(t.refused(~std::uint64_t{0}, 1) == ErrorCode::kLimitReached);
  CHECK(t.is_new(1));
  CHECK(t.is_new(SessionTable::kAheadMax + 1));
}

TEST_CASE("dropped numbers close gaps") {
  Table t;
  CHECK(t.is_new(1));
  CHECK(t.is_new(4));
  REQUIRE(t.table.declare_dropped(t.session, {2, 3, 1, 4}));
  CHECK(t.session.received_seq == 4);
  // What was declared lost and comes after all changes nothing and is no conflict.
  CHECK_FALSE(t.is_new(3));
  // A received number stays what it was.
  CHECK(t.refused(4, 77) == ErrorCode::kSequenceConflict);
  const Status far = t.table.declare_dropped(t.session, {4 + SessionTable::kAheadMax + 1});
  REQUIRE(!far);
  CHECK(far.error().code == ErrorCode::kLimitReached);
  CHECK(t.session.received_seq == 4);
  // A refused list changes nothing, whatever stood before the bad number.
  CHECK_FALSE(t.table.declare_dropped(t.session, {5, 6, 4 + SessionTable::kAheadMax + 1}));
  CHECK(t.session.ahead.empty());
  CHECK(t.is_new(5));
}

TEST_CASE("a restored session goes on where it was") {
  SeededRandom random(1);
  SessionTable table(random);
  Session stored = stored_session("0123", "aa", 2);
  stored.lineage = 4;
  stored.received_seq = 10;
  table.restore(stored);
  Session* session = table.find("aa", 2);
  REQUIRE(session != nullptr);
  CHECK(*table.open("aa", 2, 9) == session);
  CHECK(session->lineage == 4);
  CHECK(*table.accept(*session, 10, content(10)) == SeqVerdict::kDuplicate);
  CHECK(*table.accept(*session, 11, content(11)) == SeqVerdict::kNew);
  CHECK(session->received_seq == 11);
}

TEST_CASE("recent digests are bounded") {
  Table t;
  for (std::uint64_t seq = 1; seq <= 3 * SessionTable::kRecentMax; ++seq) REQUIRE(t.is_new(seq));
  CHECK(t.session.recent.size() == SessionTable::kRecentMax);
  // Too old to be told apart: a duplicate, whatever it holds.
  CHECK(*t.table.accept(t.session, 1, content(12345)) == SeqVerdict::kDuplicate);
  CHECK(t.refused(3 * SessionTable::kRecentMax, 1) == ErrorCode::kSequenceConflict);
}

TEST_CASE("any order of messages, repeats and drops agrees with a list of what was taken") {
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    SeededRandom random(seed);
    Table t;
    std::map<std::uint64_t, std::uint64_t> taken;  // number -> content, 0: declared lost
    for (int i = 0; i < 300; ++i) {
      const std::uint64_t before = t.session.received_seq;
      const std::uint64_t seq = 1 + random.below(40);
      if (random.below(8) == 0) {
        REQUIRE(t.table.declare_dropped(t.session, {seq}));
        taken.emplace(seq, 0);
      } else {
        const std::uint64_t body = seq + 1000 * (random.below(10) == 0 ? 1 : 0);
        const auto verdict = t.table.accept(t.session, seq, content(body));
        const auto known = taken.find(seq);
        if (known == taken.end()) {
          REQUIRE(verdict);
          CHECK(*verdict == SeqVerdict::kNew);
          taken.emplace(seq, body);
        } else if (known->second == 0 || known->second == body) {
          REQUIRE(verdict);
          CHECK(*verdict == SeqVerdict::kDuplicate);
        } else {
          REQUIRE(!verdict);
          CHECK(verdict.error().code == ErrorCode::kSequenceConflict);
        }
      }
      std::uint64_t gapless = 0;
      while (taken.contains(gapless + 1)) ++gapless;
      REQUIRE(t.session.received_seq == gapless);
      REQUIRE(t.session.received_seq >= before);
    }
  }
}

}  // namespace gradtap::actors
