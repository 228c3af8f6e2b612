"""What a log is read as: rows in every format people paste, machine lines that wrap, files of any kind."""

import gzip
import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import labkit
from labkit import triage
from labkit.events import Outcome, Run, Step
from labkit.triage.names import canonical

ROW = {"loss": 0.5, "grad_norm": 1.25, "kl": 0.002, "reward": -1.5}


def rows(text):
    return [row.values for row in triage.diagnose(text).reading.rows]


@pytest.mark.parametrize(
    "text",
    [
        "{'loss': 0.5, 'grad_norm': 1.25, 'kl': 0.002, 'reward': -1.5}\n",
        '{"loss": 0.5, "grad_norm": 1.25, "kl": 2e-3, "reward": -1.5}\n',
        "  7%|█▏   | 11/147 [3:34<44:07, 1.07s/it]{'loss': '0.5', 'grad_norm': '1.25', 'kl': 0.002, 'reward': -1.5}\n",
        "'loss': 0.5, 'grad_norm': 1.25, 'kl': 0.002, 'reward': -1.5}\n",
        "{'loss': 0.5, 'grad_\nnorm': 1.25, 'kl': 0.0\n02, 'reward': -1.5}\n",
        "{'loss': np.float64(0.5), 'grad_norm': tensor(1.25), 'kl': 0.002, 'reward': -1.5}\n",
        '"log_history": [\n  {\n    "loss": 0.5, "grad_norm": 1.25,\n    "kl": 0.002,\n    "reward": -1.5\n  }\n]',
        "actor/loss:0.5 - actor/grad_norm:1.250 - actor/kl_loss:0.002 - critic/rewards/mean:-1.5\n",
        "(TaskRunner pid=22) actor/loss:0.5 - actor/grad_norm:1.25 - actor/kl_loss:0.002 - critic/rewards/mean:-1.5\n",
        "actor/loss: 0.5\nactor/grad_norm: 1.25\nactor/kl_loss: 0.002\ncritic/rewards/mean: -1.5\n",
        "Reward:-1.5, KL:0.002, Loss:0.5, grad_norm=1.25\n",
        "kl_divergence_mean: 0.002 loss=0.5 grad_norm=1.25 average reward: -1.5\n",
        "loss,grad_norm,kl,reward\n0.5,1.25,0.002,-1.5\n",
        "Training Loss | grad_norm | kl | reward\n-- | -- | -- | --\n0.500000 | 1.250000 | 0.002000 | -1.5\n",
        "| loss | grad_norm | kl | reward |\n| --- | --- | --- | --- |\n| 0.5 | 1.25 | 0.002 | -1.5 |\n",
        "loss  grad_norm  kl     reward\n0.5   1.25       0.002  -1.5\n",
        "loss\tgrad_norm\tkl\treward\n0.5\t1.25\t0.002\t-1.5\n",
        "   loss  grad_norm     kl  reward\n0   0.5       1.25  0.002    -1.5\n",  # pandas writes an index
        "loss: tensor(0.5, device='cuda:0'), grad norm: tensor(1.25), kl: np.float64(0.002), reward: -1.5\n",
        "00:01 SUCCESS 12s | Reward -1.5 | Loss 0.5000 | KL 0.0020 | Grad. Norm 1.2500 | MFU 12.1%\n",
        "loss 0.5, grad norm 1.25, kl 0.002, reward -1.5\n",
        "loss 0.5 grad_norm 1.25 kl 0.002 reward -1.5\n",
        "loss=0.5 grad=1.25 kl=0.002 reward=-1.5±0.2\n",
        "actor/loss: mean=0.5 min=0.1 max=0.9\nactor/grad_norm: mean=1.25 min=1 max=2\nkl: 0.002\nreward: -1.5\n",
        "train/loss/mean: 0.5, train/avg_grad_norm: 1.25, kl/avg: 0.002, reward/all/mean: -1.5\n",
        "  loss         0.5\n  grad_norm    1.25\n  kl           0.002\n  reward       -1.5\n",
        "Loss -> 0.5  Grad Norm -> 1.25  KL -> 0.002  Reward -> -1.5\n",
        "[trainer0|0]:loss: [0.5], grad_norm: [1.25, 1.3], kl: 0.002, reward: -1.5\n",
    ],
)
def test_one_row_in_many_formats(text):
    assert rows(text) == [ROW]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Epoch 1, Step 7, Loss: 0.5:   1%|    | 2/144\n", [{"loss": 0.5, "step": 7}]),
        ("iter 7: loss 0.5, time 30ms\n", [{"loss": 0.5, "step": 7}]),
        ("1|7|Loss: 0.5: 1%|| 7/100\n", [{"loss": 0.5, "step": 7}]),
        ("- step 7: reward 0.5 (std 0.2), kl 0.1\n", [{"reward": 0.5, "kl": 0.1, "step": 7}]),
        ("step 7: allocated=0.5 GB\n", [{"memory_allocated": 0.5, "step": 7}]),
        ("epoch=0, i=3, ratio=0.5\n", [{"epoch": 0, "ratio": 0.5}]),
        ("the best of all was seen at step 7, reward: 0.5 after all\n", []),  # does not begin with it
        ("model has 24 layers 16 heads 1024 hidden\n", []),
    ],
)
def test_one_measurement_is_a_row_where_the_line_begins_with_its_step(text, expected):
    assert rows(text) == expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("Policy Grad Norm", "grad_norm"),
        ("optim/pre_clip_gradient_norm", "grad_norm"),
        ("mean_kl_to_reference", "kl"),
        ("approx_kl_old_policy", "ppo_kl"),
        ("trainer/vllm_logprob_gap", "logp_difference"),
        ("Train/rollout KL", "logp_difference"),
        ("frac_groups_zero_variance", "frac_reward_zero_std"),
        ("Reward Std", "reward_std"),
        ("rollout/mean_episode_return", "reward"),
        ("avg_response_tokens", "mean_length"),
        ("responses_truncated_pct", "truncated"),
        ("policy_clipped_frac", "clip_ratio"),
        ("Rewards Chosen", "dpo_chosen"),
        ("gpu_reserved_gib", "memory_reserved"),
        # not the policy's measurement in training, or none at all
        ("critic/grad_norm", ""),
        ("reward_model/grad_norm", ""),
        ("val/loss", ""),
        ("kl_coef", "kl_coef"),
        ("target_kl", ""),
        ("grad_norm_std", ""),
        ("rewards/format_reward/std", ""),
        ("rewards/reward/mean", ""),
        ("rewards/score/std", ""),
        ("peak_gpu_memory_allocated", ""),
        ("loss 0.5", ""),
    ],
)
def test_a_measurement_is_known_by_the_words_of_its_name(name, expected):
    assert canonical(name) == expected


