"""What a log is taken for: the table itself, made logs with one thing in them, what is said of it, real cases."""

import dataclasses
import json
import re
from math import inf, nan
from pathlib import Path

import pytest

from labkit import triage
from labkit.triage.names import canonical
from labkit.triage.table import KINDS

ROOT = Path(__file__).parent.parent.parent
LESSONS = {path.name[:2] for path in (ROOT / "notebooks").glob("[0-9][0-9]_*.ipynb")}


def causes(text, settings=None):
    """What triage found, without what else could show the same."""
    return [one.cause for one in triage.diagnose(text, settings).findings if one.kind != "lookalike"]


def log(*rows):
    return "".join(f"{row}\n" for row in rows)


GOOD = {"loss": 0.01, "grad_norm": 0.4, "kl": 0.01, "reward": 0.5, "reward_std": 0.3, "frac_reward_zero_std": 0.25}


def good_but(number=12, **columns):
    """So many rows of a healthy run, in which these columns are changed: a value for all, or one for each row."""
    rows = []
    for at in range(number):
        changed = {name: value[at] if isinstance(value, list) else value for name, value in columns.items()}
        rows.append({**GOOD, "step": at + 1, **changed})
    return log(*rows)


def norms(*values):
    return good_but(len(values), grad_norm=list(values))


def still(**columns):
    """A policy that stands still under a gradient."""
    return good_but(24, loss=0.0, grad_norm=[4.12345 + at % 3 for at in range(24)], **({"kl": 0.0} | columns))


def out_of_memory(in_use, allocated, loose):
    return (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of "
        f"79.10 GiB of which 12.81 MiB is free. {in_use} GiB memory in use. Of the allocated memory {allocated} GiB is "
        f"allocated by PyTorch, and {loose} is reserved by PyTorch but unallocated.\n"
    )


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
    assert not [kind.name for kind in KINDS for literal in kind.literals if literal in f"{USUAL}{GOOD}"]
    lines = {kind.name for kind in KINDS} | set(names)
    assert {name for rule in triage.RULES for name in rule.of} <= lines


USUAL = "INFO 2026-11-26 rollout 7 finished in 3.1 s, no worker left on a node of the cluster: step 12 "
HEALTHY, LOST, EXPLODED = "healthy-normal", "overwritten-or-lost-gradient", "gradient-explosion"
PROBABILITY = "RuntimeError: probability tensor contains either `inf`, `nan` or element < 0\n"
TIMEOUT = "[Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=4, OpType=BROADCAST, Timeout(ms)=9)\n"
OVERFLOW = "[INFO] [deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: {}, reducing to {}\n"
UNKNOWN = "ValueError: the frobnicator of dtype bfloat16 does not fit\n"
TIED = {"reward_std": 0.0, "frac_reward_zero_std": 1.0}
BY_HEART = [{"loss": 6 / 2**at, "learning_rate": 2e-5, "epoch": 4 * at} for at in range(1, 5)]  # ChatGLM-Tuning#89

MADE = {
    # the zero-loss table
    "a loss of 0": (good_but(loss=0.0), [HEALTHY]),
    "a negative loss": (good_but(loss=-0.3), [HEALTHY]),
    "loss, norm and KL of 0": (good_but(loss=0.0, grad_norm=0.0, kl=0.0), [LOST]),
    "tied groups, a norm of 0": (good_but(loss=0.0, grad_norm=0.0, **TIED), ["tied-rewards"]),
    "tied groups, a norm: with beta > 0 it clears nothing": (good_but(loss=0.0, **TIED), ["tied-rewards"]),
    "a norm of NaN": (good_but(loss=0.0, grad_norm=nan), [EXPLODED]),
    "a finite norm: only a logged mean is NaN": (good_but(loss=nan), ["padding-or-mask"]),
    "loss and norm of NaN": (good_but(loss=nan, grad_norm=nan), [EXPLODED]),
    "a reward of NaN": (good_but(reward=nan, loss=nan, grad_norm=nan), ["reward-function-failure"]),
    "beta 0: no KL is logged": (good_but(12, kl=nan), ["beta-zero-expected"]),
    # a policy that stands still
    "a tiny rate": (still(learning_rate=1e-10), ["learning-rate"]),
    "a tiny rate and a tiny KL": (still(learning_rate=1e-8, kl=3e-9), ["learning-rate"]),
    "a usual rate and no KL": (still(learning_rate=5e-5), [LOST]),
    "a usual rate and a KL": (still(learning_rate=5e-5, kl=0.02), [HEALTHY]),
    "learned by heart": (log(*BY_HEART), []),
    "four rows are too few for health": (log(*({**row, "epoch": row["epoch"] / 8} for row in BY_HEART)), []),
    # the order of events, and consequences
    "a spike": (norms(0.5, 0.6, 0.4, 0.7, 4e6, 0.5), [EXPLODED]),
    "a busy run": (norms(0.5, 9.8, 0.4, 7.0, 12.0, 0.5, 3.1, 0.6, 5.5, 0.4, 8.0, 0.7), [HEALTHY]),
    "a run of large norms": (norms(*[18.5, 25.9, 42.1, 33.0, 19.0] * 3), [HEALTHY]),
    "the KL comes first": (good_but(4, kl=[0.01, 0.01, 4e5, 4e5], grad_norm=[0.4, 0.4, 0.4, 1e8]), ["kl-blowup"]),
    "the norm comes first": (
        good_but(5, grad_norm=[0.4, 0.4, 0.4, 1e8, 0.4], kl=[0.01] * 4 + [4e5], reward=[0.5] * 4 + [0.0]),
        [EXPLODED],
    ),
    "an assert after an explosion": (norms(0.5, 0.6, 0.4, 4e6) + PROBABILITY, [EXPLODED]),
    "an assert alone": (PROBABILITY, [EXPLODED, "reward-function-failure", "temperature-or-sampling"]),
    "a timeout alone": (TIMEOUT, ["launcher-or-distributed"]),
    # other lines
    "a scaler that skips now and then": (OVERFLOW.format(8192, 4096) * 3, [HEALTHY]),
    "a scaler at its floor": (OVERFLOW.format(2, 1) * 3, [EXPLODED]),
    "stairs of memory": (good_but(8, memory_allocated=[1e9 + at * 2e8 for at in range(8)]), ["references-kept"]),
    "a level of memory": (good_but(12, memory_allocated=[1e9 + at % 2 * 1e7 for at in range(12)]), [HEALTHY]),
    "the same, and the run goes on": (UNKNOWN + good_but(), [HEALTHY]),
    "an index, settled by its text": ("IndexError: index out of range in self\n", ["index-assert-token-id"]),
    "a notice": (
        "`use_cache=True` is incompatible with gradient checkpointing. Setting `use_cache=False`.\n",
        [HEALTHY],
    ),
}


