"""Lesson 09: its rounds and its deaths, the lookup of assertions, and what it says of TRL."""

import math
from functools import partial

import pytest
import torch
from cut import Page
from props import assertions
from props import lesson_09 as lab
from props import lesson_09_deaths as deaths
from props import lesson_09_judges as judges
from props import lesson_09_pictures as pictures
from props import lesson_09_rounds as rounds
from props.arms import side_by_side
from props.diagnosis import judge

from labkit import Outcome, sandbox
from labkit.events import Run
from labkit.grpo import task
from labkit.grpo.policy import CHECKPOINTS

TINY = str(CHECKPOINTS / "tiny")
BLOCK = "block: [0,0,0], thread: [0,0,0] Assertion"


@pytest.fixture(scope="module")
def page():
    return Page("09")


# ------------------------------------------------------------------------------------------------------------- rounds


@pytest.fixture(scope="module")
def frames(page):
    """The rounds of the page's knobs, in this process."""
    return list(rounds.rounds_of(page["models_of"], rounds.positions(page["KNOBS"])))


def test_a_round_ends_where_a_table_is_asked_beyond_its_rows_and_nowhere_else(frames):
    for frame in frames:
        beyond = [name for name, largest in frame["asked"].items() if largest >= frame["rows"][name]]
        if not frame["said"]:
            assert frame["reached"] == list(rounds.STATIONS) and not beyond
            continue
        (name,) = beyond
        whose, table = name.split(": ")
        assert table == {"embedding": "tokens", "gather": "columns of logits"}[frame["operation"]]
        stations = {"policy": ("sample", "policy's log-probs"), "reference": ("reference's log-probs",)}
        assert frame["reached"][-1] in stations[whose]


def test_33_columns_are_not_too_many_for_32_positions_as_positions_count_by_the_mask(frames):
    wide = [frame for frame in frames if frame["position"]["gaps"] == 27 and not frame["said"]]
    assert wide
    for frame in wide:
        assert frame["rows"]["policy: positions"] == 32 and frame["asked"]["policy: positions"] < 10


def test_in_the_first_round_of_the_run_id_16_is_padding_alone(page, monkeypatch):
    """In front of prompts and behind answers; nobody drew it, and no mask counts it."""
    met = {}
    scored = rounds.token_logprobs_of_groups

    def look(model, ids, mask, length, **scaling):
        new = ids == 16
        met["before"] = new[:, :-length].sum().item()
        met["behind"] = new[:, -length:].sum().item()
        met["counted"] = (new & mask.bool()).sum().item()
        return scored(model, ids, mask, length, **scaling)

    monkeypatch.setattr(rounds, "token_logprobs_of_groups", look)
    assert not rounds.round_of(*page["with_a_copy"](TINY), gaps=2)["said"]
    assert met["before"] > 0 < met["behind"] and met["counted"] == 0, met


def test_a_round_is_drawn_with_its_death_in_words_and_without_a_round_a_sentence_stands_there(frames):
    from matplotlib.figure import Figure

    (dead,) = [frame for frame in frames if list(frame["position"].values()) == [16, "16 rows", 2]]
    axes = Figure().subplots(1, 2)
    pictures.draw_round(axes, dead)
    words = [text.get_text() for each in axes for text in each.texts]
    assert "reference's log-probs: dies in an embedding" in words and "0 to 15, asked for 16" in words
    assert words.count("not asked") == 2  # the reference's positions and columns
    axes = Figure().subplots(1, 2)
    pictures.draw_round(axes, None)
    assert axes[0].texts[0].get_text().startswith("ended by an error")


def test_the_title_counts_the_rounds_that_step_or_names_the_error_before_them(frames):
    assert pictures.title_of("solution", Run(frames)).endswith(f"12 of {len(frames)} rounds reach the step")
    died = Run([], Outcome("exception:KeyError", exception="KeyError"))
    assert pictures.title_of("yours", died) == "With your models the run ended by an error (KeyError)"


