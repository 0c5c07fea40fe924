"""Reads a torch file with the installed torch and compares it with values made here, without gradtap.

    torch_check.py version           the torch version
    torch_check.py plain FILE        every value of the file as JSON, after checks of the container
    torch_check.py state FILE CASE   the file must be the state of the job in CASE (JSON) after its steps
    torch_check.py encode FOLDER     side state as the trainer encodes it: optimizer, buffers, frozen
    torch_check.py side FILE         the file must hold what `encode` wrote, and nothing that it cannot say

Exit code 77: torch is not installed.
"""
import io
import json
import os
import pickle
import struct
import sys
import zipfile

try:
    import torch
except ImportError:
    sys.exit(77)

MASK = (1 << 64) - 1


def mix(x):
    x = ((x ^ x >> 30) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ x >> 27) * 0x94D049BB133111EB) & MASK
    return x ^ x >> 31


def gradient(step, parameter, numel):
    """As tests/unit/recovery/job_fixture.h has it, in memory order."""
    return torch.tensor([((mix((step * 1000003 + parameter * 7919 + e * 3 + 1) & MASK) % 2001) - 1000) / 1024
                         for e in range(numel)], dtype=torch.float32)


def in_memory_order(values, shape, order):
    """A tensor of that shape whose dims lie in memory from slowest to fastest as `order` says."""
    strides, step = [0] * len(shape), 1
    for dim in reversed(order):
        strides[dim] = step
        step *= shape[dim]
    return torch.as_strided(values, shape, strides)


def limited_load_takes_floats():
    """torch 1.13 refuses any Python float with weights_only, also in its own files."""
    own = io.BytesIO()
    torch.save({"x": 0.5}, own)
    try:
        torch.load(io.BytesIO(own.getvalue()), weights_only=True)
    except pickle.UnpicklingError:
        return False
    return True


def has_floats(value):
    if isinstance(value, dict):
        return any(has_floats(v) for v in value.values())
    if isinstance(value, (list, tuple)):
        return any(has_floats(v) for v in value)
    return isinstance(value, float)


def load_all_ways(path):
    state = torch.load(path)
    if has_floats(state) and not limited_load_takes_floats():
        return state
    limited = torch.load(path, weights_only=True)  # since 1.13
    assert repr(state) == repr(limited)
    try:
        mapped = torch.load(path, mmap=True, weights_only=True)  # since 2.1
        assert repr(mapped) == repr(state)
    except (TypeError, RuntimeError) as error:
        if "mmap" not in str(error):
            raise
    return state


def check_container(path):
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
        infos = archive.infolist()
    with open(path, "rb") as f:
        for info in infos:
            f.seek(info.header_offset)
            header = f.read(30)
            assert header[:4] == b"PK\3\4"
            name, extra = struct.unpack("<HH", header[26:30])
            assert (info.header_offset + 30 + name + extra) % 64 == 0, info.filename
            assert info.compress_type == zipfile.ZIP_STORED