WRITTEN = {  # how a row may be written: its step, its names and numbers
    "k=v": lambda at, row: f"step {at}: " + " ".join(f"{k}={v}" for k, v in row),
    "k v": lambda at, row: f"[step {at}] " + " ".join(f"{k} {v}" for k, v in row),
    "a bar": lambda at, row: f" 2%|▏ | {at}/390 [01:33<1:26:53, 13.58s/it, {', '.join(f'{k}={v}' for k, v in row)}]",
    "a logger": lambda at, row: f"2025-01-01 00:00:39 - INFO - iter {at} " + ", ".join(f"{k}: {v}" for k, v in row),
    "meters": lambda at, row: f"Epoch: [1]  [{at}/2000]  eta: 0:03  " + "  ".join(f"{k}: {v} ({v})" for k, v in row),
    "a block": lambda at, row: f"===== Step {at} =====\n" + "\n".join(f"  {k:<40} {v}" for k, v in row),
    "a box": lambda at, row: f"│ step │ {at} │\n" + "\n".join(f"│ {k:<30} │ {v} │" for k, v in row),
}


@pytest.mark.parametrize("form", WRITTEN)
def test_a_real_log_gets_its_answer_in_whatever_form_its_rows_are_written(script, form):
    same = asked = 0
    for case in script("triage/field_cases").cases():
        if len(case.log) > 1 or isinstance(case.log[0], str):
            continue
        (rows,) = case.log[0].values()
        steps = [row.get("step", at) for at, row in enumerate(rows)]
        pairs = [[pair for pair in row.items() if pair[0] != "step"] for row in rows]
        text = "\n".join(map(WRITTEN[form], steps, pairs))
        first, other = ([f.cause for f in triage.diagnose(t, case.settings).findings[:1]] for t in (case.text, text))
        same += first == other
        asked += 1
    assert same > 0.85 * asked > 100


