"""What the course costs: its time per lesson over the time of `import torch, transformers`, side by side in one run.

    python benchmarks/bench_course.py              the whole course, as `labkit course` runs it
    python benchmarks/bench_course.py 02 05        these lessons
    python benchmarks/bench_course.py --jobs 1     one after the other
    python benchmarks/bench_course.py --cold       and once more with kernels that are started, not forked

Aim: at most 4.5 on two quiet cores.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path


def seconds(command, **settings):
    began = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **settings})
    if done.returncode:
        sys.exit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout[-3000:]}{done.stderr[-3000:]}")
    return time.perf_counter() - began


def importing():
    return min(seconds([sys.executable, "-c", "import torch, transformers"]) for _ in range(3))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("lessons", nargs="*", metavar="NN")
    parser.add_argument("--jobs", metavar="N", help="lessons at a time (default: as many as the machine has room for)")
    parser.add_argument("--cold", action="store_true", help="then once more with a new interpreter for each kernel")
    args = parser.parse_args()
    before = importing()
    for settings in [{}, {"LABKIT_COLD_KERNELS": "1"}][: 1 + args.cold]:
        print("cold kernels:" if settings else "as it is:", flush=True)
        course(args, before, settings)


def course(args, before, settings):
    with tempfile.TemporaryDirectory() as folder:
        told = Path(folder) / "course.json"
        command = [sys.executable, "-m", "labkit", "course", *args.lessons, "--out", folder, "--json", str(told)]
        took = seconds(command + (["--jobs", args.jobs] if args.jobs else []), **settings)
        lessons = json.loads(told.read_text())["lessons"]
    imports = min(before, importing())
    alone = sum(lesson["seconds"] for lesson in lessons)
    print(f"{len(lessons)} lessons in {took:.0f} s ({alone:.0f} s, were they added up); the imports {imports:.2f} s")
    print(f"ratio {took / len(lessons) / imports:.2f}, aim 4.5")


if __name__ == "__main__":
    main()
