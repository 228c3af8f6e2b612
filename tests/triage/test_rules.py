"""What a log is taken for: the table itself, the zero-loss table, consequences that are hidden, real cases."""

import json
from pathlib import Path

import pytest

from labkit import triage
from labkit.triage.table import KINDS

ROOT = Path(__file__).parent.parent.parent
LESSONS = {path.name[:2] for path in (ROOT / "notebooks").glob("[0-9][0-9]_*.ipynb")}


def causes(text, settings=None):
    return [finding.cause for finding in triage.diagnose(text, settings).findings]


def log(*rows):
    return "".join(f"{row}\n" for row in rows)


GOOD = {"loss": 0.01, "grad_norm": 0.4, "kl": 0.01, "reward": 0.5, "reward_std": 0.3, "frac_reward_zero_std": 0.25}


def test_the_table_is_whole():
    names = [rule.name for rule in triage.RULES]
    assert len(set(names)) == len(names)
    for rule in triage.RULES:
        assert rule.cause in triage.CAUSES and set(rule.likes) <= set(triage.CAUSES)
        assert rule.likes or rule.name.startswith("vocabulary/"), rule.name
        assert rule.hides <= set(names), rule.name
        assert rule.sure in triage.CONFIDENCE and rule.why and rule.source
        assert all(frozenset((rule.cause, other)) in triage.APART for other in rule.likes), rule.name
    assert {cause.lesson for cause in triage.CAUSES.values()} - {""} <= LESSONS
    assert all(len(literal) > 2 for kind in KINDS for literal in kind.literals)
    # a literal that stands in every row would have every row searched: a log of 1 GB then takes half an hour
    assert not [kind.name for kind in KINDS for literal in kind.literals if literal in f"INFO step {GOOD}"]
    lines = {kind.name for kind in KINDS} | set(names)
    assert {name for rule in triage.RULES for name in rule.of} <= lines


# -- the zero-loss table


@pytest.mark.parametrize(
    ("change", "cause"),
    [
        ({"loss": 0.0}, "healthy-normal"),
        ({"loss": -0.3}, "healthy-normal"),
        ({"loss": 0.0, "grad_norm": 0.0, "kl": 0.0}, "overwritten-or-lost-gradient"),
        ({"loss": 0.0, "grad_norm": 0.0, "reward_std": 0.0, "frac_reward_zero_std": 1.0}, "tied-rewards"),
        (
            {"loss": 0.0, "reward_std": 0.0, "frac_reward_zero_std": 1.0},
            "tied-rewards",
        ),  # beta > 0: a norm clears nothing
        ({"loss": 0.0, "grad_norm": float("nan")}, "gradient-explosion"),
        ({"loss": float("nan")}, "padding-or-mask"),  # a finite norm: only a logged mean is NaN
        ({"loss": float("nan"), "grad_norm": float("nan")}, "kl-blowup"),
        ({"reward": float("nan"), "loss": float("nan"), "grad_norm": float("nan")}, "reward-function-failure"),
    ],
)
def test_the_zero_loss_table(change, cause):
    row = {**GOOD, **change}
    assert causes(log(row, row, row))[0] == cause


def test_what_was_not_logged_is_said_and_never_read_as_zero():
    diagnosis = triage.diagnose(log({"loss": 0.0, "grad_norm": 0.2}))
    assert {"kl", "reward_std", "reward"} <= set(diagnosis.missing)
    assert "not logged" in str(diagnosis)
    assert [f.cause for f in diagnosis.findings] == ["healthy-normal"]


def test_beta_zero_explains_a_kl_that_is_not_there():
    rows = [{**GOOD, "kl": float("nan")}] * 4
    assert causes(log(*rows)) == ["beta-zero-expected", "healthy-normal"]
    assert not triage.diagnose(log(*rows))  # nothing to act on


# -- healthy takes evidence


STILL = {**GOOD, "kl": 0.0, "grad_norm": 5.12345, "loss": 0.0}


