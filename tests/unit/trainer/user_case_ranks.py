"""Two ranks that differ in what must be the same: rank 1 says what its attach said. `g` is the globals of the rank."""

import sys
import types

import torch
import torch.nn as nn


def differing(g):
    import gradtap

    rank, dist = g["RANK"], g["dist"]

    def case(name, attach):
        tap = attach()
        if rank == 1:
            sys.stderr.write("case %s=%s\n" % (name, "in force" if tap.enabled else tap.reason))
        tap.close()
        dist.barrier()

    def job(lr=0.1, swapped=False, group=None):
        torch.manual_seed(3)
        net = nn.Module()
        for name in ("b", "a") if swapped else ("a", "b"):
            net.register_parameter(name, nn.Parameter(torch.ones(4)))
        net.forward = lambda x: (net.a * net.b * x).sum()
        ddp = g["DDP"](net, process_group=group)
        return ddp, torch.optim.SGD(net.parameters(), lr=lr)

    def attach(ddp, optimizer, **options):
        return gradtap.attach(ddp, optimizer, endpoint=g["ENDPOINT"], job="unit", attach_timeout_ms=20000, **options)

    halves = [dist.new_group([r]) for r in range(2)]
    case("group", lambda: attach(*job(group=halves[rank])))
    case("same", lambda: attach(*job()))
    case("lr", lambda: attach(*job(lr=0.1 if rank == 0 else 0.2)))
    case("order", lambda: attach(*job(swapped=rank == 1)))
    # Rank 0 resumes at step 7, rank 1 forgot to.
    ddp, optimizer = job()
    resumed = types.SimpleNamespace(fresh=False, started=True, ddp=ddp, step=7, lineage=1, warmups=0,
                                    changed_since=lambda model: None,
                                    describe=lambda: {"lineage": 1, "step": 7, "record_digest": None})
    case("step", lambda: attach(ddp, optimizer, resume_from=resumed if rank == 0 else None))
