#include "storage/directory_store.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include <fcntl.h>
#include <fmt/format.h>

#include "storage/object_key.h"

namespace gradtap::storage {
namespace {

constexpr std::string_view kTmp = "tmp";
constexpr std::string_view kStoreIdKey = "cluster/store-id";
constexpr std::size_t kCompareBytes = std::size_t{1} << 20;
constexpr std::uint64_t kPieceBytes = std::uint64_t{512} << 10;  // stays in a second-level cache until it is digested
constexpr int kFolderDepthMax = 12;

std::string text_of(int error) {
  char buffer[128];
  return ::strerror_r(error, buffer, sizeof buffer);  // the GNU one, thread-safe
}

// What an errno means to a caller: full, missing a feature, or simply not reachable now.
std::unexpected<Error> system_error(int error, std::string_view call, const std::string& path) {
  std::string what = fmt::format("object store: {} failed", call);
  if (error == ENOSPC || error == EDQUOT)
    return fail(ErrorCode::kStoreFull, std::move(what), path, {}, text_of(error),
                "free space there; the upload is tried again");
  const bool no_links = call == "link" && (error == EPERM || error == EOPNOTSUPP || error == ENOSYS);
  return fail(ErrorCode::kObjectStore, std::move(what), path, {}, text_of(error),
              no_links ? "use a file system with hard links" : "check the directory, its mount and its permissions");
}

std::string_view folder_of(std::string_view key) {
  const std::size_t slash = key.rfind('/');
  return slash == std::string_view::npos ? std::string_view{} : key.substr(0, slash);
}

bool is_writer(std::string_view text) {
  return !text.empty() && text.size() <= 64 && is_plain_key(text) && text.find('/') == std::string_view::npos;
}

}  // namespace

class DirectoryStore::OpenFile {
 public:
  explicit OpenFile(FileOps& files) : files_(files) {}
  ~OpenFile() { reset(); }
  OpenFile(const OpenFile&) = delete;
  OpenFile& operator=(const OpenFile&) = delete;
  bool open(const std::string& path, int flags) {
    reset();
    fd_ = files_.open(path, flags);
    return fd_ >= 0;
  }
  [[nodiscard]] int fd() const { return fd_; }

