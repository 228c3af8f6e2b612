"""`checks.rotary` accepts every sound rotary function, whatever its conventions, and refuses each mistake by name."""

import pytest
import torch

from labkit import checks

F32, B16 = torch.float32, torch.bfloat16
LENGTH = 1024  # positions; some tests have all 8,192


def frequencies(dims, base=1e4):
    return base ** (-torch.arange(0, dims, 2).float() / dims)


def angles(positions, dims, base=1e4):
    return (positions[..., None].float() * frequencies(dims, base))[:, None]


def halves(mix=lambda a, b, c, s: (a * c - b * s, b * c + a * s), angle=angles):
    """A rotary function on pairs (i, i + D / 2), tables cast to x's dtype."""

    def rotate(x, positions):
        t = angle(positions, x.shape[-1])
        return torch.cat(mix(*x.chunk(2, -1), t.cos().to(x.dtype), t.sin().to(x.dtype)), -1)

    return rotate


def of_frequencies(speed):
    """A rotary function whose pair i of n turns by `speed(i, n)` radians a position."""
    return halves(angle=lambda p, d: (p[..., None] * speed(torch.arange(d // 2).float(), d // 2))[:, None])


sound = halves()


def interleaved(x, positions):
    t = angles(positions, x.shape[-1])
    c, s = t.cos().to(x.dtype), t.sin().to(x.dtype)
    a, b = x[..., ::2], x[..., 1::2]
    return torch.stack((a * c - b * s, b * c + a * s), -1).flatten(-2)


def complex_numbers(x, positions):
    t = angles(positions, x.shape[-1])
    z = torch.view_as_complex(x.float().unflatten(-1, (-1, 2))) * torch.polar(torch.ones_like(t), t)
    return torch.view_as_real(z).flatten(-2).to(x.dtype)


def promoted(x, positions):
    return sound(x.float(), positions)


def partial(dims):
    return lambda x, p: torch.cat((sound(x[..., :dims], p), x[..., dims:]), -1)


def swapped(x, positions):
    return sound(x, positions).roll(x.shape[-1] // 2, -1)


def in_place(x, positions):
    x.copy_(sound(x, positions))
    return x


def of_tables(length, dtype=F32):
    """nanochat's: tables made once, x [B, T, H, D], and it turns the other way."""
    t = torch.outer(torch.arange(length).float(), frequencies(64, 1e5))
    cos, sin = (f.to(dtype)[:, None] for f in (t.cos(), t.sin()))

    def apply_rotary_emb(x, cos, sin):
        a, b = x.chunk(2, -1)
        return torch.cat((a * cos + b * sin, a * (-sin) + b * cos), 3)

    return lambda x, p: apply_rotary_emb(x.transpose(1, 2), cos[p], sin[p]).transpose(1, 2)


def from_start(x, start):
    return sound(x, torch.arange(x.shape[2])[None] + start)


SOUND = {
    "half-split": sound,
    "interleaved": interleaved,
    "complex": complex_numbers,
    "the result cast": lambda x, p: promoted(x, p).to(x.dtype),
    "the other sign": halves(lambda a, b, c, s: (a * c + b * s, b * c - a * s)),
    "base 1e7": halves(angle=lambda p, d: angles(p, d, 1e7)),
    "Falcon's base, interpolated": halves(angle=lambda p, d: angles(p, d, 1000042) / 8),
    "a start": lambda x, p: torch.cat([from_start(row[None], int(at[0])) for row, at in zip(x, p, strict=True)]),
    "in place": in_place,
    "a pair": lambda q, k, p: (sound(q, p), sound(k, p)),
}


@pytest.mark.parametrize("name", SOUND)
def test_a_sound_function_passes_whatever_its_conventions(name):
    report = checks.rotary(SOUND[name], length=LENGTH)
    assert report and not report.caution, report
    assert report.seen["pairs"] == ("interleaved" if name in ("interleaved", "complex") else "half-split")
    assert report.seen["turns"] == ("backward" if name == "the other sign" else "forward")


@pytest.mark.parametrize("function, settings", [
    (sound, {}), (interleaved, {}), (SOUND["the result cast"], {}),
    *[(sound, {"head_dim": dims, "length": 256}) for dims in (2, 4, 80, 256)],
])  # fmt: skip
def test_a_sound_function_passes_up_to_position_8191_and_with_every_head_size(function, settings):
    report = checks.rotary(function, **settings)
    assert report and not report.caution, report
    assert max(report.seen["bfloat16, roundings near and far"]) < 0.8


def sixteen(make):
    """A mistake in the 16-bit dtypes only."""

    def rotate(x, positions):
        t = angles(positions, x.shape[-1]) if x.dtype.itemsize > 2 else make(x, positions)[:, None]
        return halves(angle=lambda p, d: t)(x, positions)

    return rotate


class Counting:
    def __init__(self):
        self.at = 0

    def __call__(self, x, positions):
        start, self.at = self.at, self.at + x.shape[2]
        return sound(x, torch.arange(start, self.at)[None])


COARSE, PAIR, K, START, LINEAR = (
    "coarser than x", "one angle", "k is not rotated as q is", "Position 0 does not leave x", "times a fixed number",
)  # fmt: skip
WRONG = {
    "promoted": (promoted, "Cast the result"),
    "always bfloat16": (lambda x, p: sound(x, p).bfloat16(), "a fixed dtype"),
    "angles in x's dtype": (sixteen(lambda x, p: angles(p, 64)[:, 0].to(x.dtype)), "compute angles in float32"),
    "positions in x's dtype": (sixteen(lambda x, p: angles(p.to(x.dtype), 64)[:, 0]), "compute angles in float32"),
    "angles always bfloat16": (halves(angle=lambda p, d: angles(p, d).to(B16).float()), "compute angles in float32"),
    "inv_freq was cast": (halves(angle=lambda p, d: p[:, None, :, None] * frequencies(d).to(B16).float()), "inv_freq"),
    "tables always bfloat16": (lambda x, p: of_tables(LENGTH, B16)(x, p).to(x.dtype), COARSE),
    "x through float16": (lambda x, p: sound(x.half(), p).to(x.dtype), COARSE),
    "bfloat16 tables for float16": (
        lambda x, p: of_tables(LENGTH, F32 if x.dtype == F32 else B16)(x, p).to(x.dtype), COARSE,
    ),
    "no minus": (halves(lambda a, b, c, s: (a * c + b * s, b * c + a * s)), PAIR),
    "x1 overwritten": (halves(lambda a, b, c, s: (a * c - b * s, b * c + (a * c - b * s) * s)), PAIR),
    "no cos": (halves(lambda a, b, c, s: (a - b * s, b + a * s)), PAIR),
    "tables of the other layout": (
        lambda x, p: (
            x * angles(p, 64).repeat_interleave(2, -1).cos().to(x.dtype)
            + torch.cat((-x[..., 32:], x[..., :32]), -1) * angles(p, 64).repeat_interleave(2, -1).sin().to(x.dtype)
        ),
        "tables of one layout",
    ),
    "returned in the wrong order": (lambda q, k, p: (sound(k, p), sound(q, p)), "q and k exchanged"),
    "heads mixed": (lambda x, p: sound(x, p).roll(1, 1), PAIR),
    "pairs mixed": (lambda x, p: torch.where(p[:, None, :, None] == 0, x, sound(x, p).roll(1, -1)), PAIR),
    "a learned table": (lambda x, p: x + (p[:, None, :, None] / 1e3).to(x.dtype), PAIR),
    "only q": (lambda q, k, p: (sound(q, p), k), K),
    "only k": (lambda q, k, p: (q, sound(k, p)), K),
    "opposite directions": (lambda q, k, p: (sound(q, p), SOUND["the other sign"](k, p)), K),
    "another base for k": (lambda q, k, p: (sound(q, p), SOUND["base 1e7"](k, p)), K),
    "other pairs for k": (lambda q, k, p: (sound(q, p), interleaved(k, p)), K),
    "k one ahead": (lambda q, k, p: (sound(q, p), sound(k, p + 1)), K),
    "one head of four": (lambda x, p: torch.cat((sound(x[:, :1], p), x[:, 1:]), 1), "Some heads rotate"),
    "three heads of four": (lambda x, p: torch.cat((sound(x[:, :3], p), x[:, 3:]), 1), "Some heads rotate"),
    "cos and sin exchanged": (halves(lambda a, b, c, s: (a * s - b * c, b * s + a * c)), START),
    "swapped halves": (swapped, START),
    "starts at 7": (lambda x, p: sound(x, p + 7), "it is 7 too many"),
    "counted backwards": (lambda x, p: sound(x, p.flip(-1)), "off-by-one in the start"),
    "twice as long": (lambda x, p: 2 * sound(x, p), "2 times x"),
    "the table starts again": (lambda x, p: sound(x, p % 512), "from about position 512 on"),
    "the table ends": (lambda x, p: sound(x, p.clamp(max=511)), "from about position 512 on"),
    "roots of positions": (halves(angle=lambda p, d: angles(p.float().sqrt(), d)), LINEAR),
    "a counter of its own": (Counting(), LINEAR),
    "the rest is zeroed": (lambda x, p: partial(16)(x, p) * (torch.arange(64) < 16), "do not rotate are changed"),
    "positions ignored": (lambda x, p: sound(x, torch.arange(x.shape[2])[None]), "counted anew"),
    "one token is a step ahead": (lambda x, p: sound(x, p + (x.shape[2] == 1)), "counted anew"),
    "scaled by the length": (lambda x, p: halves(angle=lambda q, d: angles(q, d) / x.shape[2])(x, p), "counted anew"),
    "the first row's positions": (lambda x, p: sound(x, p[:1]), "padded on the left"),
    "the first row's start": (lambda x, p: from_start(x, int(p[0, 0])), "padded on the left"),
    "zeros": (lambda x, p: 0 * x, "Nothing rotates"),
    "NaN": (lambda x, p: x / 0 - x / 0, "NaN"),
    "nothing": (lambda x, p: None, "return is missing"),
    "one of two": (lambda q, k, p: sound(q, p), "both rotated"),
    "transposed": (lambda x, p: sound(x, p).transpose(1, 2), "shape"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_a_mistake_is_refused_and_named(name):
    function, words = WRONG[name]
    report = checks.rotary(function, length=LENGTH)
    assert report.passed is False and words in report.hint, report


EXPONENTS = {  # the frequency of pair i of n
    "i / D": lambda i, n: 1e4 ** (-i / (2 * n)),
    "i / (D / 2 - 1)": lambda i, n: 1e4 ** (-i / (n - 1)),
    "i / (D / 2 - 1), theta = 1e6": lambda i, n: 1e6 ** (-i / (n - 1)),
    "i / D, theta = 1e6": lambda i, n: 1e6 ** (-i / (2 * n)),
    "2 (i + 1) / D": lambda i, n: 1e4 ** (-(i + 1) / n),
}


@pytest.mark.parametrize("name", EXPONENTS)
def test_a_wrong_exponent_is_refused_where_theta_is_given_and_else_a_caution(name):
    function, theta = of_frequencies(EXPONENTS[name]), 1e6 if "1e6" in name else 1e4
    for head_dim in (64, 128):
        report = checks.rotary(function, length=256, head_dim=head_dim)
        assert report and "theta ** (-2 * i / D)" in report.caution, report
        report = checks.rotary(function, length=256, head_dim=head_dim, theta=theta)
        assert report.passed is False and "theta ** (-2 * i / D)" in report.hint, report


def test_the_theta_that_is_meant_passes_without_a_caution():
    for theta in (100.0, 13459.0, 1e6):
        report = checks.rotary(halves(angle=lambda p, d, theta=theta: angles(p, d, theta)), length=LENGTH, theta=theta)
        assert report and not report.caution and report.seen["base"] == pytest.approx(theta, rel=1e-3), report


UNDECIDED = {
    "some frequencies are 0": (halves(angle=lambda p, d: angles(p, d) * (torch.arange(32) < 16)), "not the first ones"),
    "the last dims": (lambda x, p: torch.cat((x[..., :32], sound(x[..., 32:], p)), -1), "not the first ones"),
    "pairs turn both ways": (halves(angle=lambda p, d: angles(p, d) * (-1) ** torch.arange(32)), "some backward"),
    "one frequency": (halves(angle=lambda p, d: angles(p, d)[..., :1].expand(-1, -1, -1, 32)), "equally fast"),
    "a table of 512": (lambda x, p: of_tables(512)(x, p).to(x.dtype), "pass length="),
    "rotated twice": (lambda x, p: sound(sound(x, p), p), "rotated twice"),
}


@pytest.mark.parametrize("name", UNDECIDED)
def test_what_may_be_meant_is_inconclusive_and_says_what_would_decide(name):
    function, words = UNDECIDED[name]
    report = checks.rotary(function, length=LENGTH)
    assert report.passed is None and words in report.hint, report


def for_one_row(x, positions):
    assert len(x) == 1
    return sound(x, positions)


def taken_apart(x, positions):
    y = interleaved(x, positions)
    return torch.cat((y[..., ::2], y[..., 1::2]), -1)


@pytest.mark.parametrize("function, words", [
    (for_one_row, "Judged for one row"),
    (lambda x, p: (1.1386 * sound(x.float(), p)).to(x.dtype), "1.14 times as long"),  # YaRN's
    (partial(16), "Only the first 16 dims"),
    (taken_apart, "another order"),  # DeepSeek's
])  # fmt: skip
def test_what_some_models_do_passes_with_a_caution(function, words):
    report = checks.rotary(function, length=256)
    assert report and words in report.caution, report


def test_code_for_one_dtype_is_judged_in_that_dtype():
    """nanochat's tables are bfloat16, for activations that are."""
    rounded = of_tables(LENGTH, B16)
    assert checks.rotary(rounded, length=LENGTH, dtypes=[B16])
    ahead = checks.rotary(lambda x, p: rounded(x, (p + 1).clamp(max=LENGTH - 1)), length=512, dtypes=[B16])
    assert ahead.passed is False and "it is 1 too many" in ahead.hint
    angled = checks.rotary(WRONG["angles in x's dtype"][0], length=256, dtypes=[B16])
    assert angled.passed is False and "compute angles in float32" in angled.hint


def test_settings_that_cannot_be_are_named():
    for name, wrong in (("length", 255), ("dtypes", []), ("dtypes", [torch.int8])):
        with pytest.raises(ValueError, match=f"rotary: {name}"):
            checks.rotary(sound, **{name: wrong})


SMALL = {"hidden_size": 128, "num_attention_heads": 2, "num_hidden_layers": 2, "vocab_size": 64}
SCALED = {"factor": 4.0, "original_max_position_embeddings": 512, "rope_theta": 1e4}
MODELS = {
    "qwen3.Qwen3": {"head_dim": 64},
    "glm.Glm": {"head_dim": 64},
    "cohere.Cohere": {},
    "helium.Helium": {"head_dim": 64},
    "nanochat.NanoChat": {},
    "gpt_oss.GptOss": {"head_dim": 64},
    "llama.Llama, dynamic": SCALED | {"rope_type": "dynamic"},
    "llama.Llama, yarn": SCALED | {"rope_type": "yarn"},
    "llama.Llama, longrope": SCALED
    | {"rope_type": "longrope", "short_factor": [1.0] * 32, "long_factor": [2.0] * 32},
    "llama.Llama, llama3": SCALED | {"rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0},
}  # fmt: skip


def installed(path, more):
    """A model's rotation as `apply(q, k, positions)`."""
    folder, name = path.split(",")[0].split(".")
    module = pytest.importorskip(f"transformers.models.{folder}.modeling_{folder}")
    config = getattr(pytest.importorskip("transformers"), f"{name}Config", None)
    if "rope_type" in more:
        more = {"rope_parameters": dict(more), "max_position_embeddings": 1024}
    config = config(**(SMALL | {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0} | more))
    rope = getattr(module, f"{name}RotaryEmbedding")(config)
    return lambda q, k, p: module.apply_rotary_pos_emb(q, k, *rope(q, p))


@pytest.mark.parametrize("name", MODELS)
def test_the_rotary_functions_of_transformers_pass(name):
    report = checks.rotary(installed(name, MODELS[name]), length=2048)
    assert report, report
    assert ("dynamic scaling" in report.caution) == (name in ("llama.Llama, dynamic", "llama.Llama, longrope"))
    # dynamic scaling changes the base
    assert ("Hardly any" in report.caution) == (name == "llama.Llama, dynamic")
