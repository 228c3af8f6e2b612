"""What triage costs on a large log: its seconds and memory beside a loop that only splits the file into lines.

    python benchmarks/bench_triage.py                        20 MB of each form
    python benchmarks/bench_triage.py --megabytes 1000       1 GB of each, with some minutes for the writing
    python benchmarks/bench_triage.py --form verl --form csv

Each log is of one healthy run, written in the form of a trainer or of a loop of somebody's own. Aim: 1 GB within
60 s and 300 MB. Missed by "dicts among words", where every word is new: nobody's log, and the slowest there is.
"""

import argparse
import base64
import itertools
import json
import random
import subprocess
import sys
import tempfile
from pathlib import Path

READ = """
import resource, sys, time
began = time.perf_counter()
with open(sys.argv[1], "rb") as file:
    lines = sum(len(block.split(b"\\n")) for block in iter(lambda: file.read(1 << 20), b""))
split = time.perf_counter() - began
from labkit import triage
began = time.perf_counter()
kind = triage.diagnose(sys.argv[1]).findings[0].cause
seconds = time.perf_counter() - began
print(lines, split, seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, kind)
"""
PROSE = "the policy answers with a number and says what it thinks of apples under an old green tree"
LETTERS = "abcdefghijklmnopqrstuvwxyz"


def row(step, dice):
    return {
        "loss": round(dice.gauss(0, 0.01), 4),
        "grad_norm": round(abs(dice.gauss(0.5, 0.2)), 6),
        "learning_rate": 1e-6,
        "kl": abs(dice.gauss(0.01, 0.005)),
        "reward": round(dice.uniform(0.2, 0.8), 4),
        "reward_std": round(dice.uniform(0.1, 0.5), 4),
        "frac_reward_zero_std": dice.choice([0.0, 0.25, 0.5]),
        "completions/mean_length": round(dice.uniform(50, 200), 3),
        "step": step,
    }


def said(step, dice):
    return f"INFO 2026-01-31 rollout {step} finished in {dice.uniform(1, 9):.2f} s, worker {step % 8}"


def answer(dice):
    return "completion: " + " ".join(dice.choices(PROSE.split(), k=30))


def own_words(dice):
    """An answer whose words stand nowhere else, with numbers behind colons."""
    return " ".join(f"{''.join(dice.choices(LETTERS, k=7))}: {dice.randrange(100)}" for _ in range(20))


def image(dice):
    return f"{{'image': '{base64.b64encode(dice.randbytes(15_000)).decode()}'}}"


def verl(step, values):
    return f"step:{step} - " + " - ".join(f"actor/{name}:{value}" for name, value in values.items() if name != "step")


def bar(step):
    return f"\r{step % 100:3d}%|{'█' * (step % 10):10}| {step}/900000 [10:00<20:00, 1.07s/it]"


# name of the form -> the lines of one step
FORMS = {
    "dicts": lambda step, values, dice: [str(values)],
    "dicts among lines": lambda step, values, dice: [str(values), said(step, dice)],
    "dicts behind bars": lambda step, values, dice: [bar(step) + str(values)],
    "dicts among answers": lambda step, values, dice: [str(values), *(answer(dice) for _ in range(10))],
    "dicts among words": lambda step, values, dice: [str(values), *(own_words(dice) for _ in range(10))],
    "dicts among images": lambda step, values, dice: [str(values), image(dice)],
    "few dicts": lambda step, values, dice: [str(values), *(said(step, dice) for _ in range(20))],
    "json": lambda step, values, dice: [json.dumps(values), said(step, dice)],
    "verl": lambda step, values, dice: [verl(step, values), said(step, dice)],
    "verl under ray": lambda step, values, dice: [
        f"(main_task pid={step % 9000}) {verl(step, values)}",
        f"(WorkerDict pid={step % 9000}) {answer(dice)}",
    ],
    "name=value": lambda step, values, dice: [" ".join(f"{name}={value}" for name, value in values.items())],
    "one name a line": lambda step, values, dice: [f"{name}: {value}" for name, value in values.items()],
    "csv": lambda step, values, dice: [",".join(values)] * (step == 0) + [",".join(map(str, values.values()))],
}


def write(path, form, size):
    dice = random.Random(0)
    with path.open("w", encoding="utf-8") as file:
        for step in itertools.count():
            file.write("\n".join(FORMS[form](step, row(step, dice), dice)) + "\n")
            if step % 100 == 0 and file.tell() >= size:
                return


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=20)
    parser.add_argument("--form", action="append", choices=FORMS, help="may be given several times; all of them")
    args = parser.parse_args()
    print(f"{args.megabytes} MB of        million lines  seconds  of splitting lines  peak MiB  answer")
    for form in args.form or FORMS:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "run.log"
            write(path, form, args.megabytes * 1_000_000)
            done = subprocess.run([sys.executable, "-c", READ, str(path)], capture_output=True, text=True, check=True)
        lines, split, seconds, peak, cause = done.stdout.split()
        ratio = float(seconds) / float(split)
        print(f"{form:20}{int(lines) / 1e6:12.2f}{float(seconds):9.1f}{ratio:15.0f} times{float(peak):10.0f}  {cause}")


if __name__ == "__main__":
    main()