@pytest.mark.parametrize(
    ("change", "cause"),
    [
        ({"learning_rate": 1e-10}, "learning-rate"),
        ({"learning_rate": 1e-8, "kl": 3e-9}, "learning-rate"),
        ({"learning_rate": 5e-5}, "overwritten-or-lost-gradient"),
        ({"learning_rate": 5e-5, "kl": 0.02}, "healthy-normal"),
    ],
)
def test_a_policy_that_stands_still_under_a_gradient_is_a_finding(change, cause):
    rows = [{**STILL, "step": at, "grad_norm": 4.12345 + at % 3, **change} for at in range(1, 25)]
    assert causes(log(*rows))[0] == cause


def test_what_keeps_a_policy_still_is_told_apart_by_what_the_log_has():
    rows = [{**STILL, "step": at, "learning_rate": 1e-6} for at in range(1, 25)]
    (rounding,) = triage.diagnose(log(*rows), {"dtype": "bfloat16"}).findings
    assert rounding.cause == "overwritten-or-lost-gradient" and "bfloat16" in rounding.why
    assert causes(log(*rows), {"beta": 0}) != ["overwritten-or-lost-gradient"]  # no KL is computed then


def test_rows_without_evidence_of_health_are_not_called_healthy():
    without_kl = [{"loss": 0.01 * at, "grad_norm": 3.4, "reward": 0.5 + 0.01 * (-1) ** at} for at in range(24)]
    diagnosis = triage.diagnose(log(*without_kl))
    assert diagnosis.kind == "nothing found" and not diagnosis.findings
    assert "not the same as healthy" in str(diagnosis) and "a policy that stands still" in diagnosis.looked_for
    assert {"kl", "entropy"} <= set(diagnosis.missing)
    learns = [{**row, "reward": 0.2 + 0.02 * at} for at, row in enumerate(without_kl)]
    assert causes(log(*learns)) == ["healthy-normal"]
    by_heart = [{"loss": 6 / 2**at, "learning_rate": 2e-5, "epoch": 4 * at} for at in range(1, 5)]  # ChatGLM-Tuning#89
    assert causes(log(*by_heart)) == []
    assert causes(log(*({**row, "epoch": row["epoch"] / 8} for row in by_heart))) == ["healthy-normal"]
    assert triage.diagnose("an ordinary sentence\n").kind == "nothing found"


@pytest.mark.parametrize(
    ("rows", "found"),
    [
        ([{"kl": 2.2}, {"kl": 2.4}], []),  # nats per token
        ([{"loss": 812.0}, {"loss": 901.0}], []),
        ([{"grad_norm": 2100.5}, {"grad_norm": 3000.5}], []),
        ([{"reward": 0.5}, {"reward": 0.3}, {"reward": 0.1}], []),
        ([{"reward": 0.5}, {"reward": 0.3}, {"reward": 0.4}], ["healthy-normal"]),
        ([{"grad_norm": 0.0}, {"grad_norm": 1784.5}], ["gradient-explosion"]),  # HALOs#37
        ([{"kl_max": 6552.0}], ["kl-blowup"]),  # torchforge#606
        ([{"kl_max": 2.5}], ["healthy-normal"]),
    ],
)
def test_few_rows_that_say_otherwise_are_not_called_healthy(rows, found):
    plain = {"loss": 0.01, "grad_norm": 0.4, "kl": 0.01, "reward": 0.5}
    assert causes(log(*({**plain, **row} for row in rows))) == found


def test_a_trainer_that_tells_of_nan_is_not_healthy_whatever_its_rows_say():
    assert causes(log("WARNING: NaN detected in advantages", GOOD, GOOD))[0] == "gradient-explosion"
    assert causes(log("NaN or Inf found in input tensor.", GOOD, GOOD)) == [
        "healthy-normal"
    ]  # a plot that was not drawn


