"""What a learner sees: live charts, pictures, tables, questions, source.

    run = await watch(train, seed=0)      a run in a process of its own, drawn while it goes on
    picture({"bug": bug, "fix": fix})     the same panels for runs that have ended
    learning_curves({"bug": runs, ...})   the chance of a right answer by round, a line a seed
    playground(train, variants, sliders)  buttons: nothing runs until one is pressed
    predict(...)                          a question, answered in the page
    exercise(check, mine, solution=…)     says how the reader's function did; returns what the cells below run
    explore(draw, share=(0, 1, 0.1), …)   one figure with knobs over what was computed before
    table(rows), show(function)           numbers, and the source behind a name
    diagnose("run.log")                   the likely causes of what a log shows, with a picture

It draws what others computed; nothing that computes imports it. Every display leaves a picture or a text in the saved
notebook, and prints in a script. Whether a claim holds is `labkit.verdict`'s to say.
"""

from .bench import exercise
from .controls import playground
from .dashboard import Board, picture, watch
from .diagnosed import diagnose
from .knobs import explore
from .learning import learning_curves
from .question import predict
from .texts import show, table

__all__ = [
    "Board",
    "diagnose",
    "exercise",
    "explore",
    "learning_curves",
    "picture",
    "playground",
    "predict",
    "show",
    "table",
    "watch",
]