def test_a_line_of_megatron_is_a_row_and_no_header():
    line = (
        " [2025-01-01 00:00:00] iteration        7/ 1000 | consumed samples: 256 | learning rate: 1.000000E-06 | "
        "lm loss: {} | loss scale: 1.0 | grad norm: {} | number of nan iterations: 0 |\n"
    )
    first, second = rows(line.format("2.1E+00", "1.250") + line.format("nan", "nan"))
    assert first == {"step": 7, "learning_rate": 1e-6, "loss": 2.1, "grad_norm": 1.25, "nan_iterations": 0}
    assert math.isnan(second["loss"]) and math.isnan(second["grad_norm"])


def test_rows_glued_to_each_other_and_to_carriage_returns_are_apart():
    one = "{'loss': 0.5, 'step': 1}"
    assert len(rows(one + " " + one.replace("1}", "2}"))) == 2
    assert len(rows(f"0%| | 0/9\r 10%|█| 1/9\r{one}#015  20%|#015{one}")) == 2


def test_values_that_are_no_numbers_and_steps_written_as_fractions():
    text = "{'loss': nan, 'kl': -inf, 'grad_norm': '1.5', 'global_step/max_steps': '5/3766', 'elapsed': '1m 29s'}"
    (row,) = rows(text)
    assert math.isnan(row["loss"]) and row["kl"] == -math.inf and row["grad_norm"] == 1.5 and row["step"] == 5
    assert "elapsed" not in row
    assert rows("kl_divergence_mean: 1,568,987.96\n") == [{"kl": 1568987.96}]


def test_prose_and_settings_are_no_rows():
    prose = "We saw that the reward: 5 of the judges agreed, at 10:30, with kl in mind.\nratio 3:2\n"
    assert rows(prose) == []
    diagnosis = triage.diagnose(
        "{'beta': 0.0, 'num_generations': 8, 'learning_rate': 1e-6}\n{'loss': 0.1, 'reward': 1}"
    )
    assert len(diagnosis.reading.rows) == 1
    assert diagnosis.reading.settings["beta"] == "0.0"


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
def test_files_of_any_kind_are_read(tmp_path, encoding):
    path = tmp_path / "run.log"
    path.write_text("{'loss': 0.5, 'kl': 0.1}\n", encoding=encoding)  # PowerShell redirects as UTF-16
    assert len(triage.diagnose(path).reading.rows) == 1
    packed = tmp_path / "run.log.gz"
    packed.write_bytes(gzip.compress(b"{'loss': 0.5, 'kl': 0.1}\n"))
    assert len(triage.diagnose([path, str(packed)]).reading.rows) == 2


def test_empty_binary_and_missing_files(tmp_path):
    for name, content, words in (("empty", b"", "is empty"), ("binary", b"\x7fELF\0\0\1\2" * 99, "is no text")):
        path = tmp_path / name
        path.write_bytes(content)
        diagnosis = triage.diagnose(path)
        assert words in str(diagnosis) and "nothing found" in str(diagnosis) and not diagnosis
    with pytest.raises(FileNotFoundError):
        triage.diagnose(tmp_path / "nowhere")


def test_a_run_of_labkit_is_read_with_its_outcome(tmp_path):
    steps = [Step(step=at, loss=0.1, grad_norm=2.0, reward=0.5, reward_std=0.3) for at in (1, 2)]
    run = Run(steps, Outcome("oom", 1, message="CUDA out of memory. Tried to allocate 58.15 GiB."), {"beta": 0.04})
    diagnosis = labkit.diagnose(run)
    assert diagnosis.findings[0].cause == "too-big-batch" and len(diagnosis.reading.rows) == 2
    saved = run.save(tmp_path / "run.jsonl") or tmp_path / "run.jsonl"
    assert len(labkit.diagnose(saved).reading.rows) == 2


def test_a_machine_line_that_wraps_and_its_rank():
    text = (
        "[rank1]: [Rank 1] Watchdog caught collective operation timeout:\n"
        "[rank1]: WorkNCCL(SeqNum=2059, OpType=ALLGATHER, Timeout(ms)=1800000) ran\n"
        "[Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7, OpType=BROADCAST, Timeout(ms)=9)\n"
    )
    finding = triage.diagnose(text).findings[0]
    assert finding.cause == "launcher-or-distributed"
    assert any("rank 3 is behind, at call 7" in words for words in finding.evidence)


