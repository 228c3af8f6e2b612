import pytest
import torch

from labkit.grpo import rollout


def test_greedy_completions_equal_those_of_transformers_generate(tiny):
    prompts = ["12+34=", "5+6=", "91<17=", "44:08="]
    ours = rollout.generate(tiny, prompts, num_samples=1, max_new_tokens=4, temperature=1e-4)
    ids, mask = tiny.encode(prompts)
    theirs = tiny.model.generate(
        ids, attention_mask=mask, do_sample=False, max_new_tokens=4, pad_token_id=0, eos_token_id=1
    )
    assert ours.texts == tiny.decode(theirs[:, ids.shape[1] :])


def chi_square(tokens, p):
    """Of drawn tokens against the exact probabilities, over those that are expected more than five times."""
    counts = torch.bincount(tokens, minlength=16)
    keep = p * len(tokens) > 5
    assert keep.sum() >= 3
    return ((counts - len(tokens) * p).square() / (len(tokens) * p))[keep].sum()


def test_first_and_cached_second_token_follow_the_models_exact_distribution_row_by_row(tiny):
    """4,000 rows of one prompt, prefilled once. Chi-square with 15 degrees of freedom: its 1e-3 tail is 37.7."""
    generator = torch.Generator().manual_seed(0)
    out = rollout.generate(tiny, ["57+68="], num_samples=4000, max_new_tokens=2, temperature=3.0, generator=generator)
    ids, _ = tiny.encode(["57+68="])
    p = (tiny.model(input_ids=ids).logits[0, -1] / 3.0).softmax(-1)
    assert chi_square(out.tokens[:, 0], p) < 40
    first = out.tokens[:, 0].mode().values
    second = out.tokens[out.tokens[:, 0] == first, 1]
    p = (tiny.model(input_ids=torch.cat([ids, first.view(1, 1)], 1)).logits[0, -1] / 3.0).softmax(-1)
    assert len(second) > 500 and chi_square(second, p) < 40


def test_the_mask_counts_up_to_and_including_the_end_token_and_pad_follows(tiny):
    settings = {"num_samples": 16, "max_new_tokens": 5, "temperature": 1.3}
    out = rollout.generate(tiny, ["12+34=", "3:4="], generator=torch.Generator().manual_seed(2), **settings)
    for tokens, mask in zip(out.tokens.tolist(), out.mask.tolist(), strict=True):
        length = tokens.index(1) + 1 if 1 in tokens else len(tokens)
        assert mask == [1] * length + [0] * (len(tokens) - length)
        assert set(tokens[length:]) <= {0}


def test_top_k_and_top_p_keep_the_smallest_head_that_reaches_p():
    logits = torch.tensor([0.5, 0.3, 0.15, 0.05]).log().repeat(5000, 1)
    generator = torch.Generator().manual_seed(0)
    drawn = lambda **settings: set(rollout.sample_tokens(logits, generator=generator, **settings).tolist())
    assert drawn() == {0, 1, 2, 3}
    assert drawn(top_k=2) == {0, 1}
    assert drawn(top_p=0.5) == {0}
    assert drawn(top_p=0.51) == {0, 1}
    assert drawn(top_p=0.81) == {0, 1, 2}


def test_a_polluted_policy_dies_in_multinomial_as_the_field_report_says(fresh):
    with torch.no_grad():
        fresh.model.transformer.wte.weight[3, 5] = float("nan")
    with pytest.raises(RuntimeError, match="probability tensor contains either `inf`, `nan` or element < 0"):
        rollout.generate(fresh, ["12+34="], num_samples=2)


@pytest.mark.parametrize(
    ("setting", "value"),
    [("temperature", 0.0), ("top_p", 0.0), ("top_p", 1.1), ("top_k", -1), ("max_new_tokens", 0), ("num_samples", 0)],
)
def test_a_sampling_setting_out_of_range_is_named(tiny, setting, value):
    with pytest.raises(ValueError, match=f"{setting} = "):
        rollout.generate(tiny, ["1+1="], **{setting: value})
