"""The models of the training job of the tests."""
import math

import torch
import torch.nn as nn
import torch.nn.functional as F


class Block(nn.Module):
    def __init__(self, width, heads, dropout):
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.mix = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)
        self.drop = nn.Dropout(dropout)

    def forward(self, x, mask):
        batch, length, width = x.shape
        split = lambda t: t.reshape(batch, length, self.heads, width // self.heads).transpose(1, 2)
        q, k, v = (split(t) for t in self.qkv(self.norm1(x)).chunk(3, dim=2))
        weights = F.softmax(q @ k.transpose(-2, -1) / math.sqrt(width // self.heads) + mask, dim=-1)
        x = x + self.drop(self.mix((weights @ v).transpose(1, 2).reshape(batch, length, width)))
        return x + self.drop(self.down(F.gelu(self.up(self.norm2(x)))))


class SmallGpt(nn.Module):
    """Bytes in, bytes out. The head is registered first, so that the order in which gradients become ready is not the
    reverse of the registration order; the last factor is one element, which can make a bucket of its own.

    odd_head adds a second head that takes part only while `self.side_on` is set: an unused parameter otherwise.
    live_buffer adds a buffer that every forward pass changes.
    """

    def __init__(self, width, layers, context, dropout=0.0, odd_head=False, live_buffer=False):
        super().__init__()
        self.head = nn.Linear(width, 256, bias=False)
        self.tokens = nn.Embedding(256, width)
        self.positions = nn.Parameter(torch.randn(context, width) * 0.02)
        self.blocks = nn.ModuleList([Block(width, 4, dropout) for _ in range(layers)])
        self.norm = nn.LayerNorm(width)
        self.side = nn.Linear(width, 256, bias=False) if odd_head else None
        self.side_on = False
        self.scale = nn.Parameter(torch.ones(1))
        self.register_buffer("mask", torch.full((context, context), float("-inf")).triu(1), persistent=False)
        if live_buffer:
            self.register_buffer("seen", torch.zeros(width))

    def forward(self, ids):
        x = self.tokens(ids) + self.positions
        for block in self.blocks:
            x = block(x, self.mask)
        x = self.norm(x)
        if "seen" in self._buffers:
            self.seen.mul_(0.9).add_(x.detach().mean(dim=(0, 1)), alpha=0.1)
            x = x + 0.01 * self.seen
        out = self.head(x)
        if self.side is not None and self.side_on:
            out = out + self.side(x)
        return out * self.scale


class Mlp(nn.Module):
    def __init__(self, width, context):
        super().__init__()
        self.layers = nn.Sequential(nn.Embedding(256, 16), nn.Flatten(), nn.Linear(16 * context, 4 * width), nn.ReLU(),
                                    nn.Linear(4 * width, 4 * width), nn.ReLU(), nn.Linear(4 * width, 256))

    def forward(self, ids):
        return self.layers(ids)


class Awkward(nn.Module):
    """One tensor of every kind that others forgot: tied (under two names), channels-last, 0-dim, zero-sized, frozen, used
    in even steps only, never used; batch norm, whose buffers change in forward."""

    def __init__(self, width, layers, context):
        super().__init__()
        self.tokens = nn.Embedding(256, width)
        self.conv = nn.Conv2d(2, width // 2, 3, padding=1)
        self.conv.weight.data = self.conv.weight.data.contiguous(memory_format=torch.channels_last)
        self.norm = nn.BatchNorm1d(width)
        self.layers = nn.Sequential(*[nn.Sequential(nn.Linear(width, width), nn.GELU()) for _ in range(layers)])
        self.anchor = nn.Parameter(torch.randn(width), requires_grad=False)
        self.empty = nn.Parameter(torch.zeros(0))
        self.scale = nn.Parameter(torch.tensor(0.7))
        self.side = nn.Linear(width, 256)
        self.never = nn.Linear(width, 256)
        self.head = nn.Linear(width, 256)
        self.head.weight = self.tokens.weight
        self.side_on = False

    def forward(self, ids):
        x = self.tokens(ids)
        batch, length, width = x.shape
        x = self.conv(x.reshape(batch, length, 2, width // 2).transpose(1, 2)).mean((2, 3)).repeat(1, 2) + x.mean(1)
        x = self.layers(self.norm(x) + self.anchor) + self.empty.sum()
        out = self.head(x)
        return (out + self.side(x) if self.side_on else out) * self.scale


def make(a):
    if a.model == "awkward":
        return Awkward(a.width, a.layers, a.context)
    if a.model == "mlp":
        return Mlp(a.width, a.context)
    return SmallGpt(a.width, a.layers, a.context, a.dropout, a.odd_head, a.live_buffer)


def loss(a, ddp, window):
    if a.model == "gpt":
        value = F.cross_entropy(ddp(window[:, :-1]).reshape(-1, 256), window[:, 1:].reshape(-1))
    else:
        value = F.cross_entropy(ddp(window[:, :-1]), window[:, -1])
    return value


class Scaler:
    """What torch's GradScaler does, for CPU, where torch 1.13 has none: scale, skip a step that is not finite, grow."""

    def __init__(self, scale, growth_interval=4):
        self._scale = torch.tensor(float(scale))
        self.growth_interval, self.good, self.finite, self.unscaled = growth_interval, 0, True, False

    def is_enabled(self):
        return True

    def get_scale(self):
        return self._scale.item()

    def state_dict(self):
        return {"scale": self.get_scale(), "growth_interval": self.growth_interval, "good": self.good}

    def load_state_dict(self, state):
        self._scale.fill_(state["scale"])
        self.growth_interval, self.good = state["growth_interval"], state["good"]

    def scale(self, loss):
        return loss * self._scale

    def unscale_(self, optimizer):
        inverse, self.finite, self.unscaled = self._scale.double().reciprocal().float(), True, True
        for p in (p for g in optimizer.param_groups for p in g["params"] if p.grad is not None):
            self.finite &= bool(torch.isfinite(p.grad).all())
            p.grad.mul_(inverse)

    def step(self, optimizer):
        if not self.unscaled:
            self.unscale_(optimizer)
        if self.finite:
            optimizer.step()

    def update(self):
        self.good = self.good + 1 if self.finite else 0
        if not self.finite:
            self._scale *= 0.5
        elif self.good % self.growth_interval == 0:
            self._scale *= 2
        self.unscaled = False


def make_optimizer(a, parameters):
    flags = {"maximize": True} if a.maximize else {}
    if a.optimizer == "sgd":
        return torch.optim.SGD(parameters, lr=a.lr or 0.05, momentum=0.9, nesterov=True, weight_decay=1e-4, **flags)
    kind = torch.optim.Adam if a.optimizer == "adam" else torch.optim.AdamW
    return kind(parameters, lr=a.lr or 1e-3, betas=(0.9, 0.95), weight_decay=0.01 if a.optimizer == "adam" else 0.1,
                amsgrad=a.amsgrad, **flags)


def make_schedule(a, optimizer):
    if a.schedule == "none":
        return None
    steps = a.schedule_steps or a.steps
    warm = max(1, steps // 10)

    def factor(step):
        if step < warm:
            return (step + 1) / warm
        return 0.1 + 0.45 * (1 + math.cos(math.pi * (step - warm) / max(1, steps - warm)))
    return torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
