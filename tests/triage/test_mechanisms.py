"""What signs add up to, families of errors, and the forms in which people write a course down."""

import random

import pytest

from labkit import triage
from labkit.triage.names import better, canonical, held_out
from labkit.triage.reading import read
from labkit.triage.signs import SIGNS
from labkit.triage.table import APART, CAUSES, CONTEXT, FAMILIES, KINDS, MECHANISMS


def rows(text):
    return [row.values for row in read(text, KINDS, CONTEXT)[0].rows]


def first(text, settings=None):
    findings = triage.diagnose(text, settings).findings
    return findings[0] if findings else None


def test_the_tables_speak_of_signs_causes_and_tests_that_are_there():
    used = set()
    for rule in MECHANISMS:
        weighed = rule.mechanism
        named = {*weighed.needs, *weighed.weights, *weighed.against}
        used |= named
        assert named <= set(SIGNS), rule.name
        assert rule.cause in CAUSES and all(frozenset((rule.cause, other)) in APART for other in rule.likes), rule.name
        assert min(weighed.weights.values()) > 0 > max(weighed.against.values(), default=-1.0), rule.name
        # it can be said at all, and never by one of the signs that hardly speak for it
        assert sum(weighed.weights.values()) >= weighed.least, rule.name
    assert used == set(SIGNS)
    assert len({rule.name for rule in FAMILIES}) == len(FAMILIES) >= 80
    for rule in FAMILIES:
        assert rule.cause in CAUSES and rule.why and rule.next and rule.source, rule.name


# ---- courses: by chance in everything, but for one thing that goes wrong


def course(seed, count=12, **changed):
    """Rows of a run that learns a little, with noise; `changed` columns go from one level to another."""
    dice = random.Random(seed)
    usual = {
        "reward": (0.4, 0.6),
        "entropy": (0.7, 0.55),
        "kl": (0.002, 0.02),
        "grad_norm": (0.6, 0.5),
        "mean_length": (300.0, 320.0),
        "truncated": (0.03, 0.03),
        "frac_reward_zero_std": (0.2, 0.22),
    }
    made = []
    for at in range(count):
        row = {"step": 10 * at}
        for name, (start, end) in (usual | changed).items():
            level = start + (end - start) * at / (count - 1)
            row[name] = level * (1 + dice.gauss(0, 0.06))
        made.append(row)
    return made


VERL = {
    "step": "step",
    "reward": "critic/rewards/mean",
    "entropy": "actor/entropy",
    "kl": "actor/kl_loss",
    "grad_norm": "actor/grad_norm",
    "mean_length": "response_length/mean",
    "truncated": "response_length/clip_ratio",
    "frac_reward_zero_std": "zero-variance groups",
}
OWN = {
    "step": "Step",
    "reward": "Mean Reward",
    "entropy": "Token Entropy",
    "kl": "KL div",
    "grad_norm": "Grad Norm",
    "mean_length": "Resp Len",
    "truncated": "cut rate",
    "frac_reward_zero_std": "% tied groups",
}


def table(made, names):
    lines = ["| " + " | ".join(names.values()) + " |", "|" + "---|" * len(names)]
    for row in made:
        lines.append("| " + " | ".join(f"{row[name]:.4g}" for name in names) + " |")
    return "\n".join(lines) + "\n"


def turned(made, names):
    lines = ["| metric | " + " | ".join(f"step {row['step']}" for row in made) + " |", "|" + "---|" * (len(made) + 1)]
    for name, said in names.items():
        if name != "step":
            lines.append(f"| {said} | " + " | ".join(f"{row[name]:.4g}" for row in made) + " |")
    return "\n".join(lines) + "\n"


def dicts(made, names):
    return "".join(f"{ {said: row[name] for name, said in names.items()} }\n" for row in made)


