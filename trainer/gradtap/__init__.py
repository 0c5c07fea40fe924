"""gradtap: attach a PyTorch data-parallel job to checkpoint nodes that rebuild its state from the network, and restart
it from a recovery point exactly."""

from . import digest
from .errors import RestoreError
from .restore import Restored, restore
from .tap import Tap, attach

__all__ = ["RestoreError", "Restored", "Tap", "attach", "digest", "restore"]
__version__ = "0.1.0"
