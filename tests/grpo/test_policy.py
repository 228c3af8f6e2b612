import pytest
import torch

from labkit.grpo import policy


def test_log_probabilities_are_the_models_own_also_with_left_padding(tiny):
    """Reference: one unpadded row at a time through transformers' own loss."""
    texts = ["12+34=46", "7+8=15"]
    enc = tiny.tokenizer(texts, return_tensors="pt", padding=True)
    logp, _ = policy.token_logprobs(tiny.model, enc["input_ids"], enc["attention_mask"], 2)
    for row, text in enumerate(texts):
        ids = tiny.tokenizer(text, return_tensors="pt")["input_ids"]
        own = tiny.model(input_ids=ids).logits[0].log_softmax(-1)
        expected = torch.stack([own[t - 1, ids[0, t]] for t in (-2, -1)])
        torch.testing.assert_close(logp[row], expected, rtol=1e-4, atol=1e-5)


def test_temperature_divides_the_logits_and_the_clamp_bounds_them(tiny):
    enc = tiny.tokenizer(["12+34=46"], return_tensors="pt")
    args = (tiny.model, enc["input_ids"], enc["attention_mask"], 2)
    _, plain = policy.token_logprobs(*args)
    _, warm = policy.token_logprobs(*args, temperature=2.0)
    _, bound = policy.token_logprobs(*args, logit_max=1.0)
    torch.testing.assert_close(warm * 2, plain)
    assert bound.abs().max() <= 1.0


def llama(tmp_path, tokenizer):
    """A random Llama with rotary positions and two key/value heads, as a folder."""
    from transformers import LlamaConfig, LlamaForCausalLM

    shape = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    ids = {"vocab_size": 16, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 1}
    config = LlamaConfig(**shape, **ids, num_key_value_heads=2, max_position_embeddings=64)
    LlamaForCausalLM(config).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    return policy.load(str(tmp_path), "cpu")


@pytest.mark.parametrize("length", [1, 3])
@pytest.mark.parametrize("name", ["tiny", "llama"])
def test_one_copy_of_a_prompt_gives_the_groups_log_probabilities_and_gradients(name, length, tiny, tmp_path):
    """Reference: every row with its own copy of the prompt. The prompts differ in length; rows of a group are apart."""
    loaded = llama(tmp_path, tiny.tokenizer) if name == "llama" else tiny
    prompt_ids, prompt_mask = loaded.encode(["12+34=", "7+8=", "12+34=", "9+9=", "7+8="])
    completions = torch.randint(2, 16, (5, length), generator=torch.Generator().manual_seed(0))
    ended = torch.ones_like(completions)
    ended[3, 1:] = 0  # a completion that ended after one token
    rows = torch.cat([prompt_ids, completions], 1), torch.cat([prompt_mask, ended], 1), length
    settings = {"temperature": 0.7, "logit_max": 6.0}
    params = list(loaded.model.parameters())
    gradients = {}
    for function in (policy.token_logprobs, policy.token_logprobs_of_groups):
        logp, logits = function(loaded.model, *rows, **settings)
        gradients[function] = logp, logits, *torch.autograd.grad((logp * ended).sum(), params)
    for each, shared in zip(*gradients.values(), strict=True):
        counts = ended.bool() if each.shape[:2] == ended.shape else torch.ones_like(each).bool()
        torch.testing.assert_close(shared[counts], each[counts], rtol=1e-4, atol=1e-4)


def test_in_16_bits_each_row_has_its_own_prompt(tiny):
    """The gradient of a shared prompt would be summed in 16 bits."""
    ids, mask = tiny.encode(["12+34=46"] * 4)
    with torch.autocast("cpu", torch.bfloat16):
        each, shared = (
            f(tiny.model, ids, mask, 2)[0] for f in (policy.token_logprobs, policy.token_logprobs_of_groups)
        )
    assert torch.equal(each, shared)


def test_a_local_folder_of_another_architecture_loads_through_the_auto_classes(tmp_path, tiny):
    llama(tmp_path, tiny.tokenizer)
    from labkit.grpo import Sampling, train

    steps = list(train(policy=str(tmp_path), rounds=1, mu=2, sampling=Sampling(prompts=2, num_samples=4)))
    assert len(steps) == 2 and all(torch.tensor(s.grad_norm).isfinite() for s in steps)


def test_a_tokenizer_larger_than_the_embedding_is_refused_by_name(tmp_path, tiny):
    tiny.model.save_pretrained(tmp_path)
    bigger = type(tiny.tokenizer).from_pretrained(policy.CHECKPOINTS / "tiny")
    bigger.add_special_tokens({"additional_special_tokens": ["<think>"]})
    bigger.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"17 tokens.*16 rows.*resize_token_embeddings"):
        policy.load(str(tmp_path), "cpu")


@pytest.mark.parametrize("name", ["no-such/model-here", "./no_such_folder", "broken"])
def test_a_missing_or_broken_model_is_one_line_with_the_ways_out(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "config.json").write_text('{"model_type": "gpt2"}')
    (tmp_path / "broken" / "model.safetensors").write_bytes(b"not safetensors")
    with pytest.raises(ValueError, match="--model tiny") as caught:
        policy.load(name, "cpu")
    assert "\n" not in str(caught.value) and name in str(caught.value)


@pytest.mark.parametrize("device", ["tpu9", "cuda:99", "cpux"])
def test_an_impossible_device_is_named(device):
    with pytest.raises(ValueError, match=device):
        policy.pick_device(device)


def test_loading_prints_nothing(capfd):
    policy.load("tiny", "cpu")
    assert capfd.readouterr() == ("", "")