WRONG = {
    "noise": ({"reward": (0.5, 0.2), "entropy": (0.6, 3.0)}, {"entropy-explosion", "learning-rate"}),
    "narrow": ({"reward": (0.4, 0.4), "entropy": (0.8, 0.08)}, {"entropy-collapse"}),
    "cut": ({"reward": (0.2, 0.2), "truncated": (0.9, 0.92)}, {"truncation"}),
    "long": ({"reward": (0.5, 0.3), "mean_length": (300.0, 1400.0), "truncated": (0.05, 0.9)}, {"length-runaway"}),
    "tied": ({"reward": (0.03, 0.03), "frac_reward_zero_std": (0.8, 0.85)}, {"tied-rewards"}),
    "away": ({"reward": (0.5, 0.45), "kl": (0.01, 2.5)}, {"kl-blowup"}),
    "still": ({"reward": (0.4, 0.4), "kl": (0.0003, 0.0005)}, {"learning-rate"}),
}


@pytest.mark.parametrize("form", [table, turned, dicts])
@pytest.mark.parametrize("names", [VERL, OWN], ids=["verl", "own"])
@pytest.mark.parametrize("kind", WRONG)
def test_what_goes_wrong_is_named_first_whatever_the_columns_are_called(kind, names, form):
    changed, causes = WRONG[kind]
    named = [first(form(course(seed, **changed), names)) for seed in range(6)]
    right = [one for one in named if one is not None and one.cause in causes]
    assert len(right) >= 5, [one and (one.cause, one.rule) for one in named]
    assert not any(one is not None and one.cause == "healthy-normal" for one in named)


@pytest.mark.parametrize("names", [VERL, OWN], ids=["verl", "own"])
def test_a_run_that_learns_a_little_in_noise_raises_no_alarm(names):
    for seed in range(30):
        for count in (4, 6, 12, 25):
            assert not triage.diagnose(table(course(seed, count), names)), (seed, count)


def test_the_next_best_mechanism_goes_with_the_answer_and_a_test_tells_the_two_apart():
    text = table(course(0, reward=(0.5, 0.45), kl=(0.01, 2.5)), VERL)
    best = triage.diagnose(text).findings[0]
    assert best.confidence == "possible" and best.lookalikes
    assert all(APART[frozenset((best.cause, other))] == test for other, test in best.lookalikes.items())


def test_a_reward_that_falls_by_less_than_the_scatter_of_a_small_batch_is_not_said_to_fall():
    rewards = [0.66, 0.6, 0.6, 0.5, 0.5, 0.45]
    small = [{"step": at, "reward": value, "reward_std": 0.45} for at, value in enumerate(rewards)]
    large = [{**row, "reward_std": 0.06} for row in small]
    assert not triage.diagnose(dicts(small, {name: name for name in small[0]}))
    assert first(dicts(large, {name: name for name in large[0]})).cause == "learning-rate"


def test_a_single_high_reward_among_many_rows_is_no_level_that_was_lost():
    rewards = [0.38, 0.64, 0.41, 0.41, 0.29, 0.32, 0.32, 0.37, 0.37, 0.31, 0.31, 0.58, 0.4, 0.31, 0.34, 0.57]
    text = "".join(f"step={25 * at} reward={value} loss=0.0001\n" for at, value in enumerate(rewards))
    assert not triage.diagnose(text)


def test_tools_that_are_given_up_while_the_reward_rises_are_a_reward_that_does_not_pay_for_them():
    head = "| step | reward mean | tool-call rate |\n|---|---|---|\n"
    values = [(0.7, 0.71), (0.8, 0.6), (0.95, 0.5), (1.1, 0.3), (1.28, 0.2)]
    table = "".join(f"| {20 * at} | {reward} | {calls} |\n" for at, (reward, calls) in enumerate(values))
    assert first(head + table).cause == "reward-hacking"
    kept = "".join(f"| {20 * at} | {reward} | {calls + at / 9:.2f} |\n" for at, (reward, calls) in enumerate(values))
    assert not triage.diagnose(head + kept)


