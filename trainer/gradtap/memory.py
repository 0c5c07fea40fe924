"""Memory order: tensors as the flat sequence of elements that lies in memory, whatever their dimension order."""

import ctypes


def memory_order(tensor):
    """Dimensions from slowest to fastest in memory."""
    strides, shape = tensor.stride(), tensor.shape
    # Dimensions of size one have arbitrary strides: they keep their place and never change the order of elements.
    dims = [d for d in range(len(shape)) if shape[d] != 1]
    dims.sort(key=lambda d: -strides[d])
    it = iter(dims)
    return [next(it) if shape[d] != 1 else d for d in range(len(shape))]


def is_dense(tensor):
    """True if the elements fill one gap-free range of memory, each once."""
    if tensor.numel() == 0:
        return True
    expected = 1
    for d in reversed(memory_order(tensor)):
        if tensor.shape[d] == 1:
            continue
        if tensor.stride(d) != expected:
            return False
        expected *= tensor.shape[d]
    return True


def flat(tensor, order=None):
    """A one-dimensional tensor of the elements in memory order (of `order` if given); a view if the tensor is dense."""
    order = memory_order(tensor) if order is None else order
    t = tensor.detach()
    return (t.permute(order) if order else t).reshape(-1)


def element_bytes(flat_tensor, begin, end):
    """Copies elements [begin, end) of a dense one-dimensional CPU tensor."""
    size = flat_tensor.element_size()
    if end <= begin:
        return b""
    return ctypes.string_at(flat_tensor.data_ptr() + begin * size, (end - begin) * size)
