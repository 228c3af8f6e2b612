"""Lesson 00: its table leads to what is there, and its text says what labkit does."""

import inspect
import re

import pytest
import torch
from cut import FOLDER, cells, path_of, source

from labkit.grpo import advantage, grads, task

TEXT = "\n".join(map(source, cells(path_of("00"))))


def test_every_lesson_stands_in_the_table_and_every_link_leads_to_one():
    linked = re.findall(r"\| \[(\d\d)\]\((\S+?)\) \|$", TEXT, re.MULTILINE)
    lessons = {path.name for path in FOLDER.glob("[0-9][0-9]_*.ipynb")} - {path_of("00").name}
    assert {file for _, file in linked} == lessons
    assert all(file.startswith(f"{number}_") for number, file in linked)
    marks = set(re.findall(r" \[(\d)\]$", TEXT, re.MULTILINE))
    rows = re.findall(r"\| ((?:\[\d\] ?)+)\| \[\d\d\]", TEXT)
    assert marks == {str(n) for n in range(1, 9)} == set(re.findall(r"\d", "".join(rows)))


def test_what_the_text_says_of_the_guard_of_the_advantage_and_of_the_exam_is_so():
    """Loss, KL and rate: its last verdict. A guard of other limits would give the same twelve updates."""
    guard = inspect.signature(grads.guard).parameters
    assert (guard["max_norm"].default, guard["skip_above"].default) == (0.3, 10.0)
    assert "model.parameters(), 0.3)" in TEXT and "norm <= 10" in TEXT
    one_right = advantage.group_advantage(torch.tensor([1.0] + [0.0] * 7), 8)
    assert "+2.47" in TEXT and "−0.35" in TEXT
    assert one_right.tolist() == pytest.approx([2.47] + [-0.35] * 7, abs=0.005)
    assert "the same 150 prompts every time" in TEXT and len(task.get("add").held_out()) == 150