def test_a_weight_of_the_kl_at_its_ceiling_comes_before_the_score_that_falls_by_it():
    head = "| Step | KL | \u03b2 | Eval acc |\n|---|---|---|---|\n"
    rows_of = [(0.001, 1, 0.65), (0.03, 3, 0.74), (0.07, 11, 0.8), (0.05, 50, 0.75), (0.01, 50, 0.7), (0.01, 50, 0.55)]
    table = "".join(f"| {30 * at} | {kl} | {beta} | {score} |\n" for at, (kl, beta, score) in enumerate(rows_of))
    assert first(head + table).cause == "kl-blowup"


def test_a_score_of_ten_tasks_falls_only_by_more_than_ten_tasks_differ_by_chance():
    head = "| step | val reward |\n|---|---|\n"
    values = (0.6, 0.7, 0.5, 0.6, 0.8, 0.7, 0.5, 0.5)
    assert not triage.diagnose(head + "".join(f"| {10 * at} | {value} |\n" for at, value in enumerate(values)))


def test_a_list_of_what_the_answers_to_one_prompt_earned_says_whether_they_are_tied():
    read = rows(
        '{"step": 1, "rewards": [1.0, 1.0], "reward": 1.0}\n{"step": 2, "rewards": [0.6, 1.0], "reward": 0.8}\n'
    )
    assert [row["frac_reward_zero_std"] for row in read] == [1.0, 0.0]


def test_a_cell_of_three_numbers_is_none_of_them():
    read = rows(
        "| step | reward | solve rate |\n|---|---|---|\n| 1 | 0.3 | 0.22 / 0.72 / 0.06 |\n| 2 | 0.4 | 0/0/1 |\n"
    )
    assert not any("success" in row for row in read)


def test_held_out_scores_that_fall_under_any_name_are_over_training():
    text = "| step | eval/minerva_math (base 28.2%) |\n|---|---|\n"
    text += "".join(f"| {20 * at} | {29 - 1.3 * at:.2f}% |\n" for at in range(1, 7))
    assert first(text).cause == "overfitting"


def test_a_critic_that_explains_nothing_and_a_chosen_answer_that_sinks_are_named():
    critic = "".join(f"step={at} reward=0.4 explained_variance={-0.5 - at / 20} value_loss=2.1\n" for at in range(8))
    assert first(critic).cause == "critic-failure"
    pairs = ""
    for at in range(8):
        pairs += (
            f"step={at} rewards/margins={at / 10} rewards/accuracies=0.8 logps/chosen={-10 - at} loss=0.{60 - at}\n"
        )
    assert first(pairs).cause == "likelihood-displacement"


# ---- families


ERRORS = {
    "KeyError: 'qwen3_next'": "stale-code-or-name",
    "ValueError: Image features and image tokens do not match: tokens: 10, features 12": "padding-or-mask",
    "AssertionError: only support equal chunk. Got size of DataProto 7 and chunk 8.": "launcher-or-distributed",
    "AttributeError: 'LLMEngine' object has no attribute 'model_executor'": "stale-code-or-name",
    "RuntimeError: No CUDA GPUs are available": "launcher-or-distributed",
    "OSError: [Errno 28] No space left on device": "other",
    "ValueError: too many values to unpack (expected 4)": "stale-code-or-name",
    "ValueError: Bfloat16 is only supported on GPUs with compute capability of at least 8.0": "dtype-mismatch",
    "ValueError: signal only works in main thread of the main interpreter": "reward-function-failure",
}


@pytest.mark.parametrize("line", ERRORS)
def test_an_error_of_a_family_is_told_where_to_look(line):
    finding = first(line + "\n")
    assert finding.cause == ERRORS[line] and finding.kind == "finding" and finding.next


def test_a_family_is_no_finding_where_the_run_goes_on():
    good = {"loss": 0.01, "grad_norm": 0.4, "kl": 0.01, "reward": 0.5, "reward_std": 0.3}
    text = "OSError: [Errno 28] No space left on device\n" + "".join(f"{good | {'step': at}}\n" for at in range(12))
    assert not triage.diagnose(text)


