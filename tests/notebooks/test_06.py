"""What lesson 06 says of its rotation, of transformers, of TRL and of labkit's check, run or read."""

import re
import textwrap

import pytest
import torch
from cut import Page, prose
from props import lesson_06 as lab
from props import lesson_06_card as card
from props import lesson_06_judges as judges
from props import lesson_06_pictures as pictures
from props import lesson_06_runs as runs
from props import lesson_06_way as gates
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer
from transformers.models.llama import modeling_llama

from labkit import checks
from labkit.events import Run, Step

HALF, CPU = torch.bfloat16, torch.device("cpu")


def fenced():
    """The lines to paste: those that print four dtypes, and those that cast back."""
    return [textwrap.dedent(code) for code in re.findall(r"```python\n(.*?)```", prose("06"), re.DOTALL)]


@pytest.fixture(scope="module")
def page():
    return Page("06", DEVICE="cpu")


def test_the_bug_is_what_transformers_calls(page):
    q, k = torch.randn(2, 2, 4, 6, 32, dtype=HALF)
    cos, sin = torch.randn(2, 2, 6, 16).repeat(1, 1, 1, 2)
    ours, theirs = page["rotary"](q, k, cos, sin), modeling_llama.apply_rotary_pos_emb(q, k, cos, sin)
    assert all(torch.equal(a, b) and a.dtype == torch.float32 for a, b in zip(ours, theirs, strict=True))


@pytest.mark.parametrize("name, passes", [("rotary", False), ("cast_back", True)])
def test_labkits_check_refuses_the_bug_and_accepts_the_fix(page, name, passes):
    rope = lab.small("Llama", 0, CPU).model.rotary_emb
    # as under autocast: the tables take the dtype of a float32 hidden state
    report = checks.rotary(
        lambda q, k, p: page[name](q, k, *rope(q.float(), p)), head_dim=32, length=1024, dtypes=(torch.float32, HALF)
    )
    assert report.passed is passes, report


@pytest.mark.parametrize("key, stored", [(torch.float32, torch.float32), (HALF, HALF)])
def test_a_usual_cache_stores_a_bfloat16_value_as_wide_as_the_first_key(key, stored):
    cache = DynamicCache(config=lab.small("Llama", 0, CPU).config)
    for dtype in (key, HALF):  # what comes later does not narrow it
        cache.update(torch.zeros(1, 4, 3, 32, dtype=dtype), torch.zeros(1, 4, 3, 32, dtype=HALF), 0)
        assert (cache.layers[0].keys.dtype, cache.layers[0].values.dtype) == (stored, stored)


def test_under_eager_attention_too_the_fix_moves_no_logit(page):
    ids, logits = lab.random_prompts(0, CPU), {}
    for name in ("rotary", "cast_back"):
        model = lab.small("Llama", 0, CPU)
        model.set_attn_implementation("eager")
        with lab.rotating_with(page[name], model), torch.autocast("cpu", HALF), torch.no_grad():
            logits[name] = model(ids).logits
    assert torch.equal(logits["rotary"], logits["cast_back"])


def test_the_lines_for_ones_own_trainer_halve_the_cache(monkeypatch):
    _, lines = fenced()
    monkeypatch.setattr(modeling_llama, "apply_rotary_pos_emb", modeling_llama.apply_rotary_pos_emb)  # put back
    model, sizes = lab.small("Llama", 0, CPU), []
    for code in ("", lines):
        exec(code, {})
        with torch.autocast("cpu", HALF), torch.no_grad():
            sizes.append(lab.by_plan(model(lab.random_prompts(0, CPU), use_cache=True).past_key_values))
    assert sizes == [2, 1]


def test_a_step_on_four_rows_lies_on_the_line_through_one_and_eight(page):
    steps = {**card.STEPS, "step, 4 rows": 4}
    (peaks,) = card.on_a_simulated_card(page["rotary"], steps)
    assert card.step_peak(peaks, 4) == pytest.approx(peaks["step, 4 rows"], abs=30)  # MiB


def test_a_rotation_that_raises_or_returns_nothing_ends_its_way_there_and_is_drawn(page):
    from matplotlib.figure import Figure

    def raises(q, k, cos, sin, unsqueeze_dim=1):
        raise ValueError("mine")

    for rotation in (raises, lambda *args: None, lambda q, k, *args: (q.double(), k[..., :3])):
        way = gates.way_of(rotation, 0, CPU)
        assert way["error"] and gates.STORED not in way["key"] and way["cache / plan"] != way["cache / plan"]
        pictures.draw_pipe(Figure().subplots(), way)
        assert gates.ratio(way) == "raises"
    lost = gates.ways({"it": {"rotation": ends_the_process}}, 0, CPU)["it"]
    assert lost["error"]
    pictures.draw_pipe(Figure().subplots(), lost)


def ends_the_process(*args):
    import os

    os._exit(1)


