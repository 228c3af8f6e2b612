"""How was this process started, and what does a transformers Trainer make of that?

    print(labkit.launch.launched())                          in a script or a notebook; `labkit doctor` prints it too
    python -m labkit.launch --nproc_per_node 2 script.py     torchrun, reachable from this machine alone

The first starts no process and joins none; it reads the environment. The second is torch's own launcher.
"""

from .environment import Launch, launched

__all__ = ["Launch", "launched"]
