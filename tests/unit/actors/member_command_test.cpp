#include "actors/member_command.h"

#include <doctest/doctest.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "common/random.h"

namespace gradtap::actors {
namespace {

using nlohmann::json;
using schema::EpochMember;
using schema::EpochRecord;
using schema::MemberState;

EpochRecord three(std::size_t shards = 6) {
  EpochRecord record;
  record.number = 4;
  record.previous[0] = 1;
  record.replicas = 2;
  for (int i = 0; i < 3; ++i) {
    EpochMember member;
    member.name = fmt::format("tap{}", i);
    member.link = fmt::format("10.0.0.{}:7800", i);
    member.http = fmt::format("http://10.0.0.{}:7700", i);
    member.domain = fmt::format("rack-{}", i);
    record.members.push_back(member);
  }
  record.owners = place_shards(record.members, 2, shards, {});
  return record;
}

MemberCommand command(MemberAction action, const std::string& name) {
  MemberCommand command;
  command.action = action;
  command.name = name;
  return command;
}
MemberCommand added(const std::string& name, int address = 9) {
  MemberCommand add = command(MemberAction::kAdd, name);
  add.link = fmt::format("10.0.0.{}:7800", address);
  add.http = fmt::format("http://10.0.0.{}:7700", address);
  add.domain = "rack-" + name;
  return add;
}

ErrorCode code_of(const EpochRecord& now, const MemberCommand& command) {
  const auto next = next_epoch(now, command, now.owners.size());
  return next ? ErrorCode{} : next.error().code;
}
EpochRecord done(const EpochRecord& now, const MemberCommand& command) {
  const auto next = next_epoch(now, command, now.owners.size());
  if (!next) FAIL(next.error().text());
  REQUIRE(next->has_value());
  EpochRecord record = **next;
  CHECK(record.number == now.number + 1);
  // Places never change.
  REQUIRE(record.members.size() >= now.members.size());
  for (std::size_t i = 0; i < now.members.size(); ++i) CHECK(record.members[i].name == now.members[i].name);
  // It is one that can be stored and read.
  record.previous[0] = 1;
  record.proposer = "tap0";
  const auto bytes = schema::encode(record);
  REQUIRE(bytes);
  const auto read = schema::decode_epoch(*bytes);
  if (!read) FAIL(read.error().text());
  CHECK(*read == record);
  for (const auto& owners : record.owners)
    for (const std::uint32_t owner : owners) CHECK(record.members[owner].state == MemberState::kIn);
  return record;
}
bool nothing_to_do(const EpochRecord& now, const MemberCommand& command) {
  const auto next = next_epoch(now, command, now.owners.size());
  return next && !next->has_value();
}
bool owns(const EpochRecord& record, std::uint32_t member) {
  for (const auto& owners : record.owners)
    if (std::find(owners.begin(), owners.end(), member) != owners.end()) return true;
  return false;
}

}  // namespace

TEST_CASE("a new member comes at the end, with its share; said again, nothing changes") {
  const EpochRecord before = three();
  const EpochRecord after = done(before, added("tap3"));
  REQUIRE(after.members.size() == 4);
  CHECK(after.members[3].since_epoch == 5);
  CHECK(after.members[3].capacity == 1);
  CHECK(after.members[3].state == MemberState::kIn);
  CHECK(after.cause == "add tap3");
  CHECK(shards_moved(before.owners, after.owners) == 3);  // 12 copies over 4
  CHECK(nothing_to_do(after, added("tap3")));
  CHECK(nothing_to_do(after, command(MemberAction::kAdd, "tap3")));
  CHECK(code_of(after, added("tap3", 8)) == ErrorCode::kMemberConflict);
  MemberCommand wider = added("tap3");
  wider.capacity = 7;
  CHECK(code_of(after, wider) == ErrorCode::kMemberConflict);
}

TEST_CASE("a new member without facts, or with another one's address, is refused") {
  const EpochRecord now = three();
  for (std::string MemberCommand::* fact : {&MemberCommand::link, &MemberCommand::http, &MemberCommand::domain}) {
    MemberCommand add = added("tap3");
    (add.*fact).clear();
    CHECK(code_of(now, add) == ErrorCode::kRequestMalformed);
  }
  CHECK(code_of(now, added("tap3", 1)) == ErrorCode::kMemberConflict);
  EpochRecord without = now;
  without.members[1].state = MemberState::kOut;
  CHECK(done(without, added("tap3", 1)).members.size() == 4);  // who left needs its address no more
  CHECK(code_of(done(without, added("tap3", 1)), command(MemberAction::kAdd, "tap1")) == ErrorCode::kMemberConflict);
  EpochRecord full = now;
  while (full.members.size() < schema::kEpochMembersMax) {
    full.members.push_back(full.members[0]);
    full.members.back().name = fmt::format("more{}", full.members.size());
    full.members.back().state = MemberState::kOut;
  }
  CHECK(code_of(full, added("tap3")) == ErrorCode::kLimitReached);
}

TEST_CASE("drained, a member owns nothing more; called off, it is the same life; retired, it stays in its place") {
  const EpochRecord before = three();
  const EpochRecord draining = done(before, command(MemberAction::kDrain, "tap1"));
  CHECK(draining.members[1].state == MemberState::kDraining);
  CHECK(draining.members[1].since_epoch == 1);
  CHECK_FALSE(owns(draining, 1));
  CHECK(nothing_to_do(draining, command(MemberAction::kDrain, "tap1")));
  const EpochRecord again = done(draining, command(MemberAction::kAdd, "tap1"));
  CHECK(again.members[1].state == MemberState::kIn);
  CHECK(again.members[1].since_epoch == 1);
  const EpochRecord out = done(draining, command(MemberAction::kRetire, "tap1"));
  CHECK(out.members[1].state == MemberState::kOut);
  CHECK(shards_moved(draining.owners, out.owners) == 0);
  CHECK(nothing_to_do(out, command(MemberAction::kRetire, "tap1")));
  CHECK(nothing_to_do(out, command(MemberAction::kDrain, "tap1")));
  CHECK(nothing_to_do(out, command(MemberAction::kRemove, "tap1")));
  const EpochRecord back = done(out, command(MemberAction::kAdd, "tap1"));
  CHECK(back.members[1].since_epoch == out.number + 1);
  CHECK(owns(back, 1));
  CHECK(code_of(before, command(MemberAction::kRetire, "tap1")) == ErrorCode::kMemberConflict);
}

TEST_CASE("fewer members than copies only by force, and never none") {
  EpochRecord now = done(three(), command(MemberAction::kDrain, "tap1"));
  CHECK(code_of(now, command(MemberAction::kDrain, "tap2")) == ErrorCode::kMemberUnsafe);
  MemberCommand forced = command(MemberAction::kDrain, "tap2");
  forced.force = true;
  now = done(now, forced);
  for (const auto& owners : now.owners) CHECK(owners == std::vector<std::uint32_t>{0});
  forced.name = "tap0";
  CHECK(code_of(now, forced) == ErrorCode::kMemberUnsafe);
  forced.action = MemberAction::kRemove;
  CHECK(code_of(now, forced) == ErrorCode::kMemberUnsafe);
}

TEST_CASE("replaced, a member keeps its shards and begins another life") {
  const EpochRecord before = three();
  MemberCommand replace = command(MemberAction::kReplace, "tap2");
  EpochRecord after = done(before, replace);
  CHECK(after.owners == before.owners);
  CHECK(after.members[2].since_epoch == 5);
  CHECK(after.members[2].link == before.members[2].link);
  replace.link = "10.0.0.77:7800";
  replace.capacity = 2;
  after = done(before, replace);
  CHECK(after.members[2].link == "10.0.0.77:7800");
  CHECK(after.members[2].domain == "rack-2");
  CHECK(after.members[2].capacity == 2);
  replace.link = before.members[0].link;
  CHECK(code_of(before, replace) == ErrorCode::kMemberConflict);
}

TEST_CASE("nobody of that name") {
  for (const MemberAction action :
       {MemberAction::kDrain, MemberAction::kRetire, MemberAction::kRemove, MemberAction::kReplace})
    CHECK(code_of(three(), command(action, "tap9")) == ErrorCode::kMemberUnknown);
}

TEST_CASE("another number of shards keeps the members, and a cluster without a job has no map") {
  const EpochRecord now = three();
  const EpochRecord more = with_shards(now, 10);
  CHECK(more.number == 5);
  CHECK(more.members == now.members);
  CHECK(more.owners.size() == 10);
  CHECK(shards_moved(now.owners, more.owners) == 8);  // those of the four new shards
  CHECK(with_shards(now, 0).owners.empty());
  EpochRecord idle = now;
  idle.owners.clear();
  CHECK(done(idle, added("tap3")).owners.empty());
  // A command meets a lineage of other shards than the epoch knows.
  const auto next = next_epoch(now, added("tap3"), 10);
  REQUIRE(next);
  CHECK((*next)->owners.size() == 10);
  CHECK(shards_moved({}, {{0, 1}, {1}}) == 3);
  CHECK(shards_moved({{0, 1}, {1}, {2}}, {{1, 0}, {2}}) == 1);
}

TEST_CASE("random commands: every epoch can be stored, and no member ever owns what it may not") {
  SeededRandom random(5);
  std::size_t epochs = 0, refused = 0;
  for (int round = 0; round < 60; ++round) {
    EpochRecord now = three(1 + random.below(20));
    for (int i = 0; i < 40; ++i) {
      MemberCommand next = added(fmt::format("tap{}", random.below(6)), static_cast<int>(random.below(8)));
      next.action = static_cast<MemberAction>(random.below(5));
      if (next.action != MemberAction::kAdd || random.below(2) == 0) next.link = next.http = next.domain = {};
      next.capacity = static_cast<std::uint32_t>(random.below(4));
      next.force = random.below(3) == 0;
      const auto result = next_epoch(now, next, now.owners.size());
      if (!result || !*result) {
        refused += result ? 0 : 1;
        continue;
      }
      now = done(now, next);
      ++epochs;
      for (const auto& owners : now.owners) REQUIRE_FALSE(owners.empty());
    }
  }
  CHECK(epochs > 500);
  CHECK(refused > 300);
}

TEST_CASE("commands are read") {
  const auto read = parse_member_command(
      R"({"action":"add","name":"tap-3.x_","link":"[::1]:7800","http":"http://host:7700","domain":"r","capacity":65535,"force":true,"check":true})");
  if (!read) FAIL(read.error().text());
  CHECK(read->action == MemberAction::kAdd);
  CHECK(read->name == "tap-3.x_");
  CHECK(read->capacity == 65'535);
  CHECK(read->force);
  CHECK(read->check);
  const auto least = parse_member_command(R"({"action":"retire","name":"a"})");
  REQUIRE(least);
  CHECK(least->action == MemberAction::kRetire);
  CHECK_FALSE(least->force);
  CHECK_FALSE(least->check);
  for (const char* word : {"add", "drain", "retire", "remove", "replace"})
    CHECK(member_action_name(*member_action(word)) == word);
  CHECK_FALSE(member_action("Add"));
  CHECK_FALSE(member_action(""));
}

TEST_CASE("hostile commands are refused by name") {
  const std::vector<std::string> wrong = {"",
                                          "{",
                                          "[]",
                                          "5",
                                          "null",
                                          "\"add\"",
                                          "{}",
                                          R"({"action":"add"})",
                                          R"({"name":"a"})",
                                          R"({"action":1,"name":"a"})",
                                          R"({"action":"ADD","name":"a"})",
                                          R"({"action":"drain","name":5})",
                                          R"({"action":"drain","name":""})",
                                          R"({"action":"drain","name":"a/../b"})",
                                          R"({"action":"drain","name":"a\u0000"})",
                                          R"({"action":"drain","name":"a b"})",
                                          R"({"action":"drain","name":"ä"})",
                                          R"({"action":"add","name":"a","link":"host:7800"})",
                                          R"({"action":"add","name":"a","link":"10.0.0.1"})",
                                          R"({"action":"add","name":"a","link":"10.0.0.1:0"})",
                                          R"({"action":"add","name":"a","link":"10.0.0.1:65536"})",
                                          R"({"action":"add","name":"a","link":"10.0.0.1:-1"})",
                                          R"({"action":"add","name":"a","link":7})",
                                          R"({"action":"add","name":"a","http":"10.0.0.1:7700"})",
                                          R"({"action":"add","name":"a","http":"https://h:1"})",
                                          R"({"action":"add","name":"a","http":"http://"})",
                                          R"({"action":"add","name":"a","domain":"x\ny"})",
                                          R"({"action":"add","name":"a","domain":["x"]})",
                                          R"({"action":"add","name":"a","capacity":-1})",
                                          R"({"action":"add","name":"a","capacity":65536})",
                                          R"({"action":"add","name":"a","capacity":1.5})",
                                          R"({"action":"add","name":"a","capacity":"1"})",
                                          R"({"action":"add","name":"a","force":1})",
                                          R"({"action":"add","name":"a","check":"true"})",
                                          R"({"action":"drain","name":"a"} x)"};
  for (const std::string& text : wrong) {
    CAPTURE(text);
    const auto read = parse_member_command(text);
    REQUIRE_FALSE(read);
    CHECK_FALSE(read.error().what.empty());
  }
  CHECK_FALSE(parse_member_command(json{{"action", "drain"}, {"name", std::string(65, 'a')}}.dump()));
  CHECK(parse_member_command(json{{"action", "drain"}, {"name", std::string(64, 'a')}}.dump()));
  // What is accepted can be stored.
  const json longest = {{"action", "drain"}, {"name", "a"}, {"domain", std::string(schema::kEpochTextMax, 'd')}};
  CHECK(parse_member_command(longest.dump()));
  const json longer = {{"action", "drain"}, {"name", "a"}, {"domain", std::string(schema::kEpochTextMax + 1, 'd')}};
  CHECK_FALSE(parse_member_command(longer.dump()));
  const auto huge = parse_member_command(json{{"action", "drain"}, {"name", std::string(20'000, 'a')}}.dump());
  REQUIRE_FALSE(huge);
  CHECK(huge.error().code == ErrorCode::kRequestTooLarge);
  CHECK_FALSE(parse_member_command(std::string(10'000, '[')));
  // Any cut of a good one, and any byte of it changed: an answer, never a crash.
  const std::string good = R"({"action":"replace","name":"a","link":"10.0.0.1:7800","capacity":3})";
  for (std::size_t i = 0; i < good.size(); ++i) {
    CHECK_FALSE(parse_member_command(good.substr(0, i)));
    for (const char byte : {'\0', '"', '\x80', '9', '}'}) {
      std::string changed = good;
      changed[i] = byte;
      (void)parse_member_command(changed);
    }
  }
}

}  // namespace gradtap::actors
