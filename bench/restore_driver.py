#!/usr/bin/python3
"""A restore from a directory of recovery points against reading the same bytes. Usage: restore_driver.py [REPETITIONS]

A job of two ranks publishes points of some 240 MB. Then, cold (the files' pages are dropped, by posix_fadvise, which
needs no rights) and warm: the object files are read into a buffer; they are read and their SHA-256 taken, by one thread:
what any reader must do that trusts no byte; `gradtap export --optimizer` rebuilds the state of the newest point into memory,
and into a file that it syncs; `gradtap.restore` brings both ranks to it, each for itself. All rates are in bytes of state
a second (of objects for the first two), the highest and lowest of the repetitions behind the median; "CPU" is what the
program used.
"""
import hashlib
import os
import resource
import statistics
import subprocess
import sys
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(ROOT, "tests", "system"))
sys.dont_write_bytecode = True
import harness  # noqa: E402
import rig  # noqa: E402
from cluster import Cluster  # noqa: E402

RANKS, STEPS = 2, 3
JOB = ["--width", 512, "--layers", 6, "--context", 8, "--batch", 1, "--bucket-mb", 25, "--no-roots",
       "--step-sleep", 1]  # the mirror must lose nothing, however busy the machine is
SHARE_AT_LEAST = 0.7
PIECE = 1 << 20


def files_of(folder):
    return sorted(os.path.join(path, name) for path, _, names in os.walk(folder) for name in names)


def drop(files):
    for name in files:
        fd = os.open(name, os.O_RDONLY)
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)


def read(files, digest):
    """Seconds to read all of the files, and how many bytes that were."""
    buffer, total, begun = memoryview(bytearray(PIECE)), 0, time.monotonic()
    for name in files:
        whole = hashlib.sha256()
        with open(name, "rb", buffering=0) as f:
            while True:
                got = f.readinto(buffer)
                total += got
                if not got:
                    break
                if digest:
                    whole.update(buffer[:got])
        whole.digest()
    return time.monotonic() - begun, total


def child_cpu():
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def export(objects, folder, to_file):
    """Seconds, CPU seconds, bytes of state."""
    out = os.path.join(folder, "state.safetensors")
    memory = -1 if to_file else os.memfd_create("state")
    begun, used = time.monotonic(), child_cpu()
    subprocess.run([os.path.join(harness.BIN, "gradtap"), "export", "--source", objects, "--job", "demo", "--optimizer",
                    "--out", out if to_file else "/dev/fd/%d" % memory], check=True, stdout=subprocess.DEVNULL,
                   pass_fds=() if to_file else (memory,))
    seconds, used = time.monotonic() - begun, child_cpu() - used
    if to_file:
        size = os.path.getsize(out)
        os.unlink(out)
    else:
        size = os.fstat(memory).st_size
        os.close(memory)
    return seconds, used, size


def restore(r, folder, objects, number):
    """Seconds of gradtap.restore on the slower rank."""
    job = harness.Job(r, folder, JOB + ["--steps", STEPS + 1, "--schedule-steps", STEPS + 9, "--restore", objects],
                      attach="", name="restored%d" % number, port=29510 + number).start()
    try:
        job.wait(120)
    finally:
        job.kill()
    return max(float(line.split()[4]) for i in range(RANKS) for line in job.log(i).splitlines()
               if line.startswith("restored: step"))


def middle(seconds, size):
    rates = [size / s / 1e6 for s in seconds]
    return "%.0f MB/s (%.0f to %.0f)" % (statistics.median(rates), min(rates), max(rates))


def main():
    repetitions = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    rig.enter_privileged()
    harness.programs_or_fail()
    with harness.case_folder("bench-restore") as folder, rig.Rig(ranks=RANKS) as r:
        cluster = Cluster(r, folder, points_kept=1, shard_elements=1 << 22, publish_interval=STEPS,
                          full_every_steps=STEPS).start()
        job = harness.Job(r, folder, JOB + ["--steps", STEPS, "--schedule-steps", STEPS + 9],
                          attach=cluster.endpoints()).start()
        job.wait(120, cluster.watch(job))
        cluster.wait_step("published", STEPS, 60)
        cluster.stop()
        files = files_of(cluster.objects)
        number = 0
        for cold in (True, False):
            found = {what: [] for what in ("read", "digest", "export", "file", "restore")}
            cpu = []
            for _ in range(repetitions):
                for what in found:
                    if cold:
                        drop(files)
                    if what in ("read", "digest"):
                        seconds, stored = read(files, what == "digest")
                    elif what in ("export", "file"):
                        seconds, used, size = export(cluster.objects, folder, what == "file")
                        cpu += [used] if what == "export" else []
                    else:
                        seconds = restore(r, folder, cluster.objects, number)
                        number += 1
                    found[what].append(seconds)
            title = "cold" if cold else "warm"
            for what, words in (("read", "reading"), ("digest", "reading and SHA-256, one thread")):
                print("   %s: %s: %s of %.0f MB in %d files" % (title, words, middle(found[what], stored), stored / 1e6,
                                                                len(files)), flush=True)
            bytes_a_second = {what: (stored if what in ("read", "digest") else size) / statistics.median(seconds)
                              for what, seconds in found.items()}
            for what, words in (("export", "gradtap export into memory (%.2f s of CPU)" % statistics.median(cpu)),
                                ("file", "gradtap export to a synced file"),
                                ("restore", "gradtap.restore, both ranks at once, each")):
                share = bytes_a_second[what] / bytes_a_second["read"]
                print("   %s: %s: %s of %.0f MB: %.2f of reading (at least %.1f: %s), %.2f of reading and SHA-256"
                      % (title, words, middle(found[what], size), size / 1e6, share, SHARE_AT_LEAST,
                         "yes" if share >= SHARE_AT_LEAST else "NO", bytes_a_second[what] / bytes_a_second["digest"]),
                      flush=True)


if __name__ == "__main__":
    main()
