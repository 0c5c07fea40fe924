"""What happens to a gradient between reduction and optimizer: clip and unscale, recorded with argument bits.

torch's clip functions return the norm; the coefficient is recomputed with torch's own expression, so it has the bits
that torch multiplied by. Wrapping happens where code looks the functions up: both public modules.
"""

import functools

import torch

NAMES = ("clip_grad_norm_", "clip_grad_value_", "clip_grads_with_norm_")


class Recorder:
    """The transforms applied to the current gradients, in order. A synchronised backward makes all earlier ones void:
    what they changed was summed again."""

    def __init__(self, model):
        self._index_of = model.index_of
        self._count = len(model.parameters)
        self.items = []

    def reset(self):
        self.items = []

    def add(self, op, args, tensors):
        """tensors: the parameters the operation was given, repetitions included."""
        passes = []  # a parameter that was listed twice was transformed twice
        for t in tensors:
            i = self._index_of.get(id(t))
            if i is None:
                continue
            for scope in passes:
                if i not in scope:
                    scope.add(i)
                    break
            else:
                passes.append({i})
        for scope in passes:
            self.items.append((op, args, None if len(scope) == self._count else tuple(sorted(scope))))

    def clipped_by_norm(self, tensors, max_norm, total_norm):
        tensors = [t for t in tensors if t.grad is not None]
        if not tensors:
            return
        with torch.no_grad():
            coefficient = torch.clamp(float(max_norm) / (total_norm + 1e-6), max=1.0)
            self.add("mul", (coefficient.item(),), tensors)

    def clipped_by_value(self, tensors, clip_value):
        limit = float(clip_value)
        self.add("clamp", (-limit, limit), [t for t in tensors if t.grad is not None])

    def unscaled(self, inverse_scale, tensors):
        self.add("mul", (inverse_scale,), tensors)


def as_list(parameters):
    return [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)


def _observed(name, original, observe):
    """original, with its parameters read once into a list and `observe` told afterwards."""

    @functools.wraps(original)
    def call(parameters, *args, **kwargs):
        tensors = as_list(parameters)
        result = original(tensors, *args, **kwargs)
        observe(name, tensors, args, kwargs, result)
        return result

    return call


class ClipWrappers:
    """Wraps torch's clip functions while open. observe(name, tensors, args, kwargs, result) must not raise."""

    def __init__(self, observe):
        self._observe = observe
        self._depth = 0
        self._installed = []

    def install(self):
        places = [torch.nn.utils, torch.nn.utils.clip_grad]
        for name in NAMES:
            original = getattr(torch.nn.utils.clip_grad, name, None)
            if original is None:
                continue
            wrapper = self._nesting_aware(name, original)
            for place in places:
                if getattr(place, name, None) is original:
                    setattr(place, name, wrapper)
                    self._installed.append((place, name, wrapper, original))

    def _nesting_aware(self, name, original):
        # One clip function of torch may call another public one: only the outermost is an operation of the user.
        outer = _observed(name, original, self._observe)

        @functools.wraps(original)
        def call(parameters, *args, **kwargs):
            if self._depth:
                return original(parameters, *args, **kwargs)
            self._depth += 1
            try:
                return outer(parameters, *args, **kwargs)
            finally:
                self._depth -= 1

        return call

    def remove(self):
        for place, name, wrapper, original in self._installed:
            if getattr(place, name, None) is wrapper:
                setattr(place, name, original)
        self._installed = []


def record_clip(recorder, name, tensors, args, kwargs, result):
    """Turns one observed call into recorded transforms."""
    if name == "clip_grad_norm_":
        recorder.clipped_by_norm(tensors, _argument(args, kwargs, 0, "max_norm"), result)
    elif name == "clip_grad_value_":
        recorder.clipped_by_value(tensors, _argument(args, kwargs, 0, "clip_value"))
    elif name == "clip_grads_with_norm_":
        recorder.clipped_by_norm(tensors, _argument(args, kwargs, 0, "max_norm"),
                                 _argument(args, kwargs, 1, "total_norm"))


def _argument(args, kwargs, at, name):
    return args[at] if len(args) > at else kwargs[name]


class UnscaleWrapper:
    """Wraps scaler.unscale_ on the instance; scaler.step reaches it too."""

    def __init__(self, scaler, optimizer, observe):
        self._scaler = scaler
        self._previous = scaler.__dict__.get("unscale_")
        original = scaler.unscale_

        @functools.wraps(original)
        def unscale_(which, *args, **kwargs):
            result = original(which, *args, **kwargs)
            if which is optimizer:
                observe(scaler)
            return result

        self._wrapper = unscale_
        scaler.unscale_ = unscale_

    def remove(self):
        if self._scaler.__dict__.get("unscale_") is self._wrapper:
            if self._previous is None:
                del self._scaler.unscale_
            else:
                self._scaler.unscale_ = self._previous


def inverse_scale(scaler):
    """The factor that torch's unscale_ multiplies by, formed as torch forms it."""
    scale = getattr(scaler, "_scale", None)
    if scale is None:
        scale = torch.tensor(float(scaler.get_scale()), dtype=torch.float32)
    return scale.double().reciprocal().float().item()