def test_a_way_of_loading_that_raises_leaves_a_run_with_an_exam_that_is_no_number(page):
    def raises(path):
        raise KeyError(path)

    settings = {"device": "cpu", "rounds": 1, "pad_to_multiple_of": 8}
    (run,) = side_by_side({"": {"load_models": raises}}, [0], lab.learn, **settings)[""]
    assert not run.outcome and math.isnan(run.exam()[0]) and lab.first_kl(run) == math.inf
    (row,) = lab.rows_of_ways({"theirs": [run]})
    assert row == {"way": "theirs", "updates": "0", "KL at update 1, nats": "–", "exam at the end": "KeyError"}


# ----------------------------------------------------------------------------------------------------------- the reader


@pytest.mark.parametrize("way", ["end_token_in_the_gaps", "two_resizes", "with_a_copy", "resaved"])
def test_every_way_that_gives_both_models_their_rows_is_right(way, page, tmp_path):
    def resaved(path):
        page["prepare"](path, str(tmp_path))
        return page["no_new_token"](str(tmp_path))

    load = resaved if way == "resaved" else page[way]
    report = judges.judge_models(load)
    assert report, report


def test_resizing_down_cuts_spare_rows_off_and_the_solution_does_not(page, tmp_path):
    _, policy, _ = page["with_a_copy"](TINY)
    policy.resize_token_embeddings(24)
    policy.save_pretrained(tmp_path)
    page["AutoTokenizer"].from_pretrained(TINY).save_pretrained(tmp_path)
    tables = {}
    for name in ("load_models", "with_a_copy"):
        _, policy, _ = page[name](str(tmp_path))
        tables[name] = policy.get_input_embeddings().num_embeddings
    assert tables == {"load_models": 17, "with_a_copy": 24}


@pytest.mark.parametrize("seed", [5, 17, 31])
def test_the_solution_names_the_unseen_deaths_of_other_seeds_and_a_guess_hears_which_it_missed(seed, page):
    unseen = deaths.unseen_deaths(seed)
    assert judge(page["diagnosis"], unseen)
    report = judge(lambda death: "reference", unseen, what="Death")
    assert not report and report.seen == {"right": "2 of 12"} and "it says 'reference', and it was" in report.hint


def test_one_message_stands_for_many_causes_so_that_the_sizes_decide():
    causes = {cause for cause, death in deaths.unseen_deaths(0) if death["said"].endswith("out of range in self")}
    assert causes == {"policy", "reference", "reward model", "positions", "label", "none of these"}


# ---------------------------------------------------------------------------------------------------------- assertions


def embedding():
    torch.nn.Embedding(16, 8)(torch.tensor([3, 16]))


def index_select():
    torch.zeros(16, 8).index_select(0, torch.tensor([3, 16]))


def gather():
    torch.zeros(2, 16).gather(1, torch.tensor([[3], [-100]]))


def square_brackets():
    torch.zeros(64)[torch.tensor([8, 64])]


def cross_entropy():
    torch.nn.functional.cross_entropy(torch.zeros(2, 16), torch.tensor([3, 16]))


def multinomial():
    torch.multinomial(torch.full((16,), float("nan")), 1)


@pytest.mark.parametrize(
    ("call", "operation"),
    [
        (embedding, "an embedding, or `index_select`"),
        (index_select, "an embedding, or `index_select`"),
        (gather, "`gather` or `scatter_`"),
        (square_brackets, "`x[idx]`"),
        (cross_entropy, "cross-entropy"),
        (multinomial, "no index: `multinomial`"),
    ],
)
def test_what_the_cpu_says_of_a_call_leads_to_the_calls_own_row(call, operation):
    with pytest.raises((IndexError, RuntimeError)) as caught:
        call()
    said = f"{caught.type.__name__}: {caught.value}"
    assert assertions.row_of(said)["the operation"] == operation


