// A put or create that ends at any of its calls, by the end of the process or by the loss of power: the key is absent
// or whole, what was reported as done is there, and the same call again succeeds.
#include <cerrno>
#include <filesystem>
#include <map>
#include <set>
#include <string>

#include <fcntl.h>

#include "storage/directory_store.h"
#include "tests/unit/storage/point_fixture.h"

using namespace gradtap;
using namespace gradtap::storage;
using namespace gradtap::storage::test;
namespace fs = std::filesystem;

namespace {

// Passes calls on until a number of them was made, then every call fails. lose() does to the directory the worst that a
// loss of power may do: names in folders that were not synced afterwards go, files not synced lose their content.
class PowerOps final : public FileOps {
 public:
  explicit PowerOps(std::uint64_t calls) : left_(calls) {}
  std::uint64_t made = 0;

  int open(const std::string& path, int flags) override {
    if (off()) return -1;
    const int fd = system_.open(path, flags);
    if (fd >= 0) paths_[fd] = path;
    if (fd >= 0 && (flags & O_CREAT) != 0) named(path);
    return fd;
  }
  ssize_t write(int fd, const void* bytes, std::size_t count) override {
    if (off()) return -1;
    dirty_.insert(paths_[fd]);
    return system_.write(fd, bytes, count);
  }
  ssize_t read(int fd, void* bytes, std::size_t count, off_t offset) override {
    return off() ? -1 : system_.read(fd, bytes, count, offset);
  }
  int sync(int fd) override {
    if (off()) return -1;
    dirty_.erase(paths_[fd]);
    return 0;  // the real one changes nothing here and takes time
  }
  int sync_directory(const std::string& path) override {
    if (off()) return -1;
    unsynced_names_.erase(path);
    return 0;
  }
  int link(const std::string& from, const std::string& to) override {
    if (off()) return -1;
    const int result = system_.link(from, to);
    if (result == 0) named(to);
    if (result == 0 && dirty_.contains(from)) dirty_.insert(to);
    return result;
  }
  int unlink(const std::string& path) override { return off() ? -1 : system_.unlink(path); }
  int make_directory(const std::string& path) override {
    if (off()) return -1;
    const int result = system_.make_directory(path);
    if (result == 0) named(path);
    return result;
  }
  int list(const std::string& path, std::vector<std::string>& names) override {
    return off() ? -1 : system_.list(path, names);
  }
  std::int64_t length(int fd) override { return system_.length(fd); }
  void close(int fd) override { system_.close(fd); }

  void lose() {
    for (const std::string& path : dirty_)
      if (fs::exists(path)) fs::resize_file(path, 0);
    for (const auto& [folder, names] : unsynced_names_)
      for (const std::string& name : names) fs::remove_all(name);
  }

 private:
  bool off() {
    if (made < left_) {
      ++made;
      return false;
    }
    errno = EIO;
    return true;
  }
  void named(const std::string& path) { unsynced_names_[fs::path(path).parent_path().string()].insert(path); }

  SystemFileOps system_;
  std::uint64_t left_;
  std::map<int, std::string> paths_;
  std::set<std::string> dirty_;
  std::map<std::string, std::set<std::string>> unsynced_names_;
};

DirectoryStoreOptions options_of(const std::string& path, FileOps* files) {
  DirectoryStoreOptions options;
  options.path = path;
  options.writer = "tap0";
  options.files = files;
  options.write_bytes = 1000;
  return options;
}

}  // namespace

TEST_CASE("a write that ends anywhere leaves nothing or the whole (I1, I11, J4)") {
  const auto content = bytes_of(1, 2, 3, 3500);
  const std::string key = point_key("a", 1, 7);
  for (const bool power : {false, true}) {
    for (const bool twin : {false, true}) {  // the key is there already, from another writer
      std::uint64_t done_at = 0;
      for (std::uint64_t calls = 0; done_at == 0; ++calls) {
        REQUIRE(calls < 100);
        CAPTURE(power);
        CAPTURE(twin);
        CAPTURE(calls);
        TempDir dir(true);
        ok(DirectoryStore::open(options_of(dir.path, nullptr)));
        if (twin) require_ok(ok(DirectoryStore::open(options_of(dir.path, nullptr)))->put(key, {content}));
        PowerOps files(calls);
        bool done = false;
        if (auto store = DirectoryStore::open(options_of(dir.path, &files))) {
          const auto created = (*store)->create(key, content);
          done = created.has_value();
          if (done) CHECK(*created == (twin ? Created::kExistsEqual : Created::kCreated));
        }
        if (power) files.lose();
        auto after = ok(DirectoryStore::open(options_of(dir.path, nullptr)));
        const auto found = after->get(key, 1 << 20);
        if (done || twin) REQUIRE(found.has_value());
        if (found)
          CHECK(*found == content);
        else
          CHECK(found.error().code == ErrorCode::kObjectMissing);
        const auto again = ok(after->create(key, content));
        CHECK(again == (found ? Created::kExistsEqual : Created::kCreated));
        CHECK(after->get(key, 1 << 20).value() == content);
        ok(after->remove_stray());
        CHECK(fs::is_empty(dir.path + "/tmp"));
        if (done && files.made < calls) done_at = calls;  // it made fewer calls than it was given: all were tried
      }
      CHECK(done_at > 10);
    }
  }
}
