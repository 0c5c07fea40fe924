#include "storage/directory_store.h"

#include <atomic>
#include <cerrno>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "storage/object_key.h"
#include "tests/test_files.h"
#include "tests/unit/storage/point_fixture.h"

using namespace gradtap;
using namespace gradtap::storage;
using namespace gradtap::storage::test;
using gradtap::testing::bytes_of;
using gradtap::testing::read_text;
namespace fs = std::filesystem;

namespace {

std::unique_ptr<DirectoryStore> open_at(const std::string& path, FileOps* files = nullptr,
                                        const std::string& writer = "tap0") {
  DirectoryStoreOptions options;
  options.path = path;
  options.writer = writer;
  options.files = files;
  return ok(DirectoryStore::open(options));
}

std::size_t tmp_files(const std::string& root) {
  return static_cast<std::size_t>(std::distance(fs::directory_iterator(root + "/tmp"), {}));
}

const std::string kKey = "jobs/a/00000000000000000001/meta/x";

}  // namespace

TEST_CASE("put, create, get, read, length, list, remove in a directory") {
  TempDir dir(true);
  auto store = open_at(dir.path + "/points");
  const auto a = bytes_of("hello "), b = bytes_of("world");
  require_ok(store->put(kKey, {a, {}, b}));
  CHECK(read_text(dir.path + "/points/" + kKey) == "hello world");
  CHECK(store->get(kKey, 11).value() == bytes_of("hello world"));
  CHECK(store->get(kKey, 10).error().code == ErrorCode::kLimitReached);
  CHECK(store->length(kKey).value() == 11);
  CHECK(store->read(kKey, 6, 3).value() == bytes_of("wor"));
  CHECK(store->read(kKey, 6, 99).value() == bytes_of("world"));
  CHECK(store->read(kKey, 99, 1).value().empty());
  // The same again is success; other content is a conflict, and nothing changes.
  require_ok(store->put(kKey, {bytes_of("hello world")}));
  CHECK(store->put(kKey, {bytes_of("hello World")}).error().code == ErrorCode::kObjectConflict);
  CHECK(store->put(kKey, {bytes_of("hello")}).error().code == ErrorCode::kObjectConflict);
  CHECK(store->create(kKey, bytes_of("hello world")).value() == Created::kExistsEqual);
  CHECK(store->create(kKey, bytes_of("other")).value() == Created::kExists);
  CHECK(store->create(kKey + "y", bytes_of("")).value() == Created::kCreated);
  CHECK(store->create(kKey + "y", bytes_of("")).value() == Created::kExistsEqual);
  CHECK(read_text(dir.path + "/points/" + kKey) == "hello world");
  CHECK(store->list("jobs/a/").value() == std::vector<std::string>{kKey, kKey + "y"});
  CHECK(store->list(kKey + "y").value() == std::vector<std::string>{kKey + "y"});
  CHECK(store->list("jobs/b/").value().empty());
  CHECK(store->list("").value().size() == 2);
  CHECK(store->get("jobs/b/c", 10).error().code == ErrorCode::kObjectMissing);
  CHECK(store->length("jobs/b/c").error().code == ErrorCode::kObjectMissing);
  require_ok(store->remove({kKey, "jobs/not/there", kKey + "y"}));
  CHECK(store->list("jobs/").value().empty());
  CHECK(tmp_files(dir.path + "/points") == 0);
}

TEST_CASE("a large object comes whole and in pieces in order") {
  TempDir dir(true);
  auto store = open_at(dir.path);
  for (const std::size_t size : {std::size_t{0}, std::size_t{1}, std::size_t{512} << 10, (std::size_t{3} << 20) + 17}) {
    const std::string key = kKey + std::to_string(size);
    std::vector<std::uint8_t> bytes(size);
    for (std::size_t i = 0; i < size; ++i) bytes[i] = static_cast<std::uint8_t>(i * 2654435761U >> 24);
    require_ok(store->put(key, {bytes}));
    std::vector<std::uint8_t> seen;
    const auto loaded =
        ok(store->load(key, size, [&](ByteSpan piece) { seen.insert(seen.end(), piece.begin(), piece.end()); }));
    CHECK(seen == bytes);
    CHECK(std::equal(loaded.bytes().begin(), loaded.bytes().end(), bytes.begin(), bytes.end()));
    if (size > 0) CHECK(store->load(key, size - 1, [](ByteSpan) {}).error().code == ErrorCode::kLimitReached);
  }
  CHECK(store->load("jobs/a/00000000000000000001/meta/none", 10, [](ByteSpan) {}).error().code ==
        ErrorCode::kObjectMissing);
}

