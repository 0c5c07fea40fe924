"""The state of the base step as chunks: parameters and, where it exists, optimizer state, every kind of a range together."""

import json

from . import hyper, safetensors
from .memory import element_bytes, flat

CHUNK_BYTES = 4 << 20  # data of one chunk; the node takes 16 MiB
BLOCK = 1 << 16


class Baseline:
    """Plans at construction; copies bytes out when a chunk is built, so the state must not change meanwhile."""

    def __init__(self, model, chunk_bytes=CHUNK_BYTES, step=0):
        self._model, self._step = model, step
        state = model.optimizer.state
        self._counters = {}
        self._kinds = {}
        for q in model.parameters:
            mine = state.get(q.tensor, None) if q.tensor in state else None
            if mine:
                self._counters[str(q.index)] = hyper.step_counter(mine)
            self._kinds[q.index] = [k for k in model.kinds if mine and mine.get(k) is not None]
        self.plan = [[]]
        room = chunk_bytes
        for q in model.parameters:
            per_element = 4 * (1 + len(self._kinds[q.index]))
            begin = 0
            while begin < q.numel:
                count = min(q.numel - begin, room // per_element)
                if begin + count < q.numel:
                    count -= count % BLOCK if count >= BLOCK else 0  # whole blocks where a tensor is cut
                    if count < BLOCK and self.plan[-1]:
                        self.plan.append([])
                        room = chunk_bytes
                        continue
                count = max(count, 1)
                self.plan[-1].append((q.index, begin, begin + count))
                room -= count * per_element
                begin += count
        self.total_bytes = sum(4 * (1 + len(self._kinds[i])) * (e - b) for c in self.plan for i, b, e in c)

    def __len__(self):
        return len(self.plan)

    def chunk(self, n):
        tensors = []
        for index, begin, end in self.plan[n]:
            q = self._model.parameters[index]
            mine = self._model.optimizer.state[q.tensor] if self._kinds[index] else {}
            for kind in ["param"] + self._kinds[index]:
                source = flat(q.tensor if kind == "param" else mine[kind], q.order)
                tensors.append(("%d:%d:%s" % (index, begin, kind), element_bytes(source, begin, end)))
        return safetensors.encode(tensors, {"step": str(self._step), "chunks": str(len(self.plan)),
                                            "counters": json.dumps(self._counters)})
