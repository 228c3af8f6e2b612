"""Record what any PyTorch code allocates on the CPU, and play it to the CUDA caching allocator's simulator.

    with Tap(total_memory=8 * 2**30, fake=True) as tap:      # an 8 GiB card; fake tensors take no memory and no time
        model = GPT2LMHeadModel(GPT2Config())
        ...one training step...
    tap.peak, tap.peak_by_category, tap.timeline, tap.snapshot()

Every tensor storage becomes one block of the simulator: allocated when an operation returns it, freed when the
storage dies. Views and in-place operations share a storage, so they count once; a tensor that autograd saves lives as
long as autograd keeps it. `Tap.replay` plays the same program on another card or with other allocator settings.

What a tap cannot know: scratch memory inside kernels, the order of allocations inside one operation, and the padding of
attention masks. cuBLAS keeps one workspace per thread and stream (32 MiB on sm_90 and later, 8.125 MiB before): pass
`cublas_workspace=` to count it. What that leaves out of a recorded step: `docs/decisions/050-memory.md`.
"""

from .recorder import Tap, current

__all__ = ["Tap", "current"]