FORMS = {
    "wandb": "wandb: Run summary:\nwandb:   train/kl 0.012\nwandb:  train/grad_norm 0.21\nwandb:  train/reward 0.62\n",
    "several names": "- Rollout reward: 0.64 over 128 trajectories\n- Gradient norm / RMS: 0.5 / 3.0e-07\n",
    "bars": "[iter 10] reward 0.31 +- 0.2 | kl 0.0021 | loss 0.0123 | gnorm 0.41 | lr 1.0e-06\n",
    "verl": "step:5 - actor/grad_norm:0.110 - actor/ppo_kl:0.000 - actor/lr:0.000 - critic/score/mean:0.3 - acc:0.1\n",
    "forge": "  grpo_loss/advantage_std: 0.97\n  grpo_loss/kl_divergence_mean: 0.002\n  grpo_loss/total_loss: 0.1\n",
}


@pytest.mark.parametrize("form", FORMS)
def test_health_is_seen_in_the_forms_of_other_trainers(form):
    assert causes(FORMS[form]) == ["healthy-normal"]


# -- order of events, and consequences


def norms(*values, **more):
    return log(*({**GOOD, "step": at, "grad_norm": norm, **more} for at, norm in enumerate(values, 1)))


def test_a_spike_is_an_explosion_and_a_busy_run_is_none():
    assert causes(norms(0.5, 0.6, 0.4, 0.7, 4e6, 0.5))[0] == "gradient-explosion"
    assert causes(norms(0.5, 9.8, 0.4, 7.0, 12.0, 0.5)) == ["healthy-normal"]
    assert causes(norms(18.5, 25.9, 42.1, 33.0, 19.0)) == ["healthy-normal"]


def test_what_comes_first_is_the_cause():
    kl_first = log(GOOD, GOOD, {**GOOD, "kl": 4e5}, {**GOOD, "kl": 4e5, "grad_norm": 1e8})
    norm_first = log(GOOD, GOOD, GOOD, {**GOOD, "grad_norm": 1e8}, {**GOOD, "kl": 4e5, "reward": 0.0})
    assert causes(kl_first)[0] == "kl-blowup"
    assert causes(norm_first)[0] == "gradient-explosion"


def test_an_assert_after_an_explosion_is_its_consequence():
    text = norms(0.5, 0.6, 0.4, 4e6) + "RuntimeError: probability tensor contains either `inf`, `nan` or element < 0\n"
    assert causes(text) == ["gradient-explosion"]
    assert len(causes("RuntimeError: probability tensor contains either `inf`, `nan` or element < 0\n")) == 3


def test_what_other_ranks_say_afterwards_is_hidden():
    oom = "CUDA out of memory. Tried to allocate 2.00 GiB. "
    oom += "GPU 0 has a total capacity of 79.10 GiB of which 12.81 MiB is free. "
    oom += (
        "Including non-PyTorch memory, this process has 79.00 GiB memory in use. Of the allocated memory 77.50 GiB is "
    )
    oom += "allocated by PyTorch, and 93.52 MiB is reserved by PyTorch but unallocated.\n"
    late = (
        "[Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=4, OpType=BROADCAST, Timeout(ms)=9)\n"
    )
    assert "launcher-or-distributed" not in causes(oom + late) and causes(oom + late)[0] == "too-big-batch"
    assert causes(late)[:2] == ["launcher-or-distributed", "judge-timeout"]


@pytest.mark.parametrize(
    ("words", "cause"),
    [
        ("Process 7 has 30.00 GiB memory in use. Of the allocated memory 47.50 GiB", "other-owner-memory"),
        ("Of the allocated memory 60.00 GiB", "fragmentation"),
    ],
)
def test_an_out_of_memory_message_is_read_with_all_its_numbers(words, cause):
    loose = "18.50 GiB" if cause == "fragmentation" else "93.52 MiB"
    text = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. "
    text += "GPU 0 has a total capacity of 79.10 GiB of which 12.81 MiB is free. "
    text += "Including non-PyTorch memory, this process has 48.60 GiB memory in use. "
    text += f"{words} is allocated by PyTorch, and {loose} is reserved by PyTorch but unallocated.\n"
    assert causes(text)[0] == cause


