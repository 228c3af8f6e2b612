"""A simulated GPU for readers who have none: what a program allocates on the CPU, played to PyTorch's CUDA allocator.

    with Tap(total_memory=8 * 2**30, fake=True) as tap:      # an 8 GiB card; fake tensors take no memory and no time
        model = GPT2LMHeadModel(GPT2Config())
        ...one training step...
    tap.peak, tap.peak_by_category, tap.timeline, tap.snapshot()

Every tensor storage becomes one block of the simulator: allocated when an operation returns it, freed when the
storage dies. Views and in-place operations share a storage, so they count once; a tensor that autograd saves lives as
long as autograd keeps it. `Tap.replay` plays the same program on another card or with other allocator settings. While
a tap is at work, `labkit.memory.meter()` reads it.

What a tap cannot know: scratch memory inside kernels, the order of allocations inside one operation, and the padding of
attention masks. cuBLAS keeps one workspace per thread and stream (32 MiB on sm_90 and later, 8.125 MiB before): pass
`cublas_workspace=` to count it. What that leaves out of a recorded step: `docs/decisions/050-memory.md`.

    simulator   `Allocator`: PyTorch's CUDA caching allocator, the same numbers, without torch. Tests replay recordings of
                the real one on it (tests/memory/traces.py)
    settings    what PYTORCH_CUDA_ALLOC_CONF holds, read as a CUDA build reads it
    tap         `Tap`: sees every operation
    storages    from the operation that returns a storage until it dies
    ledger      blocks with a category, a timeline, the peak, a log to replay
    as_cuda     CPU code that allocates what CUDA code would
    reading     what `labkit.memory.meter` reads of it
"""

from .reading import CardMeter
from .settings import Settings
from .simulator import Allocator, Block, BlockPool, OutOfMemory
from .tap import Tap, current

__all__ = [
    "Allocator",
    "Block",
    "BlockPool",
    "CardMeter",
    "OutOfMemory",
    "Settings",
    "Tap",
    "current",
]
