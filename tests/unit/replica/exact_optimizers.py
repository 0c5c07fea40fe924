"""The optimizers in exact rational arithmetic, one rounding where the formula has one; for exact_recipe_test.cpp.

No torch, no numpy: the independent check of the recipes that the installed torch does not use (lerp, fused tail).
Output as optimizer_trace.py, with the recipe's name in each trace. Formulas: the reports on torch 1.13 and 2.6 replays.
"""
import json
import math
import random
import struct
import sys
from fractions import Fraction

MIN_EXPONENT = -149  # of the last bit of a subnormal float32
SIZES = [3, 13, 24, 65536 + 13]
STEPS = 5


def single(x):
    return struct.unpack("<f", struct.pack("<f", x))[0]


def rounded(exact, zero_sign=1.0):
    """The float32 nearest to a Fraction, ties to even."""
    if exact == 0:
        return math.copysign(0.0, zero_sign)
    sign = -1.0 if exact < 0 else 1.0
    exact = abs(exact)
    exponent = exact.numerator.bit_length() - exact.denominator.bit_length() - 24
    while exact >= Fraction(2) ** (exponent + 24):
        exponent += 1
    while exact < Fraction(2) ** (exponent + 23):
        exponent -= 1
    exponent = max(exponent, MIN_EXPONENT)
    scaled = exact / Fraction(2) ** exponent
    whole, rest = divmod(scaled.numerator, scaled.denominator)
    if 2 * rest > scaled.denominator or (2 * rest == scaled.denominator and whole % 2):
        whole += 1
    return math.copysign(math.ldexp(float(whole), exponent), sign)


def sign_of(x):
    return math.copysign(1.0, x)


def mul(a, b):
    return rounded(Fraction(a) * Fraction(b), sign_of(a) * sign_of(b))


def add(a, b):
    both_negative = sign_of(a) < 0 and sign_of(b) < 0
    return rounded(Fraction(a) + Fraction(b), -1.0 if both_negative else 1.0)


def div(a, b):
    return rounded(Fraction(a) / Fraction(b), sign_of(a) * sign_of(b))


def fma(a, b, c):
    product_sign = sign_of(a) * sign_of(b)
    zero = -1.0 if product_sign < 0 and sign_of(c) < 0 and Fraction(a) * Fraction(b) == 0 and c == 0 else 1.0
    return rounded(Fraction(a) * Fraction(b) + Fraction(c), zero)


