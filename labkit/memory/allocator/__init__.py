"""A simulator of PyTorch's CUDA caching allocator: no GPU, no torch, the same numbers.

`Allocator` (and its `Block`, `OutOfMemory`) is the simulator: `simulator.py` maps each piece to its C++ name.
`Settings` reads `PYTORCH_CUDA_ALLOC_CONF`. `replay` runs a recording of PyTorch's own allocator and counts
disagreements (`Replay`). This package imports no torch and moves no memory.
"""

from .settings import Settings
from .simulator import Allocator, Block, BlockPool, OutOfMemory
from .traces import Replay, replay

__all__ = ["Allocator", "Block", "BlockPool", "OutOfMemory", "Replay", "Settings", "replay"]
