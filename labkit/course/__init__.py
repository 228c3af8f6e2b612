"""The course at work: every lesson headless through papermill, its verdicts collected; or JupyterLab opened on one.

main(numbers, device=...)     what `labkit course` does; its exit code
run(lesson, out, parameters)  one lesson into a copy
own_kernel()                  while it lasts, kernels are this interpreter
start_lab(lesson)             JupyterLab, also where there is no browser

runner     which lessons, how many at once, one lesson from its kernel's start to its verdicts
console    what a terminal shows
forked     kernels that do not import torch again
recorded   what a lesson did on a real GPU, kept
lab        JupyterLab
"""

from .lab import start as start_lab
from .runner import main, own_kernel, run

__all__ = ["main", "own_kernel", "run", "start_lab"]