def square_root(x):
    if x == 0:
        return x
    exact = Fraction(x)
    shift = 400  # far more bits than a float32 has: the truncated root is never a tie
    scaled = exact * (1 << (2 * shift))
    root = math.isqrt(scaled.numerator // scaled.denominator)
    inexact = Fraction(root, 1 << shift)
    if inexact * inexact != exact:
        inexact += Fraction(1, 1 << (shift + 8))
    return rounded(inexact)


class Recipe:
    def __init__(self, lerp, use_fma, tail):
        self.lerp, self.use_fma, self.tail = lerp, use_fma, tail
        self.name = ("lerp" if lerp else "torch1") + ("+fma" if use_fma else "+nofma") + ("+fused-tail" if tail else "")

    def mul_add(self, a, b, c):
        return fma(a, b, c) if self.use_fma else add(mul(a, b), c)


def adam_element(r, h, t, in_tail, p, m, v, top, g, decoupled):
    b1, b2 = h["betas"]
    d = -g if h["maximize"] else g
    x = p
    if decoupled:
        x = mul(p, single(1 - h["lr"] * h["weight_decay"]))
    elif h["weight_decay"] != 0:
        d = r.mul_add(single(h["weight_decay"]), p, d)
    w = single(1 - b1)
    if not r.lerp:
        m = r.mul_add(w, d, mul(m, single(b1)))
    elif abs(w) < 0.5:
        m = r.mul_add(w, add(d, -m), m)
    else:
        m = r.mul_add(add(w, -1.0), add(d, -m), d)
    if in_tail:
        v = r.mul_add(v, single(b2), mul(mul(single(1 - b2), d), d))
    else:
        v = r.mul_add(mul(single(1 - b2), d), d, mul(v, single(b2)))
    s = v
    if h["amsgrad"]:
        s = top = max(top, v)
    den = add(div(square_root(s), single(math.sqrt(1 - b2 ** float(t)))), single(h["eps"]))
    p = add(x, div(mul(single(-(h["lr"] / (1 - b1 ** float(t)))), m), den))
    return p, m, v, top


def sgd_element(r, h, t, in_tail, p, m, g):
    d = -g if h["maximize"] else g
    if h["weight_decay"] != 0:
        d = r.mul_add(single(h["weight_decay"]), p, d)
    if h["momentum"] != 0:
        if t == 1:
            m = d
        elif in_tail:
            m = r.mul_add(m, single(h["momentum"]), mul(d, single(1 - h["dampening"])))
        else:
            m = r.mul_add(single(1 - h["dampening"]), d, mul(m, single(h["momentum"])))
        d = r.mul_add(single(h["momentum"]), m, d) if h["nesterov"] else m
    return r.mul_add(single(-h["lr"]), d, p), m


def f64(x):
    return "f64:" + struct.pack(">d", x).hex()


def bits(cls, h):
    flags = ["maximize"] + (["nesterov"] if cls == "SGD" else ["amsgrad"])
    reals = ["lr", "weight_decay"] + (["momentum", "dampening"] if cls == "SGD" else ["eps"])
    out = {k: f64(float(h[k])) for k in reals}
    out.update({k: "b:%d" % h[k] for k in flags})
    if cls != "SGD":
        out.update(beta1=f64(h["betas"][0]), beta2=f64(h["betas"][1]))
    return dict(out, fused="none", foreach="none")


def wild(rng, live):
    """Values of many magnitudes where `live`, zeros elsewhere (whose result is computed once)."""
    return [single(rng.gauss(0, 1) * 10 ** rng.uniform(-5, 2)) if i >= live else 0.0 for i in range(live + 24)]


def trace(out, recipe, cls, h, seed):
    rng = random.Random(seed)
    kinds = {"SGD": ["momentum_buffer"] if h.get("momentum") else []}.get(cls, ["exp_avg", "exp_avg_sq"])
    if h.get("amsgrad"):
        kinds.append("max_exp_avg_sq")
    params, states = [], []
    for n in SIZES:
        live = max(0, n - 24)
        params.append((wild(rng, live)[live:])[-min(n, 24):])
        states.append([[0.0, 0.0, 0.0] for _ in params[-1]])
    pads = [n - len(p) for n, p in zip(SIZES, params)]
    zeros = [[0.0, 0.0, 0.0, 0.0] for _ in SIZES]  # p, states of the elements before the live ones
    columns = []

    def dump(column):
        for pad, zero, p, s in zip(pads, zeros, params, states):
            values = p if column == 0 else [x[column - 1] for x in s]
            columns.append(struct.pack("<f", zero[column]) * pad + struct.pack("<%df" % len(values), *values))

    dump(0)
    messages, presence, counters = [], [], []
    for t in range(1, STEPS + 1):
        h["lr"] = 0.01 * (1 + 0.3 * math.sin(1.3 * t))
        grads = [wild(rng, 0)[:len(p)] for p in params]
        for pad, g in zip(pads, grads):
            columns.append(struct.pack("<f", 0.0) * pad + struct.pack("<%df" % len(g), *g))

        def one(p, s, g, in_tail):
            if cls == "SGD":
                p, s[0] = sgd_element(recipe, h, t, in_tail, p, s[0], g)
            else:
                p, s[0], s[1], s[2] = adam_element(recipe, h, t, in_tail, p, *s, g, cls == "AdamW")
            return p

        for n, pad, zero, p, s, g in zip(SIZES, pads, zeros, params, states, grads):
            rest = zero[1:]
            zero[0] = one(zero[0], rest, 0.0, False)
            zero[1:] = rest
            for i in range(len(p)):
                p[i] = one(p[i], s[i], g[i], recipe.tail and pad + i >= n - n % 8)
        for column in range(1 + len(kinds)):
            dump(column)
        messages.append({"kind": "step", "seq": t, "rank": 0, "step": t, "layout_id": "00" * 32, "interval": [t, t + 1],
                         "micro_steps": 1, "synced_backwards": 1, "verdict": "applied", "groups": [bits(cls, h)],
                         "transforms": [], "param_state": "00", "witness": {}})
        presence.append([(1 << len(kinds)) - 1] * len(SIZES))
        counters.append([0 if cls == "SGD" else t] * len(SIZES))
    attach = {"parameters": [{"name": "p%d" % i, "shape": [n], "order": [0], "dtype": "float32", "numel": n,
                              "requires_grad": True, "group": 0, "alias_of": None} for i, n in enumerate(SIZES)],
              "optimizer": {"class": cls, "kinds": kinds, "groups": [bits(cls, h)]}}
    head = {"name": "%s %s" % (recipe.name, cls), "recipe": recipe.name, "attach": attach, "messages": messages,
            "presence": presence, "counters": counters, "roots": []}
    out.write(json.dumps(head).encode() + b"\n")
    for column in columns:
        out.write(column)


def main():
    base = {"lr": 0.01, "maximize": False}
    adam = dict(base, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.05, amsgrad=False)
    sgd = dict(base, momentum=0.9, dampening=0.0, weight_decay=0.0, nesterov=False)
    seed = 0
    for lerp in (False, True):
        for use_fma in (False, True):
            for tail in ((False, True) if use_fma else (False,)):
                recipe = Recipe(lerp, use_fma, tail)
                for cls, h in (("Adam", dict(adam)), ("AdamW", dict(adam, amsgrad=True, maximize=True)),
                               ("AdamW", dict(adam, betas=(0.4, 0.9)))):
                    seed += 1
                    trace(sys.stdout.buffer, recipe, cls, h, seed)
                if not lerp:
                    for h in (dict(sgd, dampening=0.2, weight_decay=0.01), dict(sgd, nesterov=True, maximize=True),
                              dict(sgd, momentum=0.0)):
                        seed += 1
                        trace(sys.stdout.buffer, recipe, "SGD", h, seed)


if __name__ == "__main__":
    main()
