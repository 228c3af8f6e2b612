"""`checks.token_ids` on tokenizers and models as people have them: every index without a row, and none other."""

import copy

import numpy as np
import pytest
import torch
import transformers as hf
from torch import nn

from labkit.checks import token_ids

SMALL = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 16}


@pytest.fixture
def with_think(tiny):
    tokenizer = copy.deepcopy(tiny.tokenizer)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<think>"]})
    return tokenizer


def untied(inputs, outputs):
    """A Llama whose input and output tables differ in size."""
    model = hf.LlamaForCausalLM(hf.LlamaConfig(**SMALL, max_position_embeddings=8))
    model.set_input_embeddings(nn.Embedding(inputs, 16))
    model.set_output_embeddings(nn.Linear(16, outputs, bias=False))
    return model


def test_it_says_which_table_which_id_where_and_which_text(tiny, with_think):
    report = token_ids(with_think, tiny.model, with_think(["12", "1<think>"], return_tensors="pt", padding=True))
    seen = report.seen
    assert not report and (seen["table"], seen["index"], seen["row"], seen["column"]) == ("input embedding", 16, 1, 1)
    assert seen["text"] == "special token '<think>'" and seen["in"] == "input_ids"
    assert "resize_token_embeddings" in report.hint
    with_think.add_tokens(["word"])
    assert token_ids(with_think, tiny.model, [17]).seen["text"] == "added token 'word'"


def test_ids_that_are_fine_pass_although_the_tokenizer_is_larger(tiny, with_think):
    report = token_ids(with_think, tiny.model, with_think("12+34="))
    assert report and "'<think>', which has no row" in report.caution
    whole = token_ids(with_think, tiny.model)
    assert not whole and whole.seen["index"] == 16 and "row" not in whole.seen
    with_think_model = copy.deepcopy(tiny.model)
    with_think_model.resize_token_embeddings(len(with_think), mean_resizing=False)
    assert token_ids(with_think, with_think_model) and not token_ids(with_think, with_think_model).caution


@pytest.mark.parametrize(
    "ids",
    [
        [3, 4, 16],
        [[3, 4], [5, 16, 6]],  # rows of unequal length
        torch.tensor([[3, 16]]),
        torch.tensor([3, 16], dtype=torch.uint8),
        np.array([[3, 16]]),
        {"input_ids": torch.tensor([[3, 16]]), "attention_mask": torch.tensor([[1, 0]])},  # embedded, masked or not
    ],
)
def test_ids_come_in_every_form(tiny, ids):
    report = token_ids(tiny.tokenizer, tiny.model, ids)
    assert report.passed is False and report.seen["index"] == 16


@pytest.mark.parametrize("ids", ["12+34=", [1.5, 2.0], torch.tensor([True]), object()])
def test_what_is_no_whole_number_is_named(tiny, ids):
    with pytest.raises(TypeError, match="input_ids: expected whole numbers"):
        token_ids(tiny.tokenizer, tiny.model, ids)


@pytest.mark.parametrize("ids", [[], torch.zeros(2, 0, dtype=torch.long), {"labels": []}])
def test_without_an_id_or_a_table_it_is_inconclusive(tiny, ids):
    assert token_ids(tiny.tokenizer, tiny.model, ids).passed is None
    assert token_ids(tiny.tokenizer, nn.Linear(2, 2), [1]).passed is None


def test_labels_are_no_ids(tiny):
    assert token_ids(tiny.tokenizer, tiny.model, {"input_ids": [[3, 4]], "labels": [[-100, 4]]})
    as_ids = token_ids(tiny.tokenizer, tiny.model, [[-100, 4]])
    assert not as_ids and as_ids.seen["text"] == "the label that a loss ignores"
    label = token_ids(tiny.tokenizer, tiny.model, {"input_ids": [[3, 4]], "labels": [[-100, 40]]})
    assert (label.seen["table"], label.seen["in"], label.seen["index"]) == ("output layer", "labels", 40)
    assert not token_ids(tiny.tokenizer, tiny.model, {"input_ids": [[3, 4]], "labels": [[-1, 4]]})
    assert token_ids(tiny.tokenizer, tiny.model, [-1]).seen["text"] == "a negative number"


def test_input_and_output_tables_are_held_apart(tiny, with_think):
    only_in = token_ids(with_think, untied(17, 16), [16])
    assert not only_in and only_in.seen["table"] == "output layer"
    only_out = token_ids(with_think, untied(16, 17), [16])
    assert not only_out and only_out.seen["table"] == "input embedding"
    assert token_ids(with_think, untied(17, 17), [16])
    assert "15 rows of the output layer" in token_ids(with_think, untied(17, 32), [16]).caution
    stranger = token_ids(with_think, untied(17, 17), [99])
    assert stranger.seen["text"] == "no token of this tokenizer" and "another model" in stranger.hint


