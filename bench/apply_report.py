#!/usr/bin/python3
"""AdamW's apply stage against a triad over the same memory, and against torch's own AdamW (its default path, one
thread, 200 tensors of 250 000 elements), both of the same run. Usage: apply_report.py JSON

All figures are CPU time of one thread. A parameter moves 28 bytes: gradient read, parameter and two moments read and
written. An element of the triad moves 16: two floats read, one written, and the line that is written is read before;
the smaller count, 12, leaves that out and flatters the ratio. The verdict takes 16.
"""
import os
import statistics
import subprocess
import sys

sys.dont_write_bytecode = True
from run import repetitions  # noqa: E402

PYTHON = os.environ.get("GRADTAP_TORCH_PYTHON", "/usr/bin/python3")
BYTES_PARAMETER, BYTES_TRIAD, BYTES_TRIAD_WITHOUT_FILL = 28, 16, 12
TRIAD_AT_LEAST, TORCH_AT_LEAST = 1.0, 4.0

TORCH = """
import time, torch
torch.set_num_threads(1)
tensors = [torch.full((250_000,), 0.5, requires_grad=True) for _ in range(200)]
for t in tensors:
    t.grad = torch.full_like(t, 1e-3)
optimizer = torch.optim.AdamW(tensors, lr=1e-3, weight_decay=0.01)
optimizer.step(), optimizer.step()
for _ in range(7):
    before = time.process_time()
    optimizer.step()
    print(time.process_time() - before)
print(torch.__version__)
"""


def middle(values, scale=1.0):
    return "%.2f (%.2f to %.2f)" % (statistics.median(values) * scale, min(values) * scale, max(values) * scale)


def verdict(ratio, least):
    return "%.2f (at least %.1f: %s)" % (ratio, least, "yes" if ratio >= least else "NO")


def main():
    rows = repetitions(sys.argv[1])
    rates = lambda name: [run["items_per_second"] for run in rows[name]]
    if "triad" not in rows or "apply/adamw" not in rows:
        print("   no report: it needs triad and apply/adamw")
        return
    adamw, triad = rates("apply/adamw"), rates("triad")
    moved = BYTES_PARAMETER * statistics.median(adamw)
    print("   AdamW %s G parameters/s, %.1f GB/s; triad %s G elements/s, %.1f GB/s"
          % (middle(adamw, 1e-9), moved / 1e9, middle(triad, 1e-9), BYTES_TRIAD * statistics.median(triad) / 1e9))
    print("   AdamW / triad, bytes: %s; %.2f with 12 bytes an element"
          % (verdict(moved / (BYTES_TRIAD * statistics.median(triad)), TRIAD_AT_LEAST),
             moved / (BYTES_TRIAD_WITHOUT_FILL * statistics.median(triad))))
    done = subprocess.run([PYTHON, "-c", TORCH], capture_output=True, text=True,
                          env=dict(os.environ, OMP_NUM_THREADS="1"))
    if done.returncode != 0:
        print("   torch: not measured: %s" % (done.stderr.strip().splitlines() or ["no reason given"])[-1])
        return
    *seconds, version = done.stdout.split()
    torch = [50e6 / float(s) for s in seconds]
    print("   torch %s, one thread: %s G parameters/s" % (version, middle(torch, 1e-9)))
    print("   AdamW / torch: " + verdict(statistics.median(adamw) / statistics.median(torch), TORCH_AT_LEAST))


if __name__ == "__main__":
    main()