def spelled(value):
    if isinstance(value, torch.Tensor):
        return {"tensor": value.flatten().tolist(), "shape": list(value.shape), "stride": list(value.stride()),
                "dtype": str(value.dtype)}
    if isinstance(value, dict):
        return {str(k): spelled(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [spelled(v) for v in value]
    return value


def same(a, b, where):
    assert a.shape == b.shape and a.dtype == b.dtype, (where, a.shape, b.shape)
    assert torch.equal(a.contiguous().view(torch.int32) if a.dim() else a.reshape(1).view(torch.int32),
                       b.contiguous().view(torch.int32) if b.dim() else b.reshape(1).view(torch.int32)), where


class Job:
    """The same job, trained by torch alone."""

    def __init__(self, case, start):
        self.case = case
        self.model = torch.nn.Module()
        for i, p in enumerate(case["parameters"]):
            values = gradient(99999, i, p["numel"]) if start else torch.zeros(p["numel"])
            self.model.register_parameter(p["name"], torch.nn.Parameter(in_memory_order(values, p["shape"],
                                                                                        p["order"])))
            for alias in p.get("aliases", ()):
                self.model.register_parameter(alias, self.model._parameters[p["name"]])
        frozen = [torch.nn.Parameter(torch.zeros(3), requires_grad=False) for _ in range(case["frozen"])]
        groups = []
        for g, names in enumerate(case["groups"]):
            tensors = [frozen.pop() if n is None else self.model._parameters[n] for n in names]
            groups.append(dict({"params": tensors}, **self.hyper(case["hypers"][0][g])))
        self.optimizer = getattr(torch.optim, case["class"])(groups, **case.get("defaults", {"lr": 0.5}))

    @staticmethod
    def hyper(values):
        values = dict(values)
        if isinstance(values.get("lr"), str):
            values["lr"] = torch.tensor(float(values["lr"]))
        if "betas" in values:
            values["betas"] = tuple(values["betas"])
        return values

    def step(self, number, hypers):
        for group, values in zip(self.optimizer.param_groups, hypers):
            group.update(self.hyper(values))
        for i, p in enumerate(self.case["parameters"]):
            self.model._parameters[p["name"]].grad = in_memory_order(gradient(number, i, p["numel"]), p["shape"],
                                                                     p["order"])
        self.optimizer.step()


def without_nothing(states):
    """torch 1.13 notes None as the momentum of parameters that have none."""
    cleaned = {i: {k: v for k, v in state.items() if v is not None} for i, state in states.items()}
    return {i: state for i, state in cleaned.items() if state}


def compare_optimizers(a, b):
    states = without_nothing(a["state"])
    assert states.keys() == without_nothing(b["state"]).keys(), (a["state"].keys(), b["state"].keys())
    for index, state in without_nothing(b["state"]).items():
        mine = states[index]
        assert mine.keys() == state.keys(), (mine.keys(), state.keys())
        for key, value in state.items():
            assert type(mine[key]) is type(value), key
            same(mine[key], value, (index, key))
            assert mine[key].stride() == value.stride(), (index, key)
    assert len(a["param_groups"]) == len(b["param_groups"])
    for mine, group in zip(a["param_groups"], b["param_groups"]):
        for key in group:
            if key == "fused":  # absent, None and False by version
                assert bool(mine[key]) == bool(group[key])
            elif isinstance(group[key], torch.Tensor):
                same(mine[key], group[key], key)
            else:
                # An integer travels as the float of its value.
                kind = float if type(group[key]) is int else type(group[key])
                assert key in mine and mine[key] == group[key] and (
                    key == "params" or type(mine[key]) is kind), (key, mine.get(key), group[key])


def check_state(path, case):
    check_container(path)
    state = load_all_ways(path)
    truth = Job(case, True)
    for number, hypers in enumerate(case["hypers"], 1):
        truth.step(number, hypers)
    expected = truth.model.state_dict()
    assert list(state["model"]) == list(expected), (list(state["model"]), list(expected))
    for name, tensor in expected.items():
        same(state["model"][name], tensor, name)
        assert state["model"][name].stride() == tensor.stride(), name
    for p in case["parameters"]:
        for alias in p.get("aliases", ()):
            assert state["model"][alias].data_ptr() == state["model"][p["name"]].data_ptr()
    assert state["gradtap"] == case["gradtap"], state["gradtap"]
    if not case["optimizer"]:
        assert "optimizer" not in state
        return
    compare_optimizers(state["optimizer"], truth.optimizer.state_dict())
    fresh = Job(case, False)
    fresh.model.load_state_dict(state["model"])
    fresh.optimizer.load_state_dict(state["optimizer"])
    for job in (truth, fresh):
        job.step(len(case["hypers"]) + 1, case["hypers"][-1])
        job.step(len(case["hypers"]) + 2, case["hypers"][-1])
    for name, tensor in truth.model.state_dict().items():
        same(fresh.model.state_dict()[name], tensor, name + " two steps later")
    compare_optimizers(fresh.optimizer.state_dict(), truth.optimizer.state_dict())


def side_groups():
    """As AdamW has them before the next step, with what a scheduler and a user may have put there."""
    groups = []
    for lr in (0.125, 0.0625):
        group = dict(torch.optim.AdamW([torch.zeros(1)], lr=lr).param_groups[0])
        del group["params"]
        group.update({"initial_lr": 0.5, "name": "\u00e9", "note": [1, -2, (True, None), {"k": 1 << 40}],
                      "scale": torch.tensor(1.5)})
        groups.append(group)
    return groups


def fixed_tensors():
    return {"norm.running_mean": torch.tensor([[1.0, float("nan")], [-0.0, 3.5]]),
            "norm.count": torch.tensor(1 << 40), "mask": torch.tensor([True, False]),
            "half": torch.tensor([1.5, 2.5], dtype=torch.float16), "none": torch.zeros(0, 3, dtype=torch.float64)}


def encode_side(folder):
    sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "..", "trainer"))
    from gradtap import codec
    groups = side_groups()
    for group in groups:
        group["odd"] = {1, 2}
    buffers = dict(fixed_tensors(), temp=torch.ones(2), large=("sha256", "float32", [9], "00" * 32))
    for name, value in (("optimizer", {"groups": groups, "absent": b"\0\1"}), ("buffers", buffers),
                        ("frozen", {"frozen.weight": torch.arange(6.0).reshape(2, 3)})):
        with open(os.path.join(folder, name), "wb") as out:
            out.write(codec.encode(value))


def check_side(path):
    state = torch.load(path)
    groups = side_groups()
    for mine, group in zip(state["optimizer"]["param_groups"], groups):
        del mine["params"]
        same(mine.pop("scale"), group.pop("scale"), "scale")
        assert mine == group and list(mine) == list(group), (mine, group)
    assert len(state["optimizer"]["param_groups"]) == 2
    fixed = dict(fixed_tensors(), **{"frozen.weight": torch.arange(6.0).reshape(2, 3)})
    for name, tensor in fixed.items():
        mine = state["model"][name]
        assert mine.dtype == tensor.dtype and mine.shape == tensor.shape and mine.stride() == tensor.stride(), name
        assert mine.numpy().tobytes() == tensor.numpy().tobytes(), name
    assert set(state["model"]) - set(fixed) == {"weight", "conv", "bias", "scalar", "tied"}, list(state["model"])
    assert state["gradtap"]["groups_of"] == "next step"
    assert sorted(state["gradtap"]["left_out"]) == ["buffers.large", "optimizer.groups.0.odd",
                                                    "optimizer.groups.1.odd"], state["gradtap"]["left_out"]


if __name__ == "__main__":
    if sys.argv[1] == "version":
        print(torch.__version__)
    elif sys.argv[1] == "encode":
        encode_side(sys.argv[2])
    elif sys.argv[1] == "side":
        check_side(sys.argv[2])
        print("equal")
    elif sys.argv[1] == "plain":
        check_container(sys.argv[2])
        print(json.dumps(spelled(load_all_ways(sys.argv[2]))))
    else:
        with open(sys.argv[3]) as text:
            check_state(sys.argv[2], json.load(text))
        print("equal")