LONG = {  # forms of a row, by its number and its gradient norm
    "dicts among lines": lambda at, norm: (
        f"{{'loss': {at}.5, 'grad_norm': {norm}, 'kl': 0.01, 'step': {at}}}\nINFO rollout {at} finished in {at}.1 s\n"
    ),
    "one name a line": lambda at, norm: f"loss: {at}.5\ngrad_norm: {norm}\nkl: 0.01\nstep: {at}\n",
    "csv": lambda at, norm: ("loss,grad_norm,kl,step\n" if not at else "") + f"{at}.5,{norm},0.01,{at}\n",
}


def long_log(path, form, norms, middle="", rows=4000):
    lines = [LONG[form](at, norms.get(at, 1.5)) for at in range(rows)]
    path.write_text("".join([*lines[: rows // 2], middle, *lines[rows // 2 :]]))
    return path


@pytest.fixture
def small_edges(monkeypatch):
    """A log of some hundred kilobytes is a long one."""
    monkeypatch.setattr("labkit.triage.source.BLOCK", 1 << 12)
    monkeypatch.setattr("labkit.triage.source.EDGE", 1 << 14)
    monkeypatch.setattr("labkit.triage.source.WHOLE", 1 << 16)


@pytest.mark.parametrize("form", LONG)
def test_of_a_long_log_the_first_and_the_last_part_are_read_and_the_answer_says_so(tmp_path, small_edges, form):
    path = long_log(tmp_path / "run.log", form, {}, rows=12_000)
    reading = triage.diagnose(path).reading
    whole = [row for row in reading.rows if {"loss", "step"} <= row.values.keys()]
    steps = [row.values["step"] for row in whole]
    assert steps[:50] == [*range(50)] and steps[-49:] == [*range(12_000 - 49, 12_000)]
    assert steps == sorted(set(steps)) and all(row.values["loss"] == row.values["step"] + 0.5 for row in whole)
    assert len(steps) < 6000 and "lines between were not" in reading.notes[0]
    assert reading.lines == len(path.read_text().splitlines())


@pytest.mark.parametrize("form", LONG)
def test_every_line_of_a_log_that_is_not_long_is_read(tmp_path, small_edges, form):
    path = long_log(tmp_path / "run.log", form, {300: "nan"}, PROBABILITY, rows=600)
    reading = triage.diagnose(path).reading
    steps = {row.values["step"] for row in reading.rows if "step" in row.values}
    assert len(steps) >= 599 and not reading.notes
    line = path.read_text().splitlines().index(PROBABILITY.strip()) + 1
    assert line in {hit.line for hit in reading.hits.values()}


def test_rows_are_bounded_and_what_is_odd_is_kept(monkeypatch):
    monkeypatch.setattr("labkit.triage.rows.MOST_ROWS", 1000)
    lines = [str({"loss": at, "kl": math.nan if at == 1500 else 0.1}) + "\n" for at in range(20_000)]
    kept = triage.diagnose("".join(lines)).reading
    assert kept.lines == 20_000 and len(kept.rows) <= 1001
    assert any(math.isnan(row.values["kl"]) for row in kept.rows)
    assert kept.rows[0].values["loss"] == 0 and kept.rows[-1].values["loss"] == 19_999


PROBABILITY = "RuntimeError: probability tensor contains either `inf`, `nan` or element < 0\n"


def test_a_table_turned_over_a_list_and_a_range_are_columns():
    head = "| metric | step 0 | step 100 | step 200 |\n|---|---|---|---|\n"
    assert rows(head + "| reward | 0.4 | 0.3 | 0.1 |\n| kl | 0 | 0.2 | 3 |\n") == [
        {"step": 0, "reward": 0.4, "kl": 0},
        {"step": 100, "reward": 0.3, "kl": 0.2},
        {"step": 200, "reward": 0.1, "kl": 3},
    ]
    assert rows("rewards = [0.2, 0.3, 0.4, 0.5, 0.6]\n") == [{"reward": x / 10} for x in range(2, 7)]
    ends = [{"reward": 0.31, "entropy": 0.38}, {"reward": 0.02, "entropy": 1.18}]
    assert rows("reward: 0.31→0.02, entropy 0.38 -> 1.18\n") == ends
    assert rows("Reward fell from 0.31 to 0.02, entropy went 0.38 -> 1.18\n") == ends
    two_runs = rows("| | baseline | ours |\n|--|--|--|\n| reward | 0.2 | 0.4 |\n")
    assert len(two_runs) < 2  # and no course of one


def test_what_labkit_prints_itself_is_no_log():
    preflight = "look  NaN in the log: a step of two rows gives a NaN loss\n      set logging_nan_inf_filter to False\n"
    answer = str(triage.diagnose("IndexError: index out of range in self\n"))
    alarm = "labkit guard: step 3: first update skipped, gradient norm NaN is not finite\n"
    for text in (preflight, answer + "\n", alarm):
        diagnosis = triage.diagnose(text)
        assert not diagnosis.findings and "labkit printed" in diagnosis.read
    assert triage.diagnose(preflight + "IndexError: index out of range in self\n").findings


def test_numbers_before_the_header_of_a_table_are_no_row(tmp_path, monkeypatch):
    monkeypatch.setattr("labkit.triage.source.BLOCK", 1 << 10)
    path = tmp_path / "run.csv"
    path.write_text("0.1,0.2\n" * 500 + "loss,grad_norm\n" + "0.3,0.4\n" * 500)
    assert rows(path) == [{"loss": 0.3, "grad_norm": 0.4}] * 500


NOISE = ["", "\n", "\r", "nan", "inf", "1e999", "'", "{", "}", "\0", ",", "-", "\u2028"]


def with_noise(texts, draw):
    """A real log with pieces cut out, doubled, exchanged with another's, or replaced by noise."""
    text = draw(st.sampled_from(texts))
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(text)))
        end = start + draw(st.integers(0, 200))
        piece = draw(st.sampled_from([*NOISE, draw(st.sampled_from(texts))]))
        text = text[:start] + piece + text[start if draw(st.booleans()) else end :]
    return text + "\n"


@pytest.mark.parametrize("examples", [150, pytest.param(10_000, marks=[pytest.mark.slow, pytest.mark.timeout(900)])])
def test_no_log_with_noise_in_it_raises(script, examples):
    texts = [case.text for case in script("triage/field_cases").cases()]

    @given(st.data())
    @settings(max_examples=examples, deadline=None)
    def check(data):
        diagnosis = triage.diagnose(with_noise(texts, data.draw))
        assert str(diagnosis) and json.loads(diagnosis.to_json())

    check()


@pytest.mark.parametrize(
    ("line", "name", "value"),
    [
        ("Epoch [1/10], Step [100/600], Loss: 1.5", "loss", 1.5),
        ("Epoch 1 - Batch 1600/287417 - Training Acc. 0.1 - Training Loss 1.5", "loss", 1.5),
        ("Epoch 0:  12%|#2   | 10/1000 [00:10<01:20, 1.2it/s, v_num=12, train_loss=1.5]", "loss", 1.5),
        ("Current iteration:  70%|###| 1321/1875 [09:50<04:06, 2.25it/s]Running loss: 1.5", "loss", 1.5),
        ("Epoch 1 | iter 1 step 1 | loss train: 1.5, val: n/a | iter time: 298.27 ms (step)", "loss", 1.5),
        ("iter 100: loss 1.5, time 123.45ms, mfu 12.3%", "loss", 1.5),
        ("Iter 10: Train loss 1.5, Learning Rate 1.000e-05, It/sec 0.5, Peak mem 10.1 GB", "loss", 1.5),
        (
            "| INFO | train_inner | epoch 001: 10 / 1000 loss=1.5, nll_loss=2.1, ppl=8.1, gnorm=1.2, lr=0.0001",
            "loss",
            1.5,
        ),
        ("I0101 10:00:00.000 123 basic_session_run_hooks.py:260] loss = 1.5, step = 100 (10.1 sec)", "loss", 1.5),
        ("Epoch:[1/1](10/1000) loss:1.5 lr:0.000100000000 epoch_Time:10.0min:", "loss", 1.5),
        ("step 10: allocated 12.5 GB, reserved 20.1 GB", "memory_allocated", 12.5),
        ("Step 10 GPU memory allocated: 12.5 GB", "memory_allocated", 12.5),
        ("Mem memory | allocated: 12.5 | reserved: 26.0", "memory_allocated", 12.5),
        ("iter 10 torch.cuda.memory_allocated: 12.5MB", "memory_allocated", 12.5),
    ],
)
def test_a_line_of_a_common_training_loop_is_a_row(line, name, value):
    (row,) = rows(line + "\n")
    assert row[name] == value