@pytest.mark.parametrize("name", MADE)
def test_a_made_log_is_taken_for(name):
    text, expected = MADE[name]
    assert causes(text) == expected


@pytest.mark.parametrize(
    ("in_use", "allocated", "loose", "cause"),
    [
        ("Including non-PyTorch memory, this process has 79.00", "77.50", "93.52 MiB", "too-big-batch"),
        ("this process has 48.60 GiB memory in use. Process 7 has 30.00", "47.50", "93.52 MiB", "other-owner-memory"),
        ("this process has 78.60", "60.00", "18.50 GiB", "fragmentation"),
    ],
)
def test_an_out_of_memory_message_is_read_with_all_its_numbers_and_hides_what_other_ranks_say(
    in_use, allocated, loose, cause
):
    findings = triage.diagnose(out_of_memory(in_use, allocated, loose) + TIMEOUT).findings
    assert findings[0].cause == cause and "collective" not in {finding.rule for finding in findings}


def test_settings_tell_apart_what_the_log_does_not():
    assert causes(PROBABILITY, {"temperature": 0.0})[0] == "temperature-or-sampling"
    assert causes(PROBABILITY, {"torch_dtype": "torch.float16"})[0] == "dtype-mismatch"
    assert causes(PROBABILITY, {"torch_dtype": "torch.bfloat16"})[0] == EXPLODED
    rounding, *_ = triage.diagnose(still(learning_rate=1e-6), {"dtype": "bfloat16"}).findings
    assert rounding.cause == LOST and "bfloat16" in rounding.why
    assert causes(still(learning_rate=1e-6), {"beta": 0}) != [LOST]  # no KL is computed then


@pytest.mark.parametrize(
    ("column", "values", "cause"),
    [
        ("entropy", [1.2, 1.1, 0.9, 0.3, 0.1, 0.02, 0.01, 0.004, 0.002], "entropy-collapse"),
        ("entropy", [0.5, 0.6, 0.7, 1.0, 1.5, 2.0, 2.8, 3.0, 3.1], "entropy-explosion"),
        ("clip_ratio", [0.6] * 9, "sync-or-logprob-mismatch"),
        ("objective/kl", [-3.0] * 9, "temperature-or-sampling"),
        ("completions/mean_length", [300, 280, 250, 100, 50, 20, 8, 5, 4], "learning-rate"),
    ],
)
def test_a_silent_collapse_is_a_finding_unless_the_reward_rises(column, values, cause):
    assert causes(good_but(9, **{column: values})) == [cause]
    if column == "entropy":  # a policy that learns may narrow, and no health is said of so few rows
        assert causes(good_but(9, **{column: values}, reward=[0.1 + 0.08 * at for at in range(9)])) == []


# -- what is said


def test_what_was_not_logged_is_said_and_never_read_as_zero():
    diagnosis = triage.diagnose(log({"loss": 0.0, "grad_norm": 0.2}))
    assert {"kl", "reward_std", "reward"} <= set(diagnosis.missing)
    assert "not logged" in str(diagnosis) and "1 line, 1 row of measurements" in str(diagnosis)
    assert diagnosis.kind == "nothing found" and any("loss" in words for words in diagnosis.columns)


