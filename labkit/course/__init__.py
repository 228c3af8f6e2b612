"""`labkit course`: every lesson headless through papermill, side by side, every verdict collected.

main(numbers, device=...)     what the command does; its exit code
run(lesson, out, parameters)  one lesson into a copy
own_kernel()                  while it lasts, kernels are this interpreter

runner    which lessons, how many at once, one lesson from its kernel's start to its verdicts
console   what a terminal shows
forked    kernels that do not import torch again
"""

from .runner import main, own_kernel, run

__all__ = ["main", "own_kernel", "run"]