# ---- forms


def test_a_table_turned_over_may_lack_cells_and_have_names_of_its_own():
    text = "| metric | start | step 10 | step 120 |\n|---|---:|---:|---:|\n| train/reward | - | 0.11 | 0.06 |\n"
    text += "| well-formed call rate, parsed | 0.05 | 0.01 | 0.00 |\n| eval/true_success | 0.14 | 0.08 | 0.02 |\n"
    read_rows = rows(text)
    assert [row.get("reward") for row in read_rows] == [None, 0.11, 0.06]
    assert [row["eval/true_success"] for row in read_rows] == [0.14, 0.08, 0.02]


def test_values_at_steps_in_running_text_join_the_rows_of_a_table():
    text = "| step | reward |\n|---|---|\n| 0 | 0.3 |\n| 15 | 0.4 |\n| 30 | 0.5 |\n"
    text += "val acc: step0 0.69 step15 0.71 step30 0.62\n"
    assert rows(text) == [
        {"step": 0.0, "reward": 0.3, "val acc": 0.69},
        {"step": 15.0, "reward": 0.4, "val acc": 0.71},
        {"step": 30.0, "reward": 0.5, "val acc": 0.62},
    ]


def test_two_tables_that_measure_the_same_at_one_step_stay_as_they_are():
    once = "| step | reward |\n|---|---|\n| 0 | 0.3 |\n| 15 | 0.4 |\n"
    assert [row["reward"] for row in rows(once + "\n" + once.replace("0.3", "0.1"))] == [0.3, 0.4, 0.1, 0.4]


def test_a_list_without_brackets_is_a_column_and_a_heading_holds_settings():
    text = "# lr 3e-7, beta=0.04, KL 0.2\nreward: 0.31, 0.45, 0.40, 0.2\nentropy 0.5 / 0.4 / 0.8 / 1.2\n"
    reading = read(text, KINDS, CONTEXT)[0]
    assert [row.values for row in reading.rows][0] == {"reward": 0.31, "entropy": 0.5} and len(reading.rows) == 4
    assert reading.settings["learning_rate"] == "3e-7" and reading.settings["beta"] == "0.04"


def test_what_runs_of_one_table_share_is_said_and_their_order_is_no_course():
    lines = ["| run | reward | completions/clipped_ratio |", "|---|---|---|"]
    cut = "\n".join([*lines, "| V1 | 0.21 | 1.0 |", "| V2 | 0.2 | 1.0 |", "| V3 | 0.1 | 1.0 |"])
    assert first(cut).cause == "truncation"
    falling = "\n".join([*lines, "| a | 0.9 | 0.1 |", "| b | 0.5 | 0.1 |", "| c | 0.1 | 0.1 |", "| d | 0.0 | 0.1 |"])
    assert not triage.diagnose(falling)


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("groups with zero reward spread", "frac_reward_zero_std"),
        ("ppo_actor/no_eos_ratios/avg", "truncated"),
        ("ppo_actor/update/behave_kl", ""),
        ("eos_rate", ""),
        ("Max Reward", ""),
        ("Average window reward", "reward"),
        ("critic/vf_explained_var", "explained_variance"),
        ("rollout/truncated_ratio", "truncated"),
        ("env/all/reward/total", "reward"),
        ("policy/ppo_clip_ratio", "clip_ratio"),
        ("eval_loss", ""),
        ("clip", ""),
    ],
)
def test_names_of_trainers_are_known_and_what_only_looks_like_one_is_not(name, known):
    assert canonical(name) == known


def test_which_way_is_better_and_what_is_held_out_is_read_from_a_name():
    assert better("format_error_rate") == -1 and better("avg_pass") == 1 and better("learning_rate") == 0
    assert held_out("val-core/gsm8k/acc/mean@1") and not held_out("train/acc") and better("eval/minerva_math") == 1