def test_a_scaler_that_skips_now_and_then_is_healthy_and_one_at_its_floor_is_not():
    line = "[INFO] [deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: {}, reducing to {}\n"
    assert causes(line.format(8192, 4096) * 3) == ["healthy-normal"]
    assert causes(line.format(2, 1) * 3)[0] == "gradient-explosion"


def test_stairs_of_memory_and_a_level():
    held = [{**GOOD, "memory_allocated": 1e9 + at * 2e8} for at in range(8)]
    level = [{**GOOD, "memory_allocated": 1e9 + (at % 2) * 1e7} for at in range(8)]
    assert causes(log(*held))[0] == "references-kept"
    assert causes(log(*level)) == ["healthy-normal"]


def test_a_temperature_of_zero_in_the_settings():
    text = "RuntimeError: probability tensor contains either `inf`, `nan` or element < 0\n"
    assert causes(text, {"temperature": 0.0})[0] == "temperature-or-sampling"
    assert causes(text, {"torch_dtype": "torch.float16"})[0] == "dtype-mismatch"
    assert causes(text, {"torch_dtype": "torch.bfloat16"})[0] == "gradient-explosion"


# -- lines that settle nothing


def test_a_line_that_settles_nothing_names_what_else_ends_in_it_as_possible():
    findings = triage.diagnose("torch.OutOfMemoryError: CUDA out of memory.\n").findings
    assert findings[0].cause == "too-big-batch" and len(findings) == 3
    assert all(finding.confidence == "possible" and "The test:" in finding.why for finding in findings[1:])
    assert len(causes("IndexError: index out of range in self\n")) == 1  # settled by the text


def test_an_error_that_nobody_wrote_down_is_sorted_by_its_words_unless_the_run_goes_on():
    error = "ValueError: the frobnicator of dtype bfloat16 does not fit\n"
    assert causes(error)[0] == "dtype-mismatch"
    assert triage.diagnose(error).findings[0].confidence == "possible"
    assert causes(error + log(GOOD, GOOD, GOOD))[:1] != ["dtype-mismatch"]


def test_a_notice_alone_is_healthy_without_alternatives():
    assert causes("`use_cache=True` is incompatible with gradient checkpointing. Setting `use_cache=False`.\n") == [
        "healthy-normal"
    ]


@pytest.mark.parametrize(
    ("column", "values", "cause"),
    [
        ("entropy", [1.2, 1.1, 0.9, 0.3, 0.1, 0.02, 0.01, 0.004, 0.002], "identical-completions"),
        ("entropy", [0.5, 0.6, 0.7, 1.0, 1.5, 2.0, 2.8, 3.0, 3.1], "learning-rate"),
        ("clip_ratio", [0.6] * 9, "sync-or-logprob-mismatch"),
        ("objective/kl", [-3.0] * 9, "temperature-or-sampling"),
        ("completions/mean_length", [300, 280, 250, 100, 50, 20, 8, 5, 4], "learning-rate"),
    ],
)
def test_a_silent_collapse_is_a_finding_unless_the_reward_rises(column, values, cause):
    rows = [{**GOOD, "step": at, column: value} for at, value in enumerate(values, 1)]
    assert causes(log(*rows))[0] == cause
    learns = [{**row, "reward": 0.1 + 0.08 * at} for at, row in enumerate(rows)]
    if column in ("entropy", "completions/mean_length"):
        assert causes(log(*learns)) == ["healthy-normal"]


# -- what is said


def test_a_finding_says_what_to_do_and_what_it_is_mistaken_for():
    diagnosis = triage.diagnose(norms(0.5, 0.6, 0.4, 4e6))
    (finding,) = diagnosis.findings
    assert finding.lesson == "01" and "step 4: grad_norm 4e6" in finding.evidence[0]
    assert "kl-blowup" in finding.lookalikes and finding.next
    text = str(diagnosis)
    assert max(map(len, text.splitlines())) <= 120
    for words in ("1. gradient-explosion (likely, lesson 01)", "not kl-blowup?", "now:", "from:"):
        assert words in text
    (told,) = json.loads(diagnosis.to_json())["findings"]
    assert told["kind"] == "finding" and told["cause"] == "gradient-explosion" and told["lesson"] == "01"
    assert told["evidence"] == list(finding.evidence)