def test_a_kl_term_of_beta_5_that_leads_the_gradient_is_not_called_healthy():
    """Figures of a run of TRL's GRPOTrainer on an H200: beta 5, rate 1e-3."""
    kl = [0, 0.034, 0.214, 0.783, 0.31, 0.819, 0.049, 0.571, 0.856, 1.375, 0.54, 0.702, 0.272, 0.557, 0.644, 0.489]
    norms = [3.9, 30.6, 75.1, 190, 82.6, 152, 4.1, 108, 124, 159, 209, 92.8, 22.7, 75.3, 127, 111]
    rows = [
        {"loss": 5 * far, "grad_norm": norm, "kl": far, "reward": 0.3 + 0.02 * (at % 5), "frac_reward_zero_std": 0.25}
        for at, (far, norm) in enumerate(zip(kl, norms, strict=True))
    ]
    assert HEALTHY not in causes(log(*rows))


def test_rows_without_evidence_of_health_are_not_called_healthy_and_nothing_is_to_be_done_of_beta_zero():
    rows = [{"loss": 0.01 * at, "grad_norm": 3.4, "reward": 0.5 + 0.01 * (-1) ** at} for at in range(24)]
    diagnosis = triage.diagnose(log(*rows))
    assert diagnosis.kind == "nothing found" and not diagnosis.findings
    assert "not the same as healthy" in str(diagnosis) and "a policy that stands still" in diagnosis.looked_for
    assert {"kl", "entropy"} <= set(diagnosis.missing)
    assert causes(log(*({**row, "reward": 0.2 + 0.02 * at} for at, row in enumerate(rows)))) == [HEALTHY]
    assert triage.diagnose("an ordinary sentence\n").kind == "nothing found"
    assert not triage.diagnose(MADE["beta 0: no KL is logged"][0])


@pytest.mark.parametrize("text", ["RuntimeError: CUDA error: invalid argument\n", norms(0.5, 0.6, 0.4, 4e6)])
def test_what_settles_nothing_names_what_else_can_show_it_as_lookalikes_with_a_test(text):
    first, *others = triage.diagnose(text).findings
    assert first.kind == "finding" and [other.cause for other in others] == list(first.lookalikes)[:2]
    assert all(other.kind == "lookalike" and "the test:" in other.why for other in others)


@pytest.mark.parametrize("text", ["IndexError: index out of range in self\n", good_but()])
def test_what_is_settled_or_healthy_has_no_lookalikes(text):
    assert len(triage.diagnose(text).findings) == 1


def test_a_finding_says_what_to_do_and_what_it_is_mistaken_for():
    diagnosis = triage.diagnose(norms(0.5, 0.6, 0.4, 4e6))
    finding = diagnosis.findings[0]
    assert finding.lesson == "01" and "step 4: grad_norm 4e6" in finding.evidence[0]
    assert "kl-blowup" in finding.lookalikes and finding.next
    text = str(diagnosis)
    assert max(map(len, text.splitlines())) <= 120
    for words in (
        "1. gradient-explosion (likely, lesson 01)",
        "2. learning-rate (a lookalike, lesson 01)",
        "not kl-blowup?",
        "now:",
        "from:",
    ):
        assert words in text
    as_json, *_ = json.loads(diagnosis.to_json())["findings"]
    assert (as_json["kind"], as_json["cause"], as_json["lesson"]) == ("finding", EXPLODED, "01")
    assert as_json["evidence"] == list(finding.evidence)


def test_of_several_files_the_one_that_convicts_is_named(tmp_path):
    good, bad = tmp_path / "rank0.log", tmp_path / "rank1.log"
    good.write_text(good_but())
    bad.write_text("IndexError: index out of range in self\n")
    both = triage.diagnose([str(good), str(bad)])
    assert both.findings[0].cause == "index-assert-token-id"
    assert both.findings[0].files == (str(bad),) and f"in: {bad}" in str(both)
    assert triage.diagnose(bad).findings[0].files == ()


# -- real cases


def test_settled_field_cases_are_found_and_healthy_ones_raise_no_alarm(script):
    field = script("triage/field_cases")
    cases = field.cases()
    # of a healthy log with fewer than ten rows nothing is said
    settled = [case for case in cases if case.settled and case.label not in field.QUIET]
    named = {case.case: field.answers(case) for case in settled}
    assert sum(named[case.case][:1] == [case.label] for case in settled) >= 0.75 * len(settled)
    assert sum(case.label in named[case.case][:3] for case in settled) >= 0.85 * len(settled)
    healthy = [case for case in cases if case.label == HEALTHY]
    assert not [case.case for case in healthy if triage.diagnose(case.text, case.settings)]
    broken = [case.case for case in settled if case.label not in field.QUIET]
    assert not [case for case in broken if named[case][:1] == [HEALTHY]]


