"""The measured temperature: its interval covers, and it says greedy, anti and cannot tell where they are true."""

import math

import pytest
import torch

from labkit.sampling import estimate_temperature, quantiles

INF = math.inf


def drawn(n, vocab, temperature, scale=2.0, seed=0, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    logits = (scale * torch.randn(n, vocab, generator=generator)).to(dtype)
    return logits, torch.multinomial((logits.double() / temperature).softmax(-1), 1, generator=generator)[:, 0]


@pytest.mark.parametrize(("temperature", "n", "vocab"), [(0.3, 5, 16), (2.0, 5, 4), (0.6, 20, 200)])
def test_95_of_100_intervals_cover(temperature, n, vocab):
    covering = 0
    for seed in range(400):
        covering += temperature in estimate_temperature(*drawn(n, vocab, temperature, 1.0 + 2 * (seed % 2), seed))
    assert 0.92 <= covering / 400 <= 0.985


@pytest.mark.parametrize(
    ("temperature", "dtype"),
    [(0.3, torch.float32), (1.0, torch.float64), (2.0, torch.float32), (0.7, torch.float16), (0.7, torch.bfloat16)],
)
def test_many_tokens_give_a_narrow_interval_around_it_in_every_dtype(temperature, dtype):
    measured = estimate_temperature(*drawn(20_000, 50, temperature, dtype=dtype))
    assert measured.verdict == "measured" and measured.value == pytest.approx(temperature, rel=0.03)
    assert 0 < measured.high - measured.low < 0.1 * temperature and measured.tokens == 20_000


def test_it_is_the_maximum_of_the_likelihood():
    logits, tokens = drawn(300, 12, 0.8)
    best = estimate_temperature(logits, tokens).value

    def log_likelihood(t):
        return float((logits.double() / t).log_softmax(-1).gather(1, tokens[:, None]).sum())

    assert log_likelihood(best) > max(log_likelihood(best * 1.001), log_likelihood(best / 1.001))


def test_greedy_has_no_maximum_and_a_bound():
    logits, _ = drawn(200, 16, 1.0)
    measured = estimate_temperature(logits, logits.argmax(-1))
    assert (measured.verdict, measured.value, measured.low) == ("greedy", 0.0, 0.0) and measured.high < 0.1
    assert 0.01 in measured and 0.9 not in measured and "greedy" in str(measured)
    ties = logits.round()
    among = torch.multinomial((ties == ties.amax(1, keepdim=True)).float(), 1)[:, 0]
    assert estimate_temperature(ties, among).verdict == estimate_temperature(ties.half(), among).verdict == "greedy"


def test_unlikely_tokens_are_anti_and_uniform_ones_have_no_upper_end():
    logits, tokens = drawn(400, 16, 1.0)
    measured = estimate_temperature(-logits, tokens)
    assert measured.verdict == "anti" and measured.value == pytest.approx(-1.0, rel=0.2) and 1.0 not in measured
    assert estimate_temperature(logits, logits.argmin(-1)).verdict == "anti"
    uniform = estimate_temperature(logits, torch.randint(0, 16, (400,), generator=torch.Generator().manual_seed(3)))
    assert uniform.verdict == "measured" and uniform.high == INF and uniform.low > 5
    single = estimate_temperature(torch.tensor([0.0, 1.0]), torch.tensor(0))
    assert (single.value, single.high, single.tokens) == (INF, INF, 1) and single.low > 0.5 and 1.0 in single


FLAT = torch.zeros(4, 3).masked_fill(torch.tensor([False, False, True]), -INF)
CANNOT_TELL = [
    (torch.zeros(50, 8), torch.arange(50) % 8),
    (torch.full((50, 8), 3.5), torch.zeros(50)),
    (torch.zeros(0, 8), torch.zeros(0)),
    (torch.randn(5, 1), torch.zeros(5)),
    (torch.tensor([[0.0, 1.0]]), torch.tensor([1])),
    (FLAT, torch.tensor([0, 1, 0, 1])),
]


@pytest.mark.parametrize(("logits", "tokens"), CANNOT_TELL)
def test_flat_logits_and_single_tokens_cannot_tell(logits, tokens):
    measured = estimate_temperature(logits, tokens)
    assert (measured.value, measured.verdict, measured.high) == (None, "cannot tell", INF) and 0.7 in measured


def test_impossible_tokens_weigh_nothing():
    logits, _ = drawn(2000, 30, 1.0)
    logits[logits < logits.topk(8).values[:, -1:]] = -INF
    tokens = torch.multinomial((logits / 0.6).softmax(-1), 1, generator=torch.Generator().manual_seed(1))[:, 0]
    assert estimate_temperature(logits, tokens).value == pytest.approx(0.6, rel=0.1)


def test_it_does_not_depend_on_a_shift_or_the_scale_of_the_logits_or_their_shape():
    logits, tokens = drawn(300, 16, 0.5)
    value = estimate_temperature(logits.double(), tokens).value
    assert estimate_temperature(logits.double() + 1e4, tokens).value == pytest.approx(value, rel=1e-6)
    assert estimate_temperature(logits.double() * 1e-8, tokens).value == pytest.approx(value * 1e-8, rel=1e-5)
    assert estimate_temperature(logits.view(20, 15, 16), tokens.view(20, 15)).value == pytest.approx(value)


@pytest.mark.parametrize(
    ("logits", "tokens", "message"),
    [
        (torch.zeros(3, 4), torch.zeros(4, dtype=torch.long), "one row of logits for each token"),
        (torch.zeros(3, 4), torch.tensor([0, 1, 4]), "the logits have 4 entries"),
        (torch.full((1, 4), math.nan), torch.tensor([0]), "NaN or"),
        (torch.tensor([[0.0, -INF]]), torch.tensor([1]), "-inf, so they were not drawn"),
    ],
)
def test_what_cannot_be_read_is_named(logits, tokens, message):
    with pytest.raises(ValueError, match=message):
        estimate_temperature(logits, tokens)


def test_quantiles_are_uniform_for_fair_draws_also_with_ties_and_cut_under_top_p():
    torch.manual_seed(0)
    logits, tokens = drawn(5000, 30, 0.8)
    fair = quantiles(logits.round(), torch.multinomial((logits.round() / 0.8).softmax(-1), 1)[:, 0], 0.8)
    assert abs(fair.mean() - 0.5) < 0.02 and abs((fair > 0.9).double().mean() - 0.1) < 0.02
    assert quantiles(logits, tokens, 1.6).mean() < 0.4 < 0.6 < quantiles(logits, tokens, 0.4).mean()
    assert quantiles(logits, logits.argmax(-1)).max() <= logits.softmax(-1).amax()
