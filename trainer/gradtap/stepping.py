"""Wraps optimizer.step on the instance, whoever else wraps it.

torch 1.13 has no step hooks. Learning-rate schedulers replace optimizer.step too and mark what they made; they may come
before or after attach, so the replacement is a bound method (they read __self__ and __func__) that carries on the marks.
"""

import functools
import types


class StepWrapper:
    def __init__(self, optimizer, before, after):
        """before() runs at entry with the gradients final; after(failed) when the attempt is
        over: failed if it raised once parameters could have moved. Neither may raise."""
        self._optimizer = optimizer
        previous = optimizer.step
        self._own_attribute = optimizer.__dict__.get("step")
        self.active = True
        outer = self

        @functools.wraps(previous)
        def step(optimizer_self, *args, **kwargs):
            if not outer.active:
                return previous(*args, **kwargs)
            closure = args[0] if args else kwargs.get("closure")
            begun = closure is None
            if begun:
                before()
            else:
                # The gradients exist only after the closure ran.
                def observed_closure():
                    nonlocal begun
                    loss = closure()
                    begun = True
                    before()
                    return loss

                if args:
                    args = (observed_closure,) + args[1:]
                else:
                    kwargs = dict(kwargs, closure=observed_closure)
            failed = True
            try:
                result = previous(*args, **kwargs)
                failed = False
            finally:
                after(failed and begun)
            return result

        self._method = types.MethodType(step, optimizer)
        optimizer.step = self._method

    def remove(self):
        """Restores what was there; if somebody wrapped this wrapper, it stays as a plain pass-through."""
        self.active = False
        if self._optimizer.__dict__.get("step") is self._method:
            if self._own_attribute is None:
                del self._optimizer.step
            else:
                self._optimizer.step = self._own_attribute