def test_the_page_in_the_docs_is_what_the_rules_say_today(script):
    field = script("triage/field_cases")
    assert (ROOT / "docs" / "field-cases.md").read_text(encoding="utf-8") == field.page(field.cases())


# What the ninth set taught


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([{"kl": 2.2}, {"kl": 2.4}], []),  # nats per token
        ([{"loss": 812.0}, {"loss": 901.0}], []),
        ([{"grad_norm": 2100.5}, {"grad_norm": 3000.5}], []),
        ([{"reward": 0.5}, {"reward": 0.3}, {"reward": 0.1}], []),
        ([{"reward": 0.5}, {"reward": 0.3}, {"reward": 0.4}], []),
        ([{"grad_norm": 0.0}, {"grad_norm": 1784.5}], ["gradient-explosion"]),  # HALOs#37
        ([{"kl_max": 6552.0}], ["kl-blowup"]),  # torchforge#606
        ([{"kl_max": 2.5}], []),
    ],
)
def test_few_rows_that_say_otherwise_are_not_called_healthy(rows, expected):
    plain = {"loss": 0.01, "grad_norm": 0.4, "kl": 0.01, "reward": 0.5}
    assert causes(log(*({**plain, **row} for row in rows))) == expected


def test_a_trainer_that_tells_of_nan_is_not_healthy_whatever_its_rows_say():
    assert causes(log("WARNING: NaN detected in advantages", GOOD, GOOD))[0] == "gradient-explosion"
    assert causes(log("NaN or Inf found in input tensor.", *[GOOD] * 12)) == [HEALTHY]  # a plot that was not drawn


FORMS = {
    "wandb": "wandb: Run summary:\nwandb:   train/kl 0.012\nwandb:  train/grad_norm 0.21\nwandb:  train/reward 0.62\n",
    "bars": "[iter 10] reward 0.31 +- 0.2 | kl 0.0021 | loss 0.0123 | gnorm 0.41 | lr 1.0e-06\n",
    "verl": "step:5 - actor/grad_norm:0.110 - actor/ppo_kl:0.000 - actor/lr:0.000 - critic/score/mean:0.3 - acc:0.1\n",
    "forge": "  grpo_loss/advantage_std: 0.97\n  grpo_loss/kl_divergence_mean: 0.002\n  grpo_loss/total_loss: 0.1\n",
}


@pytest.mark.parametrize("form", FORMS)
def test_health_is_seen_in_the_forms_of_other_trainers(form):
    # the numbers of a step, which go up a little from step to step: the form is read, the run is healthy
    def later(at):
        return re.sub(r"0\.\d+", lambda found: f"{float(found[0]) * (1 + 0.01 * at):.5f}", FORMS[form])

    steps = [later(at) for at in range(12)]
    assert len(triage.diagnose("".join(steps)).reading.rows) == 12
    assert not triage.diagnose("".join(steps))


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


# What the tenth set taught


def rows_of(count, **columns):
    """So many rows; a column is one value, or a list of them."""
    return log(*({k: v[at] if isinstance(v, list) else v for k, v in columns.items()} for at in range(count)))


SUPERVISED = {"learning_rate": 2e-5, "epoch": 0.1}
LOG_2 = {"loss": 0.6931, "learning_rate": 1e-5, "rewards/chosen": 0.0, "rewards/rejected": 0.0}
ORPO = {"loss": 0.0, "grad_norm": nan, "logps/chosen": nan, "rewards/margins": nan}
RISING = [1.8, 1.6, 1.5, 1.5, 1.4, 6.9, 9.8, 8.2, 7.9, 7.7, 7.6, 7.6]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        # a supervised loss and its gradient norm
        (rows_of(4, loss=0.0, grad_norm=0.0, **SUPERVISED), ["padding-or-mask"]),
        (rows_of(4, loss=12.1, grad_norm=0.0, **SUPERVISED), [LOST]),
        (rows_of(4, loss=[2.4, 2.1, 1.8, 1.6], grad_norm=0.0, **SUPERVISED), []),  # DeepSpeed may log a norm of 0
        (rows_of(4, loss=0.0, **SUPERVISED), [EXPLODED, "padding-or-mask"]),  # a NaN that the Trainer wrote as 0
        (rows_of(12, loss=RISING, grad_norm=1.5, **SUPERVISED), ["learning-rate"]),
        (rows_of(12, loss=[4.0 - 0.2 * at for at in range(12)], grad_norm=1.5, **SUPERVISED), [HEALTHY]),
        (rows_of(12, loss=RISING[::-1], grad_norm=1.5, **SUPERVISED), []),  # it rises, and then it jumps down
        # pairs
        (rows_of(4, **LOG_2, **{"rewards/margins": 0.0}), [LOST]),
        (rows_of(2, **LOG_2, **{"rewards/margins": 0.0}), []),  # every run begins there
        (rows_of(12, **LOG_2, **{"rewards/margins": [0.01 * at for at in range(12)]}), [HEALTHY]),
        (rows_of(3, **ORPO, **{"logits/chosen": [-3.1, nan, nan]}), ["padding-or-mask"]),
        (rows_of(3, **ORPO, **{"logits/chosen": nan}), [EXPLODED]),
        # the column of cut answers is no setting of top-p
        (
            good_but(4, **{"sampling/importance_sampling_ratio/mean": 0.5, "completions/clipped_ratio": 0.1}),
            ["sync-or-logprob-mismatch"],
        ),
        # tied at nothing: all wrong, or a grader that cannot read them
        (good_but(4, reward=0.0, grad_norm=0.01, **TIED), ["tied-rewards", "reward-function-failure"]),
        # a trainer that logs no reward
        (rows_of(12, loss=0.01, ppo_kl=1e-4, pg_loss=0.01, grad_norm=0.3, entropy=0.3), [HEALTHY]),
    ],
)
def test_what_a_row_means_depends_on_what_is_trained(text, expected):
    assert causes(text)[: max(len(expected), 1)] == expected


