"""gradtap: attach a PyTorch data-parallel job to checkpoint nodes that rebuild its state from the network."""

from . import digest
from .tap import Tap, attach

__all__ = ["Tap", "attach", "digest"]
__version__ = "0.1.0"
