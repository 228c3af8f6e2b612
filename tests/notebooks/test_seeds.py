"""Each lesson's verdicts on other seeds and numbers of threads, by papermill. `make seeds` measures their margins."""

import random

import pytest
from cut import FOLDER

from labkit import course, lessons

FEW_SEEDS = {"06", "11"}  # what a seed draws there is a small model's weights, and little hangs on them
ONE_NUMBER_OF_THREADS = {"05", "07", "09", "18"}  # the lesson sets its own, or computes no tensor worth a thread
LONG = {"02", "06", "08", "10", "12"}


def runs():
    for number in [lesson.number for lesson in lessons.choose(FOLDER)]:
        for seed in (0, 9) if number in FEW_SEEDS else range(10):
            drawn = random.Random(seed).choice("12")
            for threads in drawn if number in ONE_NUMBER_OF_THREADS else "12":
                limit = pytest.mark.timeout(900 if number in LONG else 600)
                yield pytest.param(number, seed, threads, marks=limit, id=f"{number}-seed{seed}-threads{threads}")


@pytest.mark.slow
@pytest.mark.parametrize(("number", "seed", "threads"), list(runs()))
def test_every_verdict_holds(tmp_path, monkeypatch, number, seed, threads):
    monkeypatch.setenv("OMP_NUM_THREADS", threads)
    (lesson,) = lessons.choose(FOLDER, [number])
    course.run(lesson, tmp_path, {"SEED": seed, "DEVICE": "cpu"})
    assert lesson.ok, lesson.error or lesson.missing