FULL = out_of_memory("Including non-PyTorch memory, this process has 79.00", "77.50", "93.52 MiB")
SAVER = {"framework": "Megatron with torch_memory_saver"}


@pytest.mark.parametrize(
    ("text", "settings", "cause"),
    [
        (FULL, {}, "too-big-batch"),
        (FULL + "RuntimeError: Engine core initialization failed. See root cause above.\n", {}, "allocator-setting"),
        ("torch.AcceleratorError: CUDA error: invalid argument\n", {}, "other"),
        ("torch.AcceleratorError: CUDA error: invalid argument\n", SAVER, "allocator-setting"),
        (OVERFLOW.format(1, 1) * 2 + "act_loss: nan, cri_loss: nan\naverage reward score: nan\n", {}, EXPLODED),
        (
            "AttributeError: 'DistributedDataParallel' object has no attribute 'generate'\n",
            {},
            "launcher-or-distributed",
        ),
        ("AttributeError: 'GRPOConfig' object has no attribute 'beta_2'\n", {}, "stale-code-or-name"),
        ("TypeError: __call__() missing 1 required positional argument: 'solution'\n", {}, "reward-function-failure"),
        ("ValueError: max_tokens must be at least 1, got -7.\n", {}, "other"),
        ("HfHubHTTPError: 429 Client Error: Too Many Requests for url: https://huggingface.co/api\n", {}, "other"),
        ("HTTPError: 429 Client Error: Too Many Requests for url: http://judge:80/score\n", {}, "judge-timeout"),
        ("ValueError: num_gen_batches=9 >= max. Generated too many. Please check your data.\n", {}, "tied-rewards"),
        ("AssertionError: loss mask length 100 != response length 101\n", {}, "padding-or-mask"),
        # lines of the thirteenth to the seventeenth set
        (
            "TypeError: GRPOTrainer._get_train_sampler() takes 1 positional argument but 2 were given",
            {},
            "stale-code-or-name",
        ),
        ("TypeError: length_reward() takes 1 positional argument but 2 were given", {}, "reward-function-failure"),
        ("RuntimeError: mat1 and mat2 shapes cannot be multiplied (8x4096 and 1x8388608)", {}, "stale-code-or-name"),
        ("RuntimeError: \"uniform\" not implemented for 'Byte'", {}, "dtype-mismatch"),
        ("RuntimeError: batch size must be positive", {}, "padding-or-mask"),
        (
            "CUDA Error: out of memory at cumem_allocator.cpp:163",
            {"conf": "expandable_segments:True"},
            "allocator-setting",
        ),
        ("[torch_memory_saver.cpp] CUresult error: 2 (out of memory) func=cu_mem_create", {}, "other-owner-memory"),
        ("Most labels in your dataset are -100", {}, "padding-or-mask"),
        ("lr=[0.0] mean=-0.000124\n" * 4, {}, "learning-rate"),
    ],
)
def test_what_stands_around_a_message_decides(text, settings, cause):
    assert causes(text, settings)[0] == cause


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("AttributeError: 'A' object has no attribute 'b'", ["stale-code-or-name", "launcher-or-distributed", "other"]),
        (
            "AttributeError: 'NoneType' object has no attribute 'b'",
            ["stale-code-or-name", "other", "reward-function-failure"],
        ),
        (
            "AttributeError: 'OSError' object has no attribute 'choices'",
            ["other", "judge-timeout", "stale-code-or-name"],
        ),
        ("ImportError: cannot import name 'a' from 'b'", ["stale-code-or-name"]),  # that is settled
    ],
)
def test_a_missing_attribute_is_likely_and_names_what_else_it_can_be(line, expected):
    assert [finding.cause for finding in triage.diagnose(line + "\n").findings] == expected