 private:
  void reset() {
    if (fd_ >= 0) files_.close(fd_);
    fd_ = -1;
  }
  FileOps& files_;
  int fd_ = -1;
};

DirectoryStore::DirectoryStore(const DirectoryStoreOptions& options)
    : options_(options), files_(options.files != nullptr ? *options.files : system_) {}

Result<std::unique_ptr<DirectoryStore>> DirectoryStore::open(const DirectoryStoreOptions& options) {
  if (options.path.empty())
    return fail(ErrorCode::kStoreOpen, "object store has no directory", {}, "a path", "nothing", "name a directory");
  if (!options.read_only && !is_writer(options.writer))
    return fail(ErrorCode::kStoreOpen, "object store has no usable writer name", options.path,
                "1 to 64 of A-Z a-z 0-9 _ -", fmt::format("\"{}\"", options.writer), "use the node's name");
  std::unique_ptr<DirectoryStore> store(new DirectoryStore(options));
  if (!options.read_only) {
    for (const std::string& path : {options.path, options.path + "/" + std::string(kTmp)})
      if (store->files_.make_directory(path) != 0 && errno != EEXIST) return system_error(errno, "mkdir", path);
    if (store->files_.sync_directory(options.path) != 0) return system_error(errno, "fsync_dir", options.path);
  }
  std::vector<std::string> names;
  if (store->files_.list(options.path, names) != 0) {
    const int error = errno;
    return fail(ErrorCode::kStoreOpen, "object store cannot be opened", options.path, "a directory", text_of(error),
                "check the path, the mount and the permissions");
  }
  OpenFile id(store->files_);
  store->has_store_id_ = id.open(store->path_of(kStoreIdKey), O_RDONLY);
  return store;
}

std::string DirectoryStore::path_of(std::string_view key) const {
  return fmt::format("{}/{}", options_.path, key);
}

std::string DirectoryStore::describe() const {
  return fmt::format("directory {}", options_.path);
}

DirectoryStoreCounters DirectoryStore::counters() const {
  const std::lock_guard lock(mutex_);
  return counters_;
}

Status DirectoryStore::check_key(std::string_view key) const {
  if (is_plain_key(key) && !key.starts_with("tmp/") && key != kTmp) return {};
  return fail(ErrorCode::kBadText, "object key has a wrong form", options_.path, "segments of A-Z a-z 0-9 _ - . %",
              fmt::format("\"{}\"", std::string(key.substr(0, 200))), "report it");
}

Status DirectoryStore::check_writable(std::string_view key) const {
  if (options_.read_only)
    return fail(ErrorCode::kObjectStore, "object store is open for reading only", path_of(key), {}, {},
                "open it with a writer name");
  return check_key(key);
}

Status DirectoryStore::root_is_here() const {
  if (has_store_id_) {
    OpenFile id(files_);
    if (id.open(path_of(kStoreIdKey), O_RDONLY)) return {};
    return fail(ErrorCode::kObjectStore, "the directory is no longer the object store that was opened", options_.path,
                std::string(kStoreIdKey), text_of(errno), "mount it again");
  }
  std::vector<std::string> names;
  if (files_.list(options_.path, names) == 0) return {};
  return system_error(errno, "list", options_.path);
}

// -- writing --------------------------------------------------------------------------------------------------------

Status DirectoryStore::put(std::string_view key, const std::vector<ByteSpan>& parts) {
  const Result<Created> created = write_once(key, parts);
  if (!created) return std::unexpected<Error>(created.error());
  if (*created == Created::kExists)
    return fail(ErrorCode::kObjectConflict, "a new object's name is taken by other content", path_of(key), "no object",
                "an object", "keep both and report it");
  return {};
}

Result<Created> DirectoryStore::create(std::string_view key, ByteSpan bytes) {
  return write_once(key, {bytes});
}

Result<Created> DirectoryStore::write_once(std::string_view key, const std::vector<ByteSpan>& parts) {
  GRADTAP_TRY(check_writable(key));
  const std::string name = fmt::format("{}.{}", options_.writer, new_uid(random_));
  const std::string tmp = path_of(fmt::format("{}/{}", kTmp, name));
  {
    const std::lock_guard lock(mutex_);
    active_tmp_.insert(name);
  }
  Result<Created> created = write_and_link(key, tmp, parts);
  static_cast<void>(files_.unlink(tmp));  // left behind when this fails: remove_stray() finds it
  const std::lock_guard lock(mutex_);
  active_tmp_.erase(name);
  if (!created) {
    ++counters_.failed;
  } else if (*created == Created::kCreated) {
    ++counters_.created;
    for (const ByteSpan part : parts) counters_.bytes_written += part.size();
  } else {
    ++counters_.existed;
  }
  if (created && key == kStoreIdKey) has_store_id_ = true;
  return created;
}

Result<Created> DirectoryStore::write_and_link(std::string_view key, const std::string& tmp,
                                               const std::vector<ByteSpan>& parts) {
  // The temporary file comes first: in a directory that is not the store (an empty mount point) there is no tmp/, and
  // nothing is made there.
  GRADTAP_TRY(write_file(tmp, parts));
  GRADTAP_TRY(make_directories(key, false));
  const std::string path = path_of(key);
  int linked = files_.link(tmp, path);
  if (linked != 0 && errno == ENOENT) {  // somebody deleted the folder that we knew
    GRADTAP_TRY(make_directories(key, true));
    linked = files_.link(tmp, path);
  }
  const int error = linked == 0 ? 0 : errno;
  if (error != 0 && error != EEXIST) return system_error(error, "link", path);
  if (error == 0 && options_.kill_points != nullptr)
    if (const auto parsed = parse_key(key); parsed && parsed->kind == KeyKind::kPoint)
      options_.kill_points->reached(kPointAfterLink);
  // Also when somebody else's link won: an answer about it must not become untrue by a power loss.
  const std::string folder = path_of(folder_of(key));
  if (files_.sync_directory(folder) != 0) return system_error(errno, "fsync_dir", folder);
  if (error == 0) return Created::kCreated;
  return compare(key, parts);
}

Status DirectoryStore::write_file(const std::string& path, const std::vector<ByteSpan>& parts) {
  OpenFile file(files_);
  if (!file.open(path, O_WRONLY | O_CREAT | O_EXCL)) return system_error(errno, "open", path);
  for (ByteSpan rest : parts) {
    while (!rest.empty()) {
      const std::size_t count = std::min<std::uint64_t>(rest.size(), options_.write_bytes);
      const ssize_t written = files_.write(file.fd(), rest.data(), count);
      if (written < 0 && errno == EINTR) continue;
      if (written <= 0) return system_error(written < 0 ? errno : EIO, "write", path);
      rest = rest.subspan(static_cast<std::size_t>(written));
    }
  }
  // A failed fsync is not tried again on the same file (the kernel may have dropped the pages): the file is discarded.
  if (files_.sync(file.fd()) != 0) return system_error(errno, "fsync", path);
  return {};
}

Status DirectoryStore::make_directories(std::string_view key, bool again) {
  std::size_t end = 0;
  while ((end = key.find('/', end)) != std::string_view::npos) {
    const std::string folder(key.substr(0, end++));
    {
      const std::lock_guard lock(mutex_);
      if (!again && directories_.contains(folder)) continue;
    }
    const std::string path = path_of(folder);
    if (files_.make_directory(path) != 0 && errno != EEXIST) {
      if (errno == ENOENT && !again) return make_directories(key, true);  // a known folder was deleted
      return system_error(errno, "mkdir", path);
    }
    // Also when it was there: whoever made it may have died before it was on the disk.
    const std::string_view above = folder_of(folder);
    const std::string parent = above.empty() ? options_.path : path_of(above);
    if (files_.sync_directory(parent) != 0) return system_error(errno, "fsync_dir", parent);
    const std::lock_guard lock(mutex_);
    directories_.insert(folder);
  }
  return {};
}

Result<Created> DirectoryStore::compare(std::string_view key, const std::vector<ByteSpan>& parts) const {
  OpenFile file(files_);
  const Result<std::uint64_t> length = open_key(key, file);
  if (!length) return std::unexpected<Error>(length.error());
  std::uint64_t total = 0;
  for (const ByteSpan part : parts) total += part.size();
  if (*length != total) return Created::kExists;
  std::vector<std::uint8_t> buffer(std::min<std::uint64_t>(total, kCompareBytes));
  std::uint64_t offset = 0;
  for (ByteSpan rest : parts) {
    while (!rest.empty()) {
      const std::size_t count = std::min(rest.size(), buffer.size());
      GRADTAP_TRY(read_exact(file, key, offset, std::span(buffer).first(count)));
      if (std::memcmp(buffer.data(), rest.data(), count) != 0) return Created::kExists;
      rest = rest.subspan(count);
      offset += count;
    }
  }
  return Created::kExistsEqual;
}

Status DirectoryStore::remove(const std::vector<std::string>& keys) {
  std::set<std::string> folders;
  Status status;
  std::uint64_t removed = 0;
  for (const std::string& key : keys) {
    if (status = check_writable(key); !status) break;
    const std::string path = path_of(key);
    if (files_.unlink(path) == 0) {
      ++removed;
      folders.insert(path_of(folder_of(key)));
    } else if (errno != ENOENT) {
      status = system_error(errno, "unlink", path);
      break;
    } else if (status = root_is_here(); !status) {
      break;
    }
  }
  for (const std::string& folder : folders)
    if (files_.sync_directory(folder) != 0 && status) status = system_error(errno, "fsync_dir", folder);
  const std::lock_guard lock(mutex_);
  counters_.removed += removed;
  if (!status) ++counters_.failed;
  return status;
}

Result<std::uint64_t> DirectoryStore::remove_stray() {
  if (options_.read_only) return 0;
  const std::string folder = path_of(kTmp);
  std::vector<std::string> names;
  if (files_.list(folder, names) != 0) return system_error(errno, "list", folder);
  std::uint64_t removed = 0;
  for (const std::string& name : names) {
    if (!name.starts_with(options_.writer + ".")) continue;
    // Of the writer "tap" only: "tap.x" is another name.
    if (name.find_first_not_of("0123456789abcdef", options_.writer.size() + 1) != std::string::npos) continue;
    {
      const std::lock_guard lock(mutex_);
      if (active_tmp_.contains(name)) continue;
    }
    const std::string path = path_of(fmt::format("{}/{}", kTmp, name));
    if (files_.unlink(path) == 0)
      ++removed;
    else if (errno != ENOENT)
      return system_error(errno, "unlink", path);
  }
  return removed;
}

// -- reading --------------------------------------------------------------------------------------------------------

Result<std::uint64_t> DirectoryStore::open_key(std::string_view key, OpenFile& file) const {
  GRADTAP_TRY(check_key(key));
  const std::string path = path_of(key);
  const bool opened = file.open(path, O_RDONLY);
  const int error = opened ? 0 : errno;
  if (error == ENOENT || error == ENOTDIR) {
    GRADTAP_TRY(root_is_here());
    return fail(ErrorCode::kObjectMissing, "object is missing", path, "a file", "nothing");
  }
  if (error == ELOOP) return fail(ErrorCode::kObjectCorrupt, "object is not a file", path, "a regular file", "a link");
  if (error != 0) return system_error(error, "open", path);
  const std::int64_t length = files_.length(file.fd());
  if (length >= 0) return static_cast<std::uint64_t>(length);
  if (errno == EINVAL)
    return fail(ErrorCode::kObjectCorrupt, "object is not a file", path, "a regular file", "another kind");
  return system_error(errno, "stat", path);
}

Status DirectoryStore::read_exact(const OpenFile& file, std::string_view key, std::uint64_t offset,
                                  std::span<std::uint8_t> out) const {
  while (!out.empty()) {
    const ssize_t count = files_.read(file.fd(), out.data(), out.size(), static_cast<off_t>(offset));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return system_error(errno, "read", fmt::format("{} offset {}", path_of(key), offset));
    if (count == 0)
      return fail(ErrorCode::kObjectCorrupt, "object became shorter while it was read",
                  fmt::format("{} offset {}", path_of(key), offset), fmt::format("{} more bytes", out.size()),
                  "its end");
    out = out.subspan(static_cast<std::size_t>(count));
    offset += static_cast<std::uint64_t>(count);
  }
  return {};
}

Result<std::uint64_t> DirectoryStore::open_bounded(std::string_view key, std::uint64_t bytes_max,
                                                   OpenFile& file) const {
  Result<std::uint64_t> length = open_key(key, file);
  if (length && *length > bytes_max)
    return fail(ErrorCode::kLimitReached, "object is longer than it can be", path_of(key),
                fmt::format("at most {} bytes", bytes_max), fmt::format("{} bytes", *length));
  return length;
}

Result<std::vector<std::uint8_t>> DirectoryStore::get(std::string_view key, std::uint64_t bytes_max) const {
  OpenFile file(files_);
  const Result<std::uint64_t> length = open_bounded(key, bytes_max, file);
  if (!length) return std::unexpected<Error>(length.error());
  std::vector<std::uint8_t> bytes(*length);
  GRADTAP_TRY(read_exact(file, key, 0, bytes));
  return bytes;
}

Result<LargeBuffer> DirectoryStore::load(std::string_view key, std::uint64_t bytes_max,
                                         const std::function<void(ByteSpan)>& seen) const {
  OpenFile file(files_);
  const Result<std::uint64_t> length = open_bounded(key, bytes_max, file);
  if (!length) return std::unexpected<Error>(length.error());
  LargeBuffer buffer = LargeBuffer::create(*length);
  if (buffer.data() == nullptr)
    return fail(ErrorCode::kLimitReached, "no memory for an object", path_of(key), {}, fmt::format("{} bytes", *length),
                "free memory of this machine, or read it on another one");
  files_.expect(file.fd(), *length);
  for (std::uint64_t at = 0; at < *length; at += kPieceBytes) {
    const auto piece = buffer.bytes().subspan(at, std::min<std::uint64_t>(kPieceBytes, *length - at));
    GRADTAP_TRY(read_exact(file, key, at, piece));
    seen(piece);
  }
  return buffer;
}

Result<std::vector<std::uint8_t>> DirectoryStore::read(std::string_view key, std::uint64_t offset,
                                                       std::uint64_t count) const {
  OpenFile file(files_);
  const Result<std::uint64_t> length = open_key(key, file);
  if (!length) return std::unexpected<Error>(length.error());
  std::vector<std::uint8_t> bytes(std::min(count, *length - std::min(offset, *length)));
  GRADTAP_TRY(read_exact(file, key, offset, bytes));
  return bytes;
}

Result<std::uint64_t> DirectoryStore::length(std::string_view key) const {
  OpenFile file(files_);
  return open_key(key, file);
}

Result<std::vector<std::string>> DirectoryStore::list(std::string_view prefix) const {
  std::string folder(folder_of(prefix));
  if (!folder.empty()) GRADTAP_TRY(check_key(folder));
  std::vector<std::string> out;
  GRADTAP_TRY(walk(folder, prefix, 0, out));
  std::sort(out.begin(), out.end());
  if (out.empty()) GRADTAP_TRY(root_is_here());  // nothing, or no store?
  return out;
}

Status DirectoryStore::walk(const std::string& folder, std::string_view prefix, int depth,
                            std::vector<std::string>& out) const {
  const std::string path = folder.empty() ? options_.path : path_of(folder);
  std::vector<std::string> names;
  if (files_.list(path, names) != 0) {
    if (errno == ENOENT || errno == ENOTDIR) return {};
    return system_error(errno, "list", path);
  }
  for (std::string& name : names) {
    const bool is_folder = name.ends_with('/');
    if (is_folder) name.pop_back();
    const std::string key = folder.empty() ? name : fmt::format("{}/{}", folder, name);
    if (!check_key(key)) continue;  // not ours: never listed, never deleted
    if (is_folder) {
      const std::string inside = key + "/";
      if (!inside.starts_with(prefix) && !prefix.starts_with(inside)) continue;
      if (depth < kFolderDepthMax) GRADTAP_TRY(walk(key, prefix, depth + 1, out));
    } else if (key.starts_with(prefix)) {
      if (out.size() >= options_.keys_max)
        return fail(ErrorCode::kLimitReached, "object store holds too many objects to list", path,
                    fmt::format("at most {}", options_.keys_max), {}, "delete old jobs from it");
      out.push_back(key);
    }
  }
  return {};
}

}  // namespace gradtap::storage
