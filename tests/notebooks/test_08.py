import json
import logging
import re

import pytest
import torch
import transformers
from cut import installed, path_of
from transformers import GenerationConfig, LogitsProcessorList, TemperatureLogitsWarper

from labkit import checks, rollout
from labkit.policy import load
from labkit.sampling import estimate_temperature


def source_of(text):
    """The lesson's one code cell with this text."""
    cells = json.loads(path_of("08").read_text())["cells"]
    (found,) = ["".join(c["source"]) for c in cells if c["cell_type"] == "code" and text in "".join(c["source"])]
    return found


@pytest.fixture
def said():
    """What transformers logs, with its memory of what it said before wiped."""
    lines = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())
    logger, level = logging.getLogger("transformers"), transformers.logging.get_verbosity()
    transformers.utils.logging.warning_once.cache_clear()
    transformers.logging.set_verbosity_warning()
    logger.addHandler(handler)
    yield lines
    logger.removeHandler(handler)
    transformers.logging.set_verbosity(level)


def rolled(policy, n=400, **flags):
    torch.manual_seed(0)
    ids, mask = policy.encode(["16+01="] * n)
    out = policy.model.generate(ids, attention_mask=mask, max_new_tokens=1, **flags)
    with torch.no_grad():
        return estimate_temperature(policy.model(input_ids=ids).logits[:, -1], out[:, -1])


# The bug ----------------------------------------------------------------------------------------------------


def test_the_bug_is_a_missing_flag_and_labkit_refuses_it_as_it_stands(tiny):
    line = re.search(r"^FLAGS = (.*)$", source_of("FLAGS = "), re.MULTILINE)
    flags = eval(line[1])
    assert flags == {"temperature": 0.9, "top_p": 0.9}
    assert rolled(tiny, **flags).verdict == "greedy"
    assert 0.9 in rolled(tiny, do_sample=True, temperature=0.9)
    with pytest.raises(ValueError, match="without do_sample=True"):
        rollout.generation_kwargs(**flags)


def test_the_warning_is_worded_so_comes_once_and_not_for_the_defaults(tiny, said):
    for _ in range(3):
        rolled(tiny, n=2, temperature=1.0, top_k=50)
    assert not [line for line in said if "ignored" in line]
    for _ in range(3):
        rolled(tiny, n=2, temperature=0.9, top_p=0.9)
    meant = "The following generation flags are not valid and may be ignored: ['temperature', 'top_p']."
    assert [line for line in said if "ignored" in line] == [
        meant + " Set `TRANSFORMERS_VERBOSITY=info` for more details."
    ]


def test_the_check_that_passes_on_the_fix_fails_on_the_bug(tiny):
    model = tiny.model
    fix = lambda ids, t: model.generate(
        ids, **rollout.generation_kwargs(model, do_sample=True, temperature=t, max_new_tokens=4)
    )
    assert checks.temperature(fix, model)
    bug = lambda ids, t: model.generate(ids, temperature=t, top_p=0.9, max_new_tokens=4)
    assert "greedy decoding" in checks.temperature(bug, model).hint


# The exercise ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def exercise():
    space = {"load": load, "DEVICE": "cpu", "checks": checks, "GenerationConfig": GenerationConfig}
    space["special"] = {"eos_token_id": 1, "pad_token_id": 0}
    exec(source_of("def judge("), space)
    exec(re.search(r"```python\n(.*?)```", source_of("labkit.exercise("), re.DOTALL)[1], space)
    return space


def test_the_solution_can_be_pasted_and_passes(exercise):
    report = exercise["judge"](exercise["my_generate"])
    assert report, report


def forgotten(*names):
    def generate(model, ids, t):
        off = {"top_k": 0, "top_p": 1.0, "min_p": None, "repetition_penalty": 1.0}
        kept = {name: value for name, value in off.items() if name not in names}
        return model.generate(ids, do_sample=True, temperature=t, max_new_tokens=4, **kept)

    return generate


def no_sampling(model, ids, t):
    return model.generate(ids, temperature=t, max_new_tokens=4, top_p=None, min_p=None, repetition_penalty=1.0)


def changes_the_model(model, ids, t):
    model.generation_config = GenerationConfig(eos_token_id=1, pad_token_id=0)
    return model.generate(ids, do_sample=True, temperature=t, max_new_tokens=4)


