"""What lesson 07 leans on and does not show: when torch reads a variable."""

import os

import torch
from props import lesson_07 as props

from labkit import sandbox

OLD, NEW, CANARY = props.OLD, props.NEW, props.CANARY


def test_a_variable_set_after_the_first_use_is_not_read_and_one_set_before_is():
    def process(early):
        if early:
            os.environ[OLD] = CANARY
        torch._C._accelerator_setAllocatorSettings("")  # torch reads its variables
        os.environ[OLD] = CANARY
        torch._C._accelerator_setAllocatorSettings("")
        yield os.environ[OLD]

    late = sandbox.run(process, False)
    assert late.outcome and late.events == [CANARY]
    assert "max_split_size_mb" in sandbox.run(process, True).outcome.message