@pytest.mark.parametrize(
    "line",
    [
        "wandb: Network error (ReadTimeout), entering retry loop.",
        "ERROR 01-01 00:00:00 [fa_utils.py:57] Cannot use FA version 2 is not supported due to FA2 needs compute 8",
        "Some weights were not initialized and are newly initialized: ['score.weight']",
        "[INFO] [deepspeed] Overflow detected. Skipping step. Attempted loss scale: 65536, reducing to 32768",
        "WARNING: judge retry: '429 Too Many Requests'",
        "[W] Warning: expandable_segments not supported on this platform (function operator())",
        "INFO: Sleep mode is not enabled",
    ],
)
def test_a_notice_is_no_alarm_where_the_run_goes_on(line):
    assert causes(good_but(12) + line + "\n" + good_but(12)) == [HEALTHY]


def test_a_socket_that_waits_is_no_finding_where_the_run_goes_on():
    waits = "[W socket.cpp:663] [c10d] The client socket has failed to connect to [localhost]:29500 (errno: 111).\n"
    assert causes(waits)[0] == "launcher-or-distributed"
    assert causes(waits + good_but(12)) == [HEALTHY]


DOWN = [0.6, 0.58, 0.57, 0.55, 0.53, 0.52, 0.5, 0.47, 0.45, 0.43, 0.4, 0.38]


@pytest.mark.parametrize(
    ("more", "behind", "expected"),
    [
        ({}, "", [HEALTHY]),
        ({}, "Segmentation fault (core dumped)", ["other"]),
        ({}, "Terminated", []),
        (
            {},
            "slurmstepd: error: *** JOB 12 ON node1 CANCELLED AT 2025-01-01T00:00:00 DUE TO TIME LIMIT ***",
            ["other"],
        ),
        ({}, "slurmstepd: error: Detected 1 oom_kill event in StepId=12.0.", ["other"]),
        ({"reward": DOWN}, "", []),  # by a third, and never back
        ({"reward": DOWN[::-1]}, "", [HEALTHY]),
        ({"reward": 0.3, "grad_norm": [0.3 * 1.6**at for at in range(12)]}, "", [EXPLODED]),
        ({"reward": 0.3, "kl": [0.08 * at for at in range(12)]}, "", ["kl-blowup"]),
    ],
)
def test_a_run_that_ends_or_turns_is_not_called_healthy(more, behind, expected):
    assert causes(good_but(12, **more) + behind + "\n")[:1] == expected


def test_pairs_that_stay_where_they_began_are_not_called_healthy():
    still = {"loss": 0.6931, "grad_norm": 1.1, "learning_rate": 5e-7, "rewards/chosen": 0.001}
    assert causes(rows_of(12, **still, **{"rewards/margins": [0.001, -0.0012] * 6})) == []
    assert causes(rows_of(12, **still, **{"rewards/margins": [0.01 * at for at in range(12)]})) == [HEALTHY]


# What the eleventh set taught


def refused(asked, free, own, allocated, loose, other=""):
    """An out-of-memory message on a card of 80 GiB, behind Ray's wrapper."""
    return (
        "ray.exceptions.RayTaskError(OutOfMemoryError): ray::WorkerDict.update_actor() (pid=1000, ip=10.0.0.1)\n"
        f"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {asked} GiB. GPU 0 has a total capacity of "
        f"80.00 GiB of which {free} GiB is free. {other}Including non-PyTorch memory, this process has {own} GiB "
        f"memory in use. Of the allocated memory {allocated} GiB is allocated by PyTorch, and {loose} GiB is reserved "
        "by PyTorch but unallocated.\n"
    )


OTHER = "Process 7 has {} GiB memory in use. "


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (refused("2.00", "0.20", "79.70", "77.00", "0.50"), "too-big-batch"),
        (refused("0.50", "0.20", "73.00", "43.00", "26.00", OTHER.format(6.8)), "fragmentation"),
        (refused("0.50", "0.20", "16.00", "14.00", "1.00", OTHER.format(63)), "other-owner-memory"),
        (refused("0.20", "66.00", "10.00", "8.00", "1.00"), "allocator-setting"),
        # of others, and of libraries in this process itself
        (refused("2.00", "1.00", "78.90", "50.00", "0.20"), "other-owner-memory"),
    ],
)
def test_an_out_of_memory_message_is_read_by_what_this_process_itself_holds(text, expected):
    assert causes(text)[0] == expected


SHAPES = "    assert param_data.shape == loaded_weight.shape\nAssertionError\n"
LATE, RAISED = "Timeout during comparison\n", "Error calling reward function check: list index out of range\n"
MOSTLY = {"frac_reward_zero_std": [1.0, 1.0, 1.0, 0.8], "reward_std": [0.0, 0.0, 0.0, 0.2]}