def test_of_several_files_the_one_that_convicts_is_named(tmp_path):
    (tmp_path / "rank0.log").write_text(log(GOOD, GOOD, GOOD))
    (tmp_path / "rank1.log").write_text("IndexError: index out of range in self\n")
    both = triage.diagnose([str(tmp_path / "rank0.log"), str(tmp_path / "rank1.log")])
    assert both.findings[0].cause == "index-assert-token-id"
    assert both.findings[0].files == (str(tmp_path / "rank1.log"),)
    assert f"in: {tmp_path / 'rank1.log'}" in str(both)
    assert triage.diagnose(tmp_path / "rank1.log").findings[0].files == ()


SHAPES = (
    "size mismatch for a.weight: copying a param with shape torch.Size([{}]) from checkpoint, the shape in current "
)
ASLEEP = {"vllm_enable_sleep_mode": True}


@pytest.mark.parametrize(
    ("line", "settings", "cause"),
    [
        (SHAPES.format(0) + "model is torch.Size([512, 896]).", {}, "launcher-or-distributed"),
        (SHAPES.format(256) + "model is torch.Size([512, 896]).", {}, "stale-code-or-name"),
        (
            "RuntimeError: The size of tensor a (0) must match the size of tensor b (5120)",
            {},
            "launcher-or-distributed",
        ),
        (
            "AssertionError: Attempted to load weight (torch.Size([0])) into parameter (torch.Size([9]))",
            {},
            "launcher-or-distributed",
        ),
        ("RuntimeError: NCCL error: unhandled cuda error", {}, "launcher-or-distributed"),
        (
            "Error executing method f. This might cause deadlock in distributed execution.",
            {},
            "launcher-or-distributed",
        ),
        (
            "HTTPError: 500 Server Error: x for url: http://localhost:8000/update_named_param/",
            {},
            "sync-or-logprob-mismatch",
        ),
        ("HTTPError: 500 Server Error: x for url: http://localhost:8000/score", {}, "judge-timeout"),
        ("RuntimeError: CUDA error: an illegal memory access was encountered", ASLEEP, "sync-or-logprob-mismatch"),
        ("RuntimeError: CUDA error: an illegal memory access was encountered", {}, "other"),
        ("message='found NaN in local grad norm for bucket #0')", {}, "gradient-explosion"),
        ("Completion: " + 40 * "!", {}, "gradient-explosion"),
        ("logprobs: tensor([[-11.931, -11.931, -11.931]])", {}, "other"),
        ("Exception: Weight sync failed with status code 500", {}, "sync-or-logprob-mismatch"),
        ("{'loss': 0.0, 'grad_norm': nan}", {"scale_rewards": "gdpo"}, "reward-function-failure"),
    ],
)
def test_the_same_words_mean_another_cause_where_a_number_or_a_setting_says_so(line, settings, cause):
    assert causes(line + "\n", settings)[0] == cause


# -- real cases


def test_settled_field_cases_are_found(field):
    settled = [case for case in field.cases() if case.settled]
    found = {case.case: field.answers(case) for case in settled}
    assert sum(found[c.case][:1] == [c.label] for c in settled) >= 0.8 * len(settled)
    assert sum(c.label in found[c.case][:3] for c in settled) >= 0.9 * len(settled)


def test_healthy_field_cases_raise_no_alarm(field):
    healthy = [case for case in field.cases() if case.label == "healthy-normal"]
    loud = [c.case for c in healthy if triage.diagnose(c.text, c.settings)]
    assert len(loud) <= 0.1 * len(healthy), loud


def test_the_page_in_the_docs_is_what_the_rules_say_today(field):
    assert (ROOT / "docs" / "field-cases.md").read_text(encoding="utf-8") == field.page(field.cases())