def test_the_value_is_wide_in_the_store_alone_and_no_number_of_it_needs_that(page):
    way = gates.way_of(page["rotary"], 3, CPU)
    assert [way["value"][at][0] for at in (gates.MADE, gates.AFTER, gates.STORED)] == [
        "bfloat16",
        "bfloat16",
        "float32",
    ]
    assert way["value"][gates.STORED][1] == way["value"][gates.MADE][1]
    key = torch.tensor(way["key"][gates.STORED][1])
    assert (
        torch.equal(key.bfloat16().float(), torch.tensor(way["key"][gates.READ][1])) and (key != key.bfloat16()).any()
    )


def test_a_static_store_takes_the_wide_key_and_the_cross_stands_at_the_value_it_refuses(page):
    way = gates.way_of(page["rotary"], 0, CPU, store="static")
    assert (
        way["key"][gates.STORED][0] == "float32" and gates.STORED not in way["value"] and "index_copy_" in way["error"]
    )
    missing = {lane: pictures.first_missing(way, lane) for lane in gates.LANES}
    assert min(missing, key=missing.get) == "value" and sorted(missing.values())[1] > missing["value"]


def test_bfloat16_linears_alone_do_not_make_a_narrow_cache():
    kinds = {lab.word(parameter.dtype) for parameter in lab.small("Llama", 0, CPU, lab.MIXED).parameters()}
    assert kinds == {"bfloat16", "float32"}
    assert gates.way_of(None, 0, CPU, weights=lab.MIXED)["cache / plan"] == 2
    assert gates.way_of(None, 0, CPU, weights=HALF)["cache / plan"] == 1


def test_updates_that_a_dead_run_did_not_reach_are_counted_as_different():
    def run(count):
        return Run([Step(number, 1, 1, 0.5, 0.1, 0.0, 1.0, extra={"weights": 7.0}) for number in range(count)])

    assert runs.different([run(10)], [run(10)]) == 0
    assert runs.different([run(10)], [run(4)]) == 6


def test_prices_of_runs_that_all_died_are_a_table_that_says_so():
    assert pictures.table_of_prices([]) == [{"": "no run came to its end"}]


def test_a_judge_that_sees_another_cache_or_another_logit_says_so(page):
    for seen, words in (
        ({"cache / plan": 2.0, "largest change of a logit": 0.0}, "other bytes"),
        ({"cache / plan": 1.0, "largest change of a logit": 1e-7}, "a logit moved"),
    ):
        report = judges.judge_rotation(page["cast_back"], page["rotary"], lambda rotation, seen=seen: [seen])
        assert not report and words in report.hint


def test_generation_after_accelerate_s_prepare_is_under_autocast_and_caches_float32():
    accelerate = pytest.importorskip("accelerate")
    model = accelerate.Accelerator(mixed_precision="bf16", cpu=True).prepare(lab.small("Llama", 0, CPU))
    ids = lab.random_prompts(0, CPU)
    out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=2, return_dict_in_generate=True)
    layer = out.past_key_values.layers[0]
    assert (layer.keys.dtype, layer.values.dtype) == (torch.float32, torch.float32)


@pytest.mark.filterwarnings("ignore::FutureWarning")  # transformers', of TRL's arguments
@pytest.mark.parametrize("dtype, keys_and_values, stored", [
    (None, ("float32", "bfloat16"), ("float32", "float32")),
    ("bfloat16", ("bfloat16", "bfloat16"), ("bfloat16", "bfloat16")),
])  # fmt: skip
def test_trls_trainer_caches_float32_with_its_defaults_and_the_pages_lines_print_it_once(
    tmp_path, monkeypatch, tiny, capsys, dtype, keys_and_values, stored
):
    trl, datasets = pytest.importorskip("trl"), pytest.importorskip("datasets")
    from transformers import LlamaForCausalLM

    LlamaForCausalLM(runs.untrained(0, "cpu").model.config).save_pretrained(tmp_path)
    tiny.tokenizer.save_pretrained(tmp_path)
    dtypes, update = set(), DynamicCache.update

    def noted(self, key, value, *args, **settings):
        in_cache = update(self, key, value, *args, **settings)
        dtypes.add(tuple(lab.word(tensor.dtype) for tensor in (key, value, *in_cache)))
        return in_cache

    monkeypatch.setattr(DynamicCache, "update", noted)
    settings = {"max_steps": 1, "per_device_train_batch_size": 2, "num_generations": 2, "max_completion_length": 4}
    settings |= {"model_init_kwargs": {"dtype": dtype}} if dtype else {}
    config = trl.GRPOConfig(str(tmp_path / "out"), use_cpu=True, report_to=[], save_strategy="no", **settings)
    assert config.bf16
    rows = datasets.Dataset.from_dict({"prompt": ["12+34="] * 4})
    trainer = trl.GRPOTrainer(str(tmp_path), lambda completions, **_: [1.0] * len(completions), config, rows)
    monkeypatch.setattr(DynamicLayer, "update", DynamicLayer.update)  # put back
    exec(fenced()[0], {})
    trainer.train()
    printed = re.findall(r"\[torch.*\]", capsys.readouterr().out)
    assert printed == [str([getattr(torch, name) for name in keys_and_values + stored])]
    assert dtypes == {keys_and_values + stored}
    weights = next(trainer.model.parameters()).dtype
    assert weights == (getattr(torch, dtype) if dtype else torch.float32)
