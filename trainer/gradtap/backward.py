"""Counts backwards between two commits, and which of them were synchronised.

DDP decides in forward whether the next backward reduces. A hook on the outputs tells when that backward begins; it
changes no gradient. Forwards whose outputs hold no tensor are counted at forward: the best that can be known.
"""

import torch
from torch.nn.parallel import distributed as _ddp_module


class BackwardCounter:
    def __init__(self, ddp, on_synced, guard):
        """on_synced() is called when a synchronised backward begins; guard(function) makes a hook that never raises."""
        self._on_synced = on_synced
        self._pending = False
        self.micro_steps = 0
        self.synced = 0
        self.last_was_synced = False
        self._guard = guard
        self._handle = ddp.register_forward_hook(self._after_forward)

    def reset(self):
        self.micro_steps = 0
        self.synced = 0
        self.last_was_synced = False

    def remove(self):
        self._handle.remove()

    def _after_forward(self, ddp, inputs, output):
        self._guard(self._forward, ddp, output)

    def _forward(self, ddp, output):
        if not torch.is_grad_enabled():
            return
        if ddp.require_backward_grad_sync:
            self._pending = True
        tensors = [t for t in _ddp_module._find_tensors(output) if t.requires_grad]
        if not tensors:
            self._begin()
            return
        done = []

        def hook(_grad):
            if not done:
                done.append(True)
                self._guard(self._begin)

        for t in tensors:
            t.register_hook(hook)

    def _begin(self):
        self.micro_steps += 1
        self.last_was_synced = self._pending
        if self._pending:
            self._pending = False
            self.synced += 1
            self._on_synced()
