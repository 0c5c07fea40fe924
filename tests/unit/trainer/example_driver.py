"""Runs an example in one rank: example_driver.py FOLDER DUMP_AT DIE_AT SCRIPT [arguments]. Rank 0 writes its state into
FOLDER at the commit of step DUMP_AT, and rank 1 is killed after that of step DIE_AT (0: never)."""

import os
import runpy
import signal
import sys

import torch

folder, dump_at, die_at, script = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
sys.argv = sys.argv[4:]
sys.path.insert(0, os.path.dirname(script))

import gradtap  # noqa: E402

attach = gradtap.attach


def observed(ddp, optimizer, *args, **kwargs):
    tap = attach(ddp, optimizer, *args, **kwargs)
    assert tap.enabled, tap.reason
    commit = tap.commit

    def then():
        commit()
        if tap.step == dump_at and os.environ["RANK"] == "0":
            state = optimizer.state
            torch.save([(n, list(p.shape), {"param": p.detach(), "exp_avg": state[p]["exp_avg"],
                                            "exp_avg_sq": state[p]["exp_avg_sq"]}, int(state[p]["step"]))
                        for n, p in ddp.module.named_parameters()], os.path.join(folder, "state.%d" % dump_at))
        if tap.step == die_at and os.environ["RANK"] == "1":
            tap.close()  # what is queued may leave: the point needs this rank's side state
            os.kill(os.getpid(), signal.SIGKILL)

    tap.commit = then
    return tap


gradtap.attach = observed
runpy.run_path(script, run_name="__main__")
