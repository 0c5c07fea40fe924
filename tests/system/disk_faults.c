/* Preloaded into a node by publish_faults.py: calls on files below one directory fail, or are slow, as a control file
 * says. GRADTAP_FAULT_DIR names the directory, GRADTAP_FAULT_FILE the control file: one line "CALL ERRNO SKIP SLOW_US",
 * CALL one of open, write, fsync, link, unlink, any; after SKIP further calls of that kind each one fails with ERRNO
 * (0: none fails), and each takes SLOW_US more. No control file: nothing happens. Calls are counted from the moment
 * when the file changed; a line with the kind of each call that failed is appended to GRADTAP_FAULT_FILE.hits.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

enum { kFiles = 65536 };
static unsigned char watched[kFiles];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct timespec seen;
static char call[16];
static int error_number;
static long left, slow_us;

static int (*next_openat)(int, const char*, int, ...);

static void read_control(const char* path) {
  struct stat s;
  if (stat(path, &s) != 0) {
    call[0] = 0;
    memset(&seen, 0, sizeof seen);
    return;
  }
  if (memcmp(&s.st_mtim, &seen, sizeof seen) == 0) return;
  if (!next_openat) next_openat = (int (*)(int, const char*, int, ...))dlsym(RTLD_NEXT, "openat");
  char text[128] = {0};
  int fd = next_openat(AT_FDCWD, path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return;
  ssize_t got = read(fd, text, sizeof text - 1);
  close(fd);
  if (got <= 0 || sscanf(text, "%15s %d %ld %ld", call, &error_number, &left, &slow_us) != 4) call[0] = 0;
  seen = s.st_mtim;
}

/* 0, or the error of this call. */
static int verdict(const char* kind) {
  const char* control = getenv("GRADTAP_FAULT_FILE");
  if (!control) return 0;
  int fails = 0;
  long wait = 0;
  pthread_mutex_lock(&lock);
  read_control(control);
  if (call[0] && (strcmp(call, kind) == 0 || strcmp(call, "any") == 0)) {
    wait = slow_us;
    if (error_number != 0 && left-- <= 0) {
      left = 0;
      fails = error_number;
      char path[PATH_MAX];
      snprintf(path, sizeof path, "%s.hits", control);
      int fd = next_openat(AT_FDCWD, path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
      if (fd >= 0) {
        ssize_t done = write(fd, kind, strlen(kind));
        done = write(fd, "\n", 1);
        (void)done;
        close(fd);
      }
    }
  }
  pthread_mutex_unlock(&lock);
  if (wait > 0) usleep((useconds_t)wait);
  return fails;
}

static int below(const char* path) {
  const char* directory = getenv("GRADTAP_FAULT_DIR");
  return directory && path && strncmp(path, directory, strlen(directory)) == 0;
}

static int below_at(int at, const char* path) {
  if (path && path[0] == '/') return below(path);
  if (at == AT_FDCWD) return 0;
  return at >= 0 && at < kFiles && watched[at];
}

static int is_watched(int fd) {
  return fd >= 0 && fd < kFiles && watched[fd];
}

static int opened(int at, const char* path, int flags, int mode) {
  if (!next_openat) next_openat = (int (*)(int, const char*, int, ...))dlsym(RTLD_NEXT, "openat");
  int mine = below_at(at, path);
  if (mine && (flags & (O_CREAT | O_WRONLY | O_RDWR))) {
    int fails = verdict("open");
    if (fails) {
      errno = fails;
      return -1;
    }
  }
  int fd = next_openat(at, path, flags, mode);
  if (fd >= 0 && fd < kFiles) watched[fd] = (unsigned char)mine;
  return fd;
}

#define MODE_OF(flags)                     \
  int mode = 0;                            \
  if ((flags) & (O_CREAT | __O_TMPFILE)) { \
    va_list more;                          \
    va_start(more, flags);                 \
    mode = va_arg(more, int);              \
    va_end(more);                          \
  }

int open(const char* path, int flags, ...) {
  MODE_OF(flags) return opened(AT_FDCWD, path, flags, mode);
}
int open64(const char* path, int flags, ...) {
  MODE_OF(flags) return opened(AT_FDCWD, path, flags, mode);
}
int openat(int at, const char* path, int flags, ...) {
  MODE_OF(flags) return opened(at, path, flags, mode);
}
int openat64(int at, const char* path, int flags, ...) {
  MODE_OF(flags) return opened(at, path, flags, mode);
}

#define FAIL_OR_NEXT(kind, condition, type, name, prototype, ...) \
  static type(*next) prototype;                                   \
  if (!next) next = (type(*) prototype)dlsym(RTLD_NEXT, name);    \
  int fails = (condition) ? verdict(kind) : 0;                    \
  if (fails) {                                                    \
    errno = fails;                                                \
    return -1;                                                    \
  }                                                               \
  return next(__VA_ARGS__);

ssize_t write(int fd, const void* data,
              size_t size){FAIL_OR_NEXT("write", is_watched(fd), ssize_t, "write", (int, const void*, size_t), fd, data,
                                        size)} ssize_t writev(int fd, const struct iovec* parts, int count){
    FAIL_OR_NEXT("write", is_watched(fd), ssize_t, "writev", (int, const struct iovec*, int), fd, parts, count)} ssize_t
    pwrite64(int fd, const void* data, size_t size, off64_t at) {
  FAIL_OR_NEXT("write", is_watched(fd), ssize_t, "pwrite64", (int, const void*, size_t, off64_t), fd, data, size, at)
}
int close(int fd) {
  static int (*next)(int);
  if (!next) next = (int (*)(int))dlsym(RTLD_NEXT, "close");
  if (fd >= 0 && fd < kFiles) watched[fd] = 0;
  return next(fd);
}
int fsync(int fd) {
  FAIL_OR_NEXT("fsync", is_watched(fd), int, "fsync", (int), fd)
}
int fdatasync(int fd) {
  FAIL_OR_NEXT("fsync", is_watched(fd), int, "fdatasync", (int), fd)
}
int link(const char* from, const char* to) {
  FAIL_OR_NEXT("link", below(to), int, "link", (const char*, const char*), from, to)
}
int linkat(int a, const char* from, int b, const char* to, int flags) {
  FAIL_OR_NEXT("link", below_at(b, to), int, "linkat", (int, const char*, int, const char*, int), a, from, b, to, flags)
}
int unlink(const char* path) {
  FAIL_OR_NEXT("unlink", below(path), int, "unlink", (const char*), path)
}
int unlinkat(int at, const char* path, int flags) {
  FAIL_OR_NEXT("unlink", below_at(at, path), int, "unlinkat", (int, const char*, int), at, path, flags)
}
