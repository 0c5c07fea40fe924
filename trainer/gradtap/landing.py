"""Where the bytes of a recovery point land before they are checked: memory where there is plenty of it, otherwise a
file without a name. Nothing is left behind, however this process ends."""

import fcntl
import os
import tempfile

# Python 3.9 has no names for them.
_ADD_SEALS, _SEAL_SHRINK, _SEAL_GROW, _SEAL_WRITE = 1033, 2, 4, 8
SHARE = 4  # of the free memory, a quarter is for all ranks of this machine together


def open_landing(most_bytes, ranks_here, folder=None):
    """An open file object. folder: a user's wish, which is kept."""
    if folder is None and hasattr(os, "memfd_create") and most_bytes * ranks_here * SHARE <= free_bytes():
        try:
            return os.fdopen(os.memfd_create("gradtap-point", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING), "w+b", buffering=0)
        except OSError:
            pass
    return tempfile.TemporaryFile(prefix="gradtap-", buffering=0, dir=folder)


def seal(file):
    """What lies in memory is not changed any more, by nobody; a file stays as it is."""
    try:
        fcntl.fcntl(file.fileno(), _ADD_SEALS, _SEAL_SHRINK | _SEAL_GROW | _SEAL_WRITE)
    except OSError:
        pass


def machine():
    """Equal for processes that can open each other's files through /proc."""
    try:
        return "%s/%s/%d" % (_text("/proc/sys/kernel/random/boot_id").strip(), os.readlink("/proc/self/ns/pid"), os.getuid())
    except OSError:
        return "%s/%d" % (os.uname().nodename, os.getpid())


def told(file):
    """What another process of this machine needs to open the file."""
    return {"pid": os.getpid(), "fd": file.fileno(), "bytes": os.fstat(file.fileno()).st_size}


def open_told(what):
    """OSError where it is not, or not any more, what was told."""
    try:
        path, size = "/proc/%d/fd/%d" % (int(what["pid"]), int(what["fd"])), what["bytes"]
    except (KeyError, TypeError, ValueError):
        raise OSError("no file was told") from None
    file = open(path, "rb", buffering=0)
    if os.fstat(file.fileno()).st_size == size:
        return file
    file.close()
    raise OSError("%s has another length than %s" % (path, size))


def ranks_here(world):
    """Ranks on this machine as the launcher says, else all of them."""
    try:
        return min(world, max(1, int(os.environ["LOCAL_WORLD_SIZE"])))
    except (KeyError, ValueError):
        return world


def free_bytes():
    """What the machine has free and the control group of this process still allows; 0 where that cannot be told."""
    free = 0
    for line in _text("/proc/meminfo").splitlines():
        if line.startswith("MemAvailable:"):
            free = int(line.split()[1]) << 10
    for folder, limit, used in _groups():
        try:
            free = min(free, max(0, int(_text(os.path.join(folder, limit))) - int(_text(os.path.join(folder, used)))))
        except ValueError:  # "max", or no such file
            pass
    return free


def _groups():
    """(folder, file of the limit, file of what is used) of this process's control group and of those round it."""
    for line in _text("/proc/self/cgroup").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers and "memory" not in controllers.split(","):
            continue
        root = "/sys/fs/cgroup/memory" if controllers else "/sys/fs/cgroup"
        names = ("memory.limit_in_bytes", "memory.usage_in_bytes") if controllers else ("memory.max", "memory.current")
        parts = [p for p in path.split("/") if p and p != ".."]
        for n in range(len(parts) + 1):
            yield (os.path.join(root, *parts[:n]),) + names


def _text(path):
    try:
        with open(path) as f:
            return f.read()
    except OSError:
        return ""
