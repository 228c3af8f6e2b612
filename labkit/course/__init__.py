"""The course at work: every lesson headless through papermill, its verdicts collected; or JupyterLab opened on one.

main(numbers, device=...)     what `labkit course` does; its exit code
run(lesson, out, parameters)  one lesson into a copy
own_kernel()                  while it lasts, kernels are this interpreter
bring_up_to_date(folder)      the learner's own copy of the lessons
reset(lesson, folder)         a page of it anew
progress_of_one(folder)       a learner's progress as a table
progress_of_class(root, ...)  of many learners, as tables and a picture
start_lab(lesson)             JupyterLab, also where there is no browser

runner     which lessons, how many at once, one lesson from its kernel's start to its verdicts
console    what a terminal shows
forked     kernels that do not import torch again
recorded   what a lesson did on a real GPU, kept
classroom  what was noted of many learners' answers
learners   what was noted of a learner's answers, as a table
lab        JupyterLab
answers    in its server: what is answered in the page itself
working_copy   what of it is the learner's stays
"""

from .classroom import of_class as progress_of_class
from .lab import start as start_lab
from .learners import of_one as progress_of_one
from .runner import main, own_kernel, run
from .working_copy import bring_up_to_date, reset

__all__ = [
    "bring_up_to_date",
    "main",
    "own_kernel",
    "progress_of_class",
    "progress_of_one",
    "reset",
    "run",
    "start_lab",
]
