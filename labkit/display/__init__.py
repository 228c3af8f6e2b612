"""What a learner sees: the live dashboard, the playground, tables, questions, sources, segment maps, recordings.

It draws what others computed and computes nothing itself; nothing that computes imports it. Every display leaves a
picture or a text in the saved notebook. IPython, anywidget and matplotlib are imported when something is displayed.
"""

from .controls import playground
from .dashboard import watch
from .panels import Panel
from .quiz import exercise, predict
from .recorded import recording
from .segments import COLOURS, draw
from .source import show
from .tables import table

__all__ = [
    "COLOURS",
    "Panel",
    "draw",
    "exercise",
    "playground",
    "predict",
    "recording",
    "show",
    "table",
    "watch",
]