TWO = {"n_layer": 1, "n_embd": 16, "n_head": 2, "vocab_size": 16, "n_positions": 8}
MODELS = {  # with a table of 8 positions each
    "gpt2": lambda: hf.GPT2LMHeadModel(hf.GPT2Config(**TWO)),
    "opt": lambda: hf.OPTForCausalLM(
        hf.OPTConfig(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, ffn_dim=16, vocab_size=16,
                  max_position_embeddings=8)
    ),
    "bert": lambda: hf.BertLMHeadModel(hf.BertConfig(**SMALL, max_position_embeddings=8, is_decoder=True)),
    "roberta": lambda: hf.RobertaForCausalLM(
        hf.RobertaConfig(**SMALL, max_position_embeddings=10, is_decoder=True, pad_token_id=1)
    ),
    "gptj, fixed": lambda: hf.GPTJForCausalLM(hf.GPTJConfig(**TWO, rotary_dim=4)),
    "ctrl, fixed": lambda: hf.CTRLLMHeadModel(hf.CTRLConfig(**TWO, dff=16)),
}  # fmt: skip


def dies(model, **batch):
    try:
        with torch.no_grad():
            model(**batch)
    except (IndexError, RuntimeError):  # BERT looks its types up by position first
        return True
    return False


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("over", [0, 1])
def test_a_table_of_positions_ends_where_the_model_dies(tiny, name, over):
    model, ids = MODELS[name]().eval(), torch.full((2, 8 + over), 5)
    report = token_ids(tiny.tokenizer, model, ids)
    assert dies(model, input_ids=ids) == bool(over) == (not report), report
    if over:
        assert (report.seen["table"], report.seen["index"]) == ("positions", 8)


@pytest.mark.parametrize("name", ["opt", "roberta"])
def test_padding_on_the_left_takes_a_position_where_the_model_counts_so(tiny, name):
    model, ids = MODELS[name]().eval(), torch.full((1, 11), 5)
    ids[:, :3] = 1
    batch = {"input_ids": ids, "attention_mask": (ids != 1).long()}
    assert not dies(model, **batch) and token_ids(tiny.tokenizer, model, batch)


def test_positions_that_are_given_are_judged(tiny):
    model = MODELS["gpt2"]().eval()
    late = {"input_ids": [[3, 4]], "position_ids": [[7, 8]]}
    assert token_ids(tiny.tokenizer, model, late).seen["index"] == 8
    long = torch.full((1, 9), 5)
    given = {"input_ids": long, "position_ids": torch.zeros_like(long)}
    assert token_ids(tiny.tokenizer, model, given) and not dies(model, **given)
    late = {"input_ids": [[3, 4]], "position_ids": [[6, 7]], "labels": None}
    assert token_ids(tiny.tokenizer, model, late).seen["largest id"] == 4  # positions are no ids


def test_rotary_positions_end_nowhere_but_the_length_is_told(tiny):
    model = hf.LlamaForCausalLM(hf.LlamaConfig(**SMALL, max_position_embeddings=8)).eval()
    long = torch.full((1, 12), 5)
    report = token_ids(tiny.tokenizer, model, long)
    assert report and not dies(model, input_ids=long) and "Rows of 12 tokens for a model of 8" in report.caution
    assert not token_ids(tiny.tokenizer, model, long[:, :8]).caution


@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing.:FutureWarning")  # peft 0.21 asks for it
def test_wrapped_models_and_processors_are_looked_through(tiny, with_think):
    class Wrapper(nn.Module):  # as DistributedDataParallel and DataParallel do
        def __init__(self, module):
            super().__init__()
            self.module = module

    class Processor:
        tokenizer = with_think

    assert not token_ids(Processor(), Wrapper(tiny.model), [16])
    peft = pytest.importorskip("peft")
    lora = peft.get_peft_model(
        copy.deepcopy(tiny.model), peft.LoraConfig(target_modules=["c_attn"], fan_in_fan_out=True)
    )
    assert token_ids(with_think, lora, [15]) and not token_ids(with_think, lora, [16])
    assert token_ids(with_think, lora, [15] * 33).seen["table"] == "positions"


def test_an_image_towers_positions_are_not_the_texts(tiny):
    model = hf.LlamaForCausalLM(hf.LlamaConfig(**SMALL))
    model.tower = nn.Module()
    model.tower.position_embedding = nn.Embedding(2, 4)
    assert token_ids(tiny.tokenizer, model, [[3, 4, 5]])


def test_nothing_runs_and_nothing_changes(tiny, monkeypatch):
    monkeypatch.setattr(nn.Module, "__call__", lambda *_: pytest.fail("a model ran"))
    ids = {"input_ids": torch.tensor([[3, 4]]), "labels": torch.tensor([[-100, 4]])}
    before = {name: t.clone() for name, t in ids.items()}
    assert token_ids(tiny.tokenizer, tiny.model, ids)
    assert all(torch.equal(ids[name], t) for name, t in before.items())


def test_the_shipped_policy_passes_whole_and_a_base_model_has_no_output_table(tiny):
    report = token_ids(tiny.tokenizer, tiny.model)
    assert report and not report.caution
    assert "output layer rows" not in token_ids(tiny.tokenizer, tiny.model.transformer, [3]).seen
