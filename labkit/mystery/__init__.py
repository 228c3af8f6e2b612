"""The mystery run: a real run with one hidden bug, or none; probes with prices, and a budget; a name, a fix, a score.

    case = mystery.Mystery(seed)         a run whose failure the seed chooses
    case.run                             the `labkit.Run`: what its dashboard shows
    case.probe("first tokens")           pay, and read what was measured on this very run
    case.answer("tied-rewards", "prompts")     the same run with that part made sound; the truth, and points
    field_cases()                        somebody else's logs, with the thread each comes from

Seeds in a row have different failures until all have been met, and what a run is besides its failure is drawn by lot
too. It draws nothing itself: pictures are the notebook's.
"""

from .failures import FAILURES, FIXES, Failure
from .field import FieldCase, field_cases
from .game import BUDGET, Answer, Mystery, hidden, played
from .probes import PROBES, Probe

__all__ = ["BUDGET", "FAILURES", "FIXES", "PROBES", "Answer", "Failure", "FieldCase", "Mystery", "Probe"]
__all__ += ["field_cases", "hidden", "played"]
