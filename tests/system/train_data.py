"""The data of the training job of the tests: text from the machine, and two samplers whose position can be saved.

A rank's sampler gives one batch a step: a tensor of `batch` rows of `context + 1` bytes.
"""
import random

import numpy as np
import torch

CORPORA = ("/usr/share/common-licenses/GPL-3", "/usr/share/common-licenses/Apache-2.0")
OWN_TEXT = """The switch copies every frame that enters it and sends the copy to a port where nobody answers.
What arrives there is not a log. A frame may be missing, a frame may come twice, a frame may come late, and no one
will be asked to send it again. So the reader of such a stream must count what it has, and say what it has not. A sum
that is complete is worth keeping; a sum that is almost complete is worth nothing at all.
"""


def corpus():
    for path in CORPORA:
        try:
            with open(path, "rb") as f:
                return torch.tensor(list(f.read()), dtype=torch.long)
        except OSError:
            continue
    return torch.tensor(list(OWN_TEXT.encode() * 20), dtype=torch.long)


class RandomWindows:
    """Windows at random places; the position is the state of a generator of the sampler's own."""

    def __init__(self, a):
        self.text, self.batch, self.context = corpus(), a.batch, a.context
        self.generator = torch.Generator().manual_seed(1000 * a.seed + a.rank)
        self.drawn = 0

    def next(self):
        at = torch.randint(0, len(self.text) - self.context - 1, (self.batch,), generator=self.generator)
        self.drawn += 1
        return torch.stack([self.text[i:i + self.context + 1] for i in at])

    def state_dict(self):
        return {"generator": self.generator.get_state(), "drawn": self.drawn}

    def load_state_dict(self, state):
        self.generator.set_state(state["generator"])
        self.drawn = int(state["drawn"])

    def describe(self):
        return {"drawn": self.drawn, "generator": bytes(self.generator.get_state().numpy().tobytes()).hex()[:64]}


class ShuffledWindows:
    """Every rank takes its share of the same windows, in a new order each epoch: position = (epoch, place)."""

    WINDOWS_PER_RANK = 48  # so that runs of some dozen steps pass several epochs

    def __init__(self, a):
        self.text, self.batch, self.context = corpus(), a.batch, a.context
        self.rank, self.world, self.seed = a.rank, a.world, a.seed
        self.epoch, self.place, self.order = 0, 0, None

    def _order(self):
        if self.order is None:
            total = self.WINDOWS_PER_RANK * self.world
            mixed = torch.randperm(total, generator=torch.Generator().manual_seed(77 * self.seed + self.epoch))
            self.order = mixed[self.rank::self.world].tolist()
        return self.order

    def next(self):
        rows = []
        stride = (len(self.text) - self.context - 1) // (self.WINDOWS_PER_RANK * self.world)
        for _ in range(self.batch):
            if self.place == self.WINDOWS_PER_RANK:
                self.epoch, self.place, self.order = self.epoch + 1, 0, None
            at = self._order()[self.place] * stride
            self.place += 1
            rows.append(self.text[at:at + self.context + 1])
        return torch.stack(rows)

    def state_dict(self):
        return {"epoch": self.epoch, "place": self.place}

    def load_state_dict(self, state):
        self.epoch, self.place, self.order = int(state["epoch"]), int(state["place"]), None

    def describe(self):
        return self.state_dict()


def augment(window):
    """Overwrites some input bytes, by Python's and NumPy's global generators: their states matter for every bit."""
    if random.random() < 0.5:
        at = np.random.randint(0, window.shape[1] - 1, size=3)
        window = window.clone()
        window[:, torch.from_numpy(at)] = int(np.random.randint(0, 256))
    return window


def make(a):
    return ShuffledWindows(a) if a.shuffle else RandomWindows(a)