TEST_CASE("hostile keys stay inside the store; links and folders are no objects") {
  TempDir dir(true);
  auto store = open_at(dir.path + "/s");
  std::ofstream(dir.path + "/outside") << "secret";
  for (const char* key : {"../outside", "jobs/../../outside", "/etc/passwd", "", "tmp/x", "tmp", "a//b", "jobs/.x"}) {
    CAPTURE(key);
    CHECK(store->get(key, 100).error().code == ErrorCode::kBadText);
    CHECK(store->create(key, bytes_of("x")).error().code == ErrorCode::kBadText);
    CHECK(store->remove({key}).error().code == ErrorCode::kBadText);
  }
  fs::create_directories(dir.path + "/s/jobs/folder");
  fs::create_symlink(dir.path + "/outside", dir.path + "/s/jobs/link");
  CHECK(store->get("jobs/link", 100).error().code == ErrorCode::kObjectCorrupt);
  CHECK(store->get("jobs/folder", 100).error().code == ErrorCode::kObjectCorrupt);
  CHECK(fs::exists(dir.path + "/outside"));
}

TEST_CASE("of many contenders exactly one creates a key, and all see its content (I15, J5)") {
  TempDir dir(true);
  auto a = open_at(dir.path), b = open_at(dir.path, nullptr, "tap1");
  for (int round = 0; round < 30; ++round) {
    const std::string key = lineage_claim_key("a", static_cast<LineageId>(round + 1));
    std::atomic<int> created = 0, lost = 0;
    {
      std::vector<std::jthread> threads;
      for (int i = 0; i < 6; ++i)
        threads.emplace_back([&, i] {
          const auto result = (i % 2 == 0 ? a : b)->create(key, bytes_of("contender " + std::to_string(i)));
          if (result && *result == Created::kCreated) ++created;
          if (result && *result == Created::kExists) ++lost;
        });
    }
    CHECK(created == 1);
    CHECK(lost == 5);
    CHECK(a->get(key, 100).value() == b->get(key, 100).value());
  }
  CHECK(tmp_files(dir.path) == 0);
}

TEST_CASE("every failing call of a write is a named error, leaves nothing half, and the retry succeeds (I11)") {
  struct Expected {
    const char* fault;
    ErrorCode code;
  };
  const auto content = bytes_of(std::string(5000, 'x'));
  for (const char* op : {"open", "write", "fsync", "fsync_dir", "link", "mkdir"})
    for (const Expected& each : {Expected{"ENOSPC", ErrorCode::kStoreFull},
                                 {"EDQUOT", ErrorCode::kStoreFull},
                                 {"EIO", ErrorCode::kObjectStore},
                                 {"EROFS", ErrorCode::kObjectStore},
                                 {"ESTALE", ErrorCode::kObjectStore}}) {
      // First every call that the whole write makes is counted, then each of them fails once.
      std::uint64_t calls = 0;
      for (std::uint64_t nth = 0; nth <= calls; ++nth) {
        TempDir dir(true);
        open_at(dir.path);  // makes the root
        SystemFileOps system;
        const std::string plan = nth == 0 ? "" : std::string(op) + ":" + std::to_string(nth) + ":" + each.fault;
        CAPTURE(plan);
        FaultyFileOps files(system, ok(parse_faults(plan)));
        DirectoryStoreOptions options;
        options.path = dir.path;
        options.writer = "tap0";
        options.files = &files;
        options.write_bytes = 1024;
        auto opened = DirectoryStore::open(options);
        if (!opened) {
          CHECK(nth > 0);
          continue;
        }
        auto& store = **opened;
        const auto created = store.create(kKey, content);
        if (nth == 0) {
          for (int i = 0; i < static_cast<int>(kFileOps); ++i)
            if (file_op_name(static_cast<FileOp>(i)) == op) calls = files.calls(static_cast<FileOp>(i));
          REQUIRE(calls > 0);
          CHECK(created.value() == Created::kCreated);
          continue;
        }
        if (!created) {
          CHECK(created.error().code == each.code);
          CHECK(created.error().where.find(dir.path) != std::string::npos);
          CHECK_FALSE(created.error().remedy.empty());
        }
        CHECK(tmp_files(dir.path) == 0);
        if (fs::exists(dir.path + "/" + kKey)) CHECK(store.get(kKey, 1 << 20).value() == content);
        const auto again = store.create(kKey, content);
        REQUIRE(again.has_value());
        CHECK(*again != Created::kExists);
        CHECK(store.get(kKey, 1 << 20).value() == content);
      }
    }
}