def in_an_object(model, ids, t):
    config = GenerationConfig(do_sample=True, temperature=t, top_p=None, min_p=None, max_new_tokens=4)
    return model.generate(ids, generation_config=config)


@pytest.mark.parametrize(
    "wrong",
    [
        *(forgotten(name) for name in ("top_p", "min_p", "repetition_penalty")),
        no_sampling,
        changes_the_model,
        in_an_object,
        lambda model, ids, t: ids,
        lambda model, ids, t: None,
    ],
)
def test_the_exercise_refuses_what_it_forbids_and_leaves_the_model_as_it_was(exercise, wrong):
    before = exercise["STRANGER"].generation_config.to_dict()
    assert exercise["judge"](wrong).passed is False
    assert exercise["STRANGER"].generation_config.to_dict() == before
    assert exercise["judge"](exercise["my_generate"])


# What the lesson says of the frameworks ----------------------------------------------------------------------


def test_what_is_not_said_comes_from_the_model_and_then_from_the_defaults(fresh):
    assert GenerationConfig._get_default_generation_params()["top_k"] == 50
    fresh.model.generation_config = GenerationConfig(
        do_sample=True, temperature=0.3, min_p=0.2, eos_token_id=1, pad_token_id=0
    )
    config, _ = fresh.model._prepare_generation_config(None, temperature=1.0)
    assert (config.do_sample, config.temperature, config.min_p, config.top_k) == (True, 1.0, 0.2, 50)
    config, _ = fresh.model._prepare_generation_config(GenerationConfig(temperature=None, min_p=None))
    assert (config.temperature, config.min_p) == (0.3, 0.2)
    config, _ = fresh.model._prepare_generation_config(None, temperature=None, min_p=None, top_k=None)
    assert (config.temperature, config.min_p, config.top_k) == (None, None, None)


def test_a_warper_in_the_list_does_not_replace_the_flag(fresh):
    warper = LogitsProcessorList([TemperatureLogitsWarper(0.5)])
    twice = rolled(fresh, n=2000, do_sample=True, temperature=0.5, logits_processor=warper)
    assert twice.value == pytest.approx(0.25, rel=0.25) and 0.5 not in twice
    assert "up to v4.49.0, this function threw" in installed("transformers", "generation/utils.py")


def test_the_relatives_leave_no_line_in_the_log(fresh, said):
    warper = LogitsProcessorList([TemperatureLogitsWarper(0.5)])
    rolled(fresh, n=2, do_sample=True, temperature=0.5, logits_processor=warper)
    rolled(fresh, n=2, logits_processor=warper)
    rolled(fresh, n=2, do_sample=True, temperature=0.5, top_p=0.7)
    fresh.model.generation_config = GenerationConfig(do_sample=True, temperature=0.3, eos_token_id=1, pad_token_id=0)
    rolled(fresh, n=2)
    rolled(fresh, n=2, generation_config=GenerationConfig(temperature=None))
    assert not [line for line in said if "attention_mask" not in line and "is deprecated" not in line]


def test_strict_validation_raises_and_does_not_see_a_temperature_of_one():
    with pytest.raises(ValueError, match="temperature"):
        GenerationConfig(temperature=0.9).validate(strict=True)
    GenerationConfig(temperature=1.0, top_k=50, do_sample=False).validate(strict=True)


def test_trl_draws_divides_and_does_not_filter_when_it_scores():
    fields = pytest.importorskip("trl").GRPOConfig.__dataclass_fields__
    names = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "generation_kwargs")
    assert [fields[name].default for name in names] == [1.0, 1.0, 0, None, 1.0, None]
    assert "typical_p" not in fields
    trainer, utils = installed("trl", "trainer/grpo_trainer.py"), installed("trl", "trainer/utils.py")
    assert '"do_sample": True' in trainer and "logits = logits / temperature" in utils
    assert trainer.count("self.top_p") == 3 and "top_p" not in utils  # set, and handed to the two samplers
    assert "generation_kwargs.update(args.generation_kwargs)" in trainer
    assert '"sampling/importance_sampling_ratio/mean"' in trainer and "processed_logprobs" in trainer
