"""What a job does that saves whole checkpoints instead of being tapped: torch.save after every step, in the training
thread, or in a thread of its own after a clone. For comparison only."""
import copy
import os
import threading

import torch

WAYS = ("plain", "thread")


class Saves:
    """Rank 0 writes model and optimizer to --out/checkpoint.pt after every step; nothing without --save."""

    def __init__(self, a, model, optimizer):
        self.way = a.save if a.rank == 0 else ""
        self.path = os.path.join(a.out, "checkpoint.pt")
        self.model, self.optimizer = model, optimizer
        self.thread = None
        self.written = 0

    def after_step(self):
        if not self.way:
            return
        state = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
        if self.way == "plain":
            self._write(state)
            return
        clone = copy.deepcopy(state)  # the next step changes the tensors in place
        self.finish()  # one at a time: the state of every step is written
        self.thread = threading.Thread(target=self._write, args=(clone,))
        self.thread.start()

    def _write(self, state):
        torch.save(state, self.path + ".new")
        os.replace(self.path + ".new", self.path)
        self.written += 1

    def finish(self):
        if self.thread:
            self.thread.join()
            self.thread = None