@pytest.mark.parametrize(
    ("text", "settings", "expected"),
    [
        (SHAPES, {"framework": "vLLM"}, "other"),
        ('  File "trl/grpo_trainer.py", line 9, in _move_model_to_vllm\n' + SHAPES, {}, "sync-or-logprob-mismatch"),
        (SHAPES, {"framework": "slime, GRPO"}, "sync-or-logprob-mismatch"),
        ("Value error, cumem allocator is not supported on current platform.\n", {}, "allocator-setting"),
        (LATE, {}, "judge-timeout"),
        (good_but() + LATE + good_but(), {}, HEALTHY),
        (RAISED, {}, "reward-function-failure"),
        ("Error calling reward function check: the request timed out\n", {}, "judge-timeout"),
        (good_but() + RAISED + good_but(), {}, HEALTHY),
        (good_but(3) + RAISED * 5 + good_but(3), {}, "reward-function-failure"),
        ("judge query failed: '400 Bad Request' for url 'http://10.0.0.1/generate'\n", {}, "reward-function-failure"),
        ("judge query failed: '503 Service Unavailable' for url 'http://10.0.0.1/generate'\n", {}, "judge-timeout"),
        ("all rewards in the group are identical, no learning signal\n", {}, "tied-rewards"),
        (good_but() + "all rewards of 3 of 64 groups are equal: dropped\n" + good_but(), {}, HEALTHY),
        ("all 8 completions are identical\n", {}, "identical-completions"),
        ("0 of 196 adapter tensors received a gradient\n", {}, LOST),
        ("the engine still serves the weights of step 0\n", {}, "sync-or-logprob-mismatch"),
        (good_but(4, **MOSTLY), {}, "tied-rewards"),
        (rows_of(5, reward=0.0, grad_norm=0.01, loss=0.001), {}, "tied-rewards"),
    ],
)
def test_late_refused_and_raised_equal_and_moved_are_told_apart(text, settings, expected):
    assert causes(text, settings)[0] == expected


def test_a_late_judge_is_a_finding_where_its_error_ends_the_rows():
    assert causes(good_but(4) + "openai.RateLimitError: Error code: 429 - Rate limit reached\n")[0] == "judge-timeout"


FELL = [15.5, 13.0, 3.8, 2.4, 1.4]
PASS = [0.97, 1.37, 1.24, 0.96, 1.04]


@pytest.mark.parametrize(
    ("losses", "expected"),
    [
        ([*FELL, 5.8, 7.0, 10.0], []),
        ([*FELL, 1.9, 1.6, 1.5], []),  # eight rows
        ([*FELL, 1.9, 1.6, 1.5, 1.45, 1.4, 1.3, 1.2], [HEALTHY]),
        ([*PASS, *PASS], []),
        ([*PASS, 1.1, 1.2, *PASS], []),  # the second pass is cut
    ],
)
def test_a_supervised_loss_that_turns_or_comes_again_is_not_healthy(losses, expected):
    passes = [at / 8 for at in range(len(losses))]
    assert causes(rows_of(len(losses), loss=losses, grad_norm=1.5, learning_rate=2e-5, epoch=passes)) == expected


def test_a_log_that_was_written_twice_is_no_pass_in_which_nothing_moved():
    once = rows_of(5, loss=PASS, grad_norm=1.5, learning_rate=2e-5, epoch=[0.1, 0.2, 0.3, 0.4, 0.5])
    assert LOST not in causes(once + once)


def test_a_loss_that_is_exactly_zero_from_one_row_to_the_next_is_a_nan_that_was_replaced():
    assert causes(rows_of(4, loss=[1.06, 1.15, 1.19, 0.0], **SUPERVISED)) == [EXPLODED]
    assert causes(rows_of(4, loss=[1.06, 1.15, 1.19, 1.1], **SUPERVISED)) != [EXPLODED]


def test_one_step_that_the_scaler_skipped_is_no_fault_of_a_loss_that_stands():
    norms, flat = [0.3] * 7 + [inf] + [0.2] * 7, [0.1 + 0.001 * (at * at % 17) for at in range(15)]
    assert causes(rows_of(15, loss=flat, grad_norm=norms, **SUPERVISED)) == []
    assert causes(rows_of(15, loss=flat, grad_norm=0.3, **SUPERVISED)) == []


def test_a_ratio_that_begins_at_one_is_healthy_and_one_that_does_not_is_none():
    ratios = "".join(f"epoch=0, i={at}, ratio={{}}\n" for at in range(9))
    assert causes(ratios.format(*(1 + 0.005 * at for at in range(9)))) == [HEALTHY]
    assert causes(ratios.format(*(1.4 + 0.05 * at for at in range(9)))) == []


def test_a_case_whose_log_is_no_list_of_parts_is_refused(script, tmp_path, monkeypatch):
    field = script("triage/field_cases")
    row = {"case": "1", "source": "a/b#1", "set": "first", "label": HEALTHY, "settled": True, "settings": {}}
    (tmp_path / "cases.jsonl").write_text(json.dumps({**row, "log": {"dict": [{"loss": 1.0}]}}), encoding="utf-8")
    monkeypatch.setattr(field, "CASES", tmp_path / "cases.jsonl")
    with pytest.raises(TypeError, match="list of its parts"):
        field.cases()