@pytest.mark.parametrize(
    ("condition", "operation"),
    [
        ("srcIndex < srcSelectDimSize", "an embedding, or `index_select`"),
        ('ind >=0 && ind < ind_dim_size && "vectorized gather kernel index out of bounds"', "whole rows"),
        ('idx_dim >= 0 && idx_dim < index_size && "scatter gather kernel index out of bounds"', "`gather`; or"),
        ('idx_dim >= 0 && idx_dim < index_size && "index out of bounds"', "`scatter_` of a number"),
        ('-sizes[i] <= index && index < sizes[i] && "index out of bounds"', "`x[idx]`"),
        ('index >= -sizes[i] && index < sizes[i] && "index out of bounds"', "`x[idx]`"),
        ("dstIndex < dstAddDimSize", "`index_add_`"),
        ("t >= 0 && t < n_classes", "cross-entropy"),
        ("cur_target >= 0 && cur_target < n_classes", "cross-entropy"),
        ("cumdist[size - 1] > static_cast<scalar_t>(0)", "no index"),
    ],
)
def test_an_assertion_leads_to_its_row_wherever_its_blanks_stand_and_the_sandbox_knows_it(condition, operation):
    line = f"Indexing.cu:1: kernel: {BLOCK} `{condition}` failed."
    for text in (line, line.replace(">= 0", ">=0"), f"much before\n{line}\nRuntimeError: device-side assert triggered"):
        assert assertions.row_of(text)["the operation"].startswith(operation)
    outcome = Outcome("exit:1", exit_code=1, stderr=line)
    is_index = not operation.startswith(("cross-entropy", "no index"))
    assert sandbox.is_index_assert(outcome) is is_index and lab.line_of(outcome) == line


def test_a_line_that_no_row_fits_is_not_known_and_the_late_error_says_where_to_look():
    assert assertions.row_of("KeyError: 'reward'") == assertions.NOT_KNOWN
    late = assertions.row_of("RuntimeError: CUDA error: device-side assert triggered")
    assert "`Assertion`" in late["look at"] and all(len(row) == 4 for row in assertions.rows())


# ----------------------------------------------------------------------------------------------------------------- TRL


def reference_after_one_step(policy, tokenizer, folder, beta=0.04):
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    def right(completions, prompts, **_):
        return [task.of_prompt(p).reward(p, c) for p, c in zip(prompts, completions, strict=True)]

    settings = GRPOConfig(
        output_dir=str(folder), beta=beta, use_cpu=True, per_device_train_batch_size=16, num_generations=8, max_steps=1,
        max_completion_length=4, report_to="none", save_strategy="no", bf16=False, gradient_checkpointing=False,
    )  # fmt: skip
    data = Dataset.from_list([{"prompt": prompt} for prompt in ("47+52=", "02+03=")])
    trainer = GRPOTrainer(policy, right, settings, data, processing_class=tokenizer)
    trainer.train()
    return trainer.ref_model


@pytest.mark.filterwarnings("ignore:.*is deprecated and will be removed:FutureWarning")  # trl's own
@pytest.mark.timeout(170)
def test_trl_takes_the_reference_from_the_folder_and_dies_where_that_was_not_resized(page, tmp_path):
    pytest.importorskip("trl")
    resized = partial(page["load_models"], TINY)
    tokenizer, policy, _ = resized()
    with pytest.raises(IndexError, match="index out of range in self"):
        reference_after_one_step(policy, tokenizer, tmp_path)
    tokenizer, policy, _ = resized()
    assert reference_after_one_step(policy, tokenizer, tmp_path, beta=0.0) is None
    page["prepare"](TINY, str(tmp_path / "prepared"))
    tokenizer, policy, _ = page["no_new_token"](str(tmp_path / "prepared"))
    assert reference_after_one_step(policy, tokenizer, tmp_path).get_input_embeddings().num_embeddings == 17
