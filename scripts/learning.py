"""How well `train`'s defaults learn: the exam by round, over many seeds; a table, and the decision record's picture.

    python scripts/learning.py                                 seeds 0-19 of add, and three runs without a step
    python scripts/learning.py --task max --seeds 100 101      others
    ... --write docs/pictures/learning.webp                    the picture, too

Each run is `labkit.grpo.train(task, seed=seed, exam=True)` in a process of its own, two at a time.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from pathlib import Path

from labkit import learning_curves, sandbox
from labkit.grpo import Hooks, grads, train


def no_step(model, optimizer) -> grads.Update:
    return grads.Update(grads.global_norm(grads.trainable(model)), skipped=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", default="add", help="add or max (copy is solved)")
    parser.add_argument("--seeds", type=int, nargs="+", default=list(range(20)), metavar="N")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--write", type=Path, metavar="FILE", help="also write the picture to this file")
    args = parser.parse_args()
    common = {"policy": "tiny", "task": args.task, "rounds": args.rounds, "exam": True}
    trained = sandbox.run_all(train, {f"seed {seed}": {"seed": seed} for seed in args.seeds}, **common)
    still = sandbox.run_all(
        train, {f"seed {seed}": {"seed": seed} for seed in args.seeds[:3]}, hooks=Hooks(update=no_step), **common
    )
    print("run       before  after   gain    last KL  seconds")
    for name, run in trained.items():
        exam = run.exam()
        gain, seconds = exam[-1] - exam[0], run.outcome.seconds
        print(f"{name:9s} {exam[0]:.3f}   {exam[-1]:.3f}  {gain:+.3f}   {run['kl'][-1]:.3f}    {seconds:.1f}")
    gains = [run.exam()[-1] - run.exam()[0] for run in trained.values()]
    print(f"gain: smallest {min(gains):+.3f}, median {statistics.median(gains):+.3f}, largest {max(gains):+.3f}")
    print(f"without a step: {max(abs(run.exam()[-1] - run.exam()[0]) for run in still.values()):.1g}")
    if args.write:
        title = f"train's defaults on {args.task}: {len(trained)} seeds gain {min(gains):.2f} to {max(gains):.2f}"
        save(learning_curves({"trained": trained, "no step": still}, title=title).png, args.write)
    return 0


def save(png: bytes, path: Path) -> None:
    """The picture in the format that the file's name asks for, as the other pictures of docs/ are."""
    import io

    from PIL import Image

    from labkit.common import write_whole

    out = io.BytesIO()
    Image.open(io.BytesIO(png)).save(out, path.suffix.lstrip("."), lossless=True)
    write_whole(path, out.getvalue())


if __name__ == "__main__":
    sys.exit(main())