ARMS = "| {} | step | loss | grad_norm |\n|---|---|---|---|\n" + "".join(
    f"| {arm} | {at} | {loss} | 0.8 |\n" for arm in ("plain", "fused") for at, loss in enumerate((9.5, 9.1, 8.8), 1)
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        # what must not be called healthy
        (good_but(5, grad_norm=[0.3, 63.0, 156.0, 290.0, 372.0]), [EXPLODED]),
        (rows_of(6, loss=[0.66, 0.8, 0.77, 0.55, 0.82, 6.66], learning_rate=2e-4), ["learning-rate"]),
        (rows_of(5, loss=[0.66, 0.8, 0.77, 0.55, 6.66], learning_rate=2e-4), []),
        (rows_of(6, loss=[0.66, 0.8, 0.77, 0.55, 0.82, 0.66], learning_rate=2e-4), []),  # it does not fall
        (rows_of(6, loss=[0.86, 0.8, 0.77, 0.55, 0.62, 0.6], learning_rate=2e-4), []),  # six rows
        (rows_of(4, loss=[0.9, 0.8, 0.7, 0.6], grad_norm=36.2, learning_rate=0.0), []),  # a rate of 0
        (rows_of(6, loss=[22.6, 16.8, 16.2, 15.9, 16.5, 15.3], grad_norm=178.0, learning_rate=4e-5), []),
        (rows_of(4, loss=[2.1, 2.6, 4.1, 11.0], learning_rate=2e-4), ["learning-rate"]),
        (rows_of(8, loss=[5.9, 6.1, 5.92, 5.82, 5.9, 5.94, 5.95, 5.96], learning_rate=9e-8), ["learning-rate"]),
        (rows_of(6, loss=[1.86, 3.2, 3.99, 4.17, 4.29, 4.19], learning_rate=2e-4), ["learning-rate"]),
        (ARMS.format("run"), []),
        (ARMS.format("rank"), []),  # the loss of two ranks in turn does not fall
        # an RL run without a gradient that logs no reward; a supervised one
        (rows_of(2, loss=0.0, grad_norm=0.0, entropy=0.36, mismatch_kl=7e-4), ["tied-rewards"]),
        (rows_of(2, loss=29.1, grad_norm=0.0), [LOST]),
        # scaled rewards sum to 0; only exact advantages of 0 say that there was nothing to scale
        (rows_of(4, **{"rollout/rewards": 0.0, "rollout/advantages": -2.8e-9, "rollout/raw_reward": 0.4}), []),
        (
            rows_of(4, **{"rollout/rewards": 0.0, "rollout/advantages": 0.0, "rollout/raw_reward": 0.4}),
            ["tied-rewards"],
        ),
        (rows_of(3, rollout_actor_probs_pearson_corr=0.13), ["sync-or-logprob-mismatch"]),
        (rows_of(9, reward=0.5, grad_norm=[4.6, 16.0, 51.0, 124.0, 207.0, 473.0, 378.0, 480.0, 272.0]), [EXPLODED]),
    ],
)
def test_what_rows_of_the_last_sets_meant(text, expected):
    assert causes(text) == expected


def test_buffers_that_are_computed_are_no_missing_weights():
    line = (
        "Some weights of LlamaForCausalLM were not initialized from the model checkpoint at tiny and are newly "
        "initialized: ['{}']\nYou should probably TRAIN this model on a down-stream task.\n"
    )
    assert causes(line.format("layers.0.rotary_emb.inv_freq', 'layers.1.rotary_emb.inv_freq")) == [HEALTHY]
    assert causes(line.format("layers.0.q_proj.weight"))[0] == "stale-code-or-name"


def test_a_traceback_that_was_cut_off_still_resembles_something():
    cut = '  File "trl/scripts/vllm_serve.py", line 147, in update_named_param\n    engine.load_weights(weights)\n'
    assert causes(cut)[0] == "sync-or-logprob-mismatch"


@pytest.mark.parametrize(
    ("name", "worst"), [("loss", "nan"), ("truncated", 1.0), ("frac_reward_zero_std", 0.9), ("logp_difference", 0.3)]
)
def test_a_real_healthy_log_that_is_broken_by_hand_is_not_called_healthy(script, name, worst):
    asked = 0
    for case in script("triage/field_cases").cases():
        if case.label != HEALTHY or len(case.log) > 1 or isinstance(case.log[0], str):
            continue
        if not any(canonical(key) == name for rows in case.log[0].values() for row in rows for key in row):
            continue
        broken = {
            form: [{key: worst if canonical(key) == name else value for key, value in row.items()} for row in rows]
            for form, rows in case.log[0].items()
        }
        asked += 1
        assert causes(dataclasses.replace(case, log=[broken]).text)[:1] != [HEALTHY], case.case
    assert asked > 1