TEST_CASE("short writes and slow calls change nothing but the number of calls") {
  TempDir dir(true);
  SystemFileOps system;
  FaultyFileOps files(system, ok(parse_faults("write:1+:short,fsync:1:slow=1,fsync_dir:2-3:slow=1")));
  auto store = open_at(dir.path, &files);
  const auto content = bytes_of(1, 2, 3, 100'000);
  require_ok(store->put(kKey, {content}));
  CHECK(files.calls(FileOp::kWrite) > 10);
  CHECK(store->get(kKey, 1 << 20).value() == content);
}

TEST_CASE("reading errors are errors, never absence (J13)") {
  TempDir dir(true);
  {
    require_ok(open_at(dir.path)->put(kKey, {bytes_of("x")}));
  }
  SystemFileOps system;
  FaultyFileOps files(system, ok(parse_faults("open:2:EIO,read:1:EIO,list:2:EIO,open:4:EACCES,unlink:1:EIO")));
  auto store = open_at(dir.path, &files);                                // open 1: store-id; list 1
  CHECK(store->get(kKey, 10).error().code == ErrorCode::kObjectStore);   // open 2
  CHECK(store->get(kKey, 10).error().code == ErrorCode::kObjectStore);   // read 1
  CHECK(store->list("jobs/").error().code == ErrorCode::kObjectStore);   // list 2
  CHECK(store->length(kKey).error().code == ErrorCode::kObjectStore);    // open 4
  CHECK(store->remove({kKey}).error().code == ErrorCode::kObjectStore);  // unlink 1
  CHECK(store->get(kKey, 10).value() == bytes_of("x"));
}

TEST_CASE("a store that is unmounted is an error: not empty, and nothing is written beside it") {
  TempDir dir(true);
  const std::string root = dir.path + "/points";
  auto store = open_at(root);
  require_ok(store->put(kKey, {bytes_of("x")}));
  CHECK(store->create("cluster/store-id", bytes_of("nonce")).value() == Created::kCreated);
  fs::rename(root, dir.path + "/away");
  fs::create_directory(root);  // the mount point
  CHECK(store->list("jobs/").error().code == ErrorCode::kObjectStore);
  CHECK(store->length(kKey).error().code == ErrorCode::kObjectStore);
  CHECK(store->get(kKey, 10).error().code == ErrorCode::kObjectStore);
  CHECK(store->put(kKey + "y", {bytes_of("y")}).error().code == ErrorCode::kObjectStore);
  CHECK(store->remove({kKey}).error().code == ErrorCode::kObjectStore);
  CHECK(fs::is_empty(root));
  fs::remove(root);
  CHECK(store->list("jobs/").error().code == ErrorCode::kObjectStore);
  fs::rename(dir.path + "/away", root);
  CHECK(store->get(kKey, 10).value() == bytes_of("x"));
}

TEST_CASE("stray temporary files of the own name are deleted, others and active ones are not (I5)") {
  TempDir dir(true);
  auto store = open_at(dir.path);
  for (const char* name : {"tap0.0a1b", "tap0.ffff", "tap1.0a1b", "tap0.x.0a1b", "tap00.0a1b"})
    std::ofstream(dir.path + "/tmp/" + name) << "rest";
  CHECK(store->remove_stray().value() == 2);
  CHECK(tmp_files(dir.path) == 3);
  CHECK(store->remove_stray().value() == 0);
  // What this life could not delete it deletes later.
  SystemFileOps system;
  FaultyFileOps files(system, ok(parse_faults("unlink:1:EIO")));
  auto other = open_at(dir.path, &files);
  require_ok(other->put(kKey, {bytes_of("x")}));
  CHECK(tmp_files(dir.path) == 4);
  CHECK(other->remove_stray().value() == 1);
}

TEST_CASE("a folder that was deleted meanwhile is made again") {
  TempDir dir(true);
  auto store = open_at(dir.path);
  require_ok(store->put(kKey, {bytes_of("x")}));
  fs::remove_all(dir.path + "/jobs");
  require_ok(store->put(kKey + "y", {bytes_of("y")}));
  CHECK(store->get(kKey + "y", 10).value() == bytes_of("y"));
  fs::remove_all(dir.path + "/jobs");
  const std::string deeper = "jobs/a/00000000000000000001/step/00000000000000000001-x";
  require_ok(store->put(deeper, {bytes_of("z")}));
  CHECK(store->get(deeper, 10).value() == bytes_of("z"));
}

TEST_CASE("for reading only: nothing is made, nothing is written") {
  TempDir dir(true);
  DirectoryStoreOptions options;
  options.path = dir.path + "/none";
  options.read_only = true;
  CHECK(DirectoryStore::open(options).error().code == ErrorCode::kStoreOpen);
  CHECK_FALSE(fs::exists(options.path));
  fs::create_directory(options.path);
  auto store = ok(DirectoryStore::open(options));
  CHECK(store->create(kKey, bytes_of("x")).error().code == ErrorCode::kObjectStore);
  CHECK(store->remove({kKey}).error().code == ErrorCode::kObjectStore);
  CHECK(store->list("jobs/").value().empty());
  CHECK(fs::is_empty(options.path));
  options.read_only = false;
  for (const char* writer : {"", "a/b", ".a", "a b"}) {
    options.writer = writer;
    CHECK(DirectoryStore::open(options).error().code == ErrorCode::kStoreOpen);
  }
}

TEST_CASE("killed after the link of a point record: the point is there, whole, and its retry finds it (I1)") {
  TempDir dir(true);
  auto store = open_at(dir.path);
  PointMaker maker{*store};
  const LineageId lineage = maker.start();
  maker.publish(lineage, 1, {0, 0});
  const schema::PointRecord record = maker.record(lineage, 2, {0, 0});
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    ::setenv("GRADTAP_KILL_POINT", "point.after_link:1", 1);
    EnvironmentKillPoints kill_points;
    DirectoryStoreOptions options;
    options.path = dir.path;
    options.writer = "tap1";
    options.kill_points = &kill_points;
    auto own = DirectoryStore::open(options);
    // A lineage claim is a create as well, and no point.
    if (!own || !(*own)->create(lineage_claim_key("b", 1), bytes_of("x")) || create_point(**own, record)) ::_exit(1);
    ::_exit(2);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  REQUIRE(WIFSIGNALED(status));
  CHECK(WTERMSIG(status) == SIGKILL);
  CHECK(store->length(lineage_claim_key("b", 1)).value() == 1);
  CHECK(ok(read_point(*store, maker.job, lineage, 2)).record == record);
  CHECK(ok(create_point(*store, record)).outcome == PointOutcome::kExisted);
  CHECK(tmp_files(dir.path) == 1);
  CHECK(open_at(dir.path, nullptr, "tap1")->remove_stray().value() == 1);
}

TEST_CASE("fault plans") {
  const auto faults =
      ok(parse_faults("write:3:ENOSPC,fsync:2-9:EIO,link:1+:EROFS,write:1+:short,fsync_dir:4:slow=200"));
  REQUIRE(faults.size() == 5);
  CHECK(faults[0].op == FileOp::kWrite);
  CHECK(faults[0].first == 3);
  CHECK(faults[0].last == 3);
  CHECK(faults[0].error == ENOSPC);
  CHECK(faults[1].op == FileOp::kSync);
  CHECK(faults[1].first == 2);
  CHECK(faults[1].last == 9);
  CHECK(faults[2].last == ~std::uint64_t{0});
  CHECK(faults[3].half);
  CHECK(faults[4].op == FileOp::kSyncDirectory);
  CHECK(faults[4].delay_ms == 200);
  CHECK(ok(parse_faults("")).empty());
  for (const char* wrong : {"x", "write", "write:1", "write:0:EIO", "write:1:EWHAT", "writes:1:EIO", "write:2-1:EIO",
                            "write:-1:EIO", "write:1+2:EIO", "read:1:short", "write:1:slow=", "write:1:slow=9999999",
                            "write:1:EIO:x", "write:99999999999999999999:EIO", ":1:EIO"})
    CHECK_FALSE_MESSAGE(parse_faults(wrong).has_value(), wrong);
}
