"""`checks.rotary` accepts every sound rotary function, whatever its conventions, and refuses each mistake by name."""

import pytest
import torch

from labkit import checks

F32, B16, F16 = torch.float32, torch.bfloat16, torch.float16
LENGTH = 1024  # positions; the last test of a group has all 8,192


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


def of_tables(length, dtype=F32, dims=64):
    """nanochat's: tables made once, x [B, T, H, D], and it turns the other way."""
    t = torch.outer(torch.arange(length).float(), frequencies(dims, 1e5))
    cos, sin = (f.to(dtype)[:, None] for f in (t.cos(), t.sin()))

    def apply_rotary_emb(x, cos, sin):
        a, b = x[..., : dims // 2], x[..., dims // 2 :]
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
    "base 100": halves(angle=lambda p, d: angles(p, d, 1e2)),
    "base 1e7": halves(angle=lambda p, d: angles(p, d, 1e7)),
    "interpolated": halves(angle=lambda p, d: angles(p, d) / 8),
    "float64 angles": halves(angle=lambda p, d: (p[..., None].double() * frequencies(d).double())[:, None]),
    "a start": lambda x, p: torch.cat([from_start(row[None], int(at[0])) for row, at in zip(x, p, strict=True)]),
    "in place": in_place,
    "a tuple": lambda x, p: (sound(x, p), "more"),
    "a pair": lambda q, k, p: (sound(q, p), sound(k, p)),
    "swapped halves in both": swapped,
    "pairs taken apart (DeepSeek)": lambda x, p: torch.cat(
        (interleaved(x, p)[..., ::2], interleaved(x, p)[..., 1::2]), -1
    ),
    "a quarter rotates": partial(16),
}


@pytest.mark.parametrize("name", SOUND)
def test_a_sound_function_passes_whatever_its_conventions(name):
    report = checks.rotary(SOUND[name], length=LENGTH)
    assert report, report


@pytest.mark.parametrize("name", ["half-split", "interleaved", "the result cast"])
def test_a_sound_function_passes_up_to_position_8191(name):
    report = checks.rotary(SOUND[name])
    assert report and not report.caution, report
    assert max(report.seen["bfloat16, roundings near and far"]) < 0.8


@pytest.mark.parametrize("dims", [2, 4, 32, 80, 128, 256])
def test_every_head_size_will_do(dims):
    assert checks.rotary(sound, head_dim=dims, length=256)


def test_it_tells_the_conventions():
    seen = {
        name: checks.rotary(SOUND[name], length=256).seen for name in ("half-split", "interleaved", "the other sign")
    }
    assert [(s["pairs"], s["turns"]) for s in seen.values()] == [
        ("half-split", "forward"),
        ("interleaved", "forward"),
        ("half-split", "backward"),
    ]


def cast(dtype):
    """Angles in x's dtype or in a fixed one."""
    return halves(angle=lambda p, d: angles(p.to(dtype), d).to(dtype).float())


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


WRONG = {
    "promoted": (promoted, "Cast the result"),
    "always bfloat16": (lambda x, p: sound(x, p).bfloat16(), "a fixed dtype"),
    "only q promoted": (lambda q, k, p: (promoted(q, p), sound(k, p)), "From bfloat16 q comes back as float32"),
    "only k promoted": (lambda q, k, p: (sound(q, p), promoted(k, p)), "From bfloat16 k comes back as float32"),
    "angles in x's dtype": (sixteen(lambda x, p: angles(p, 64)[:, 0].to(x.dtype)), "compute angles in float32"),
    "positions in x's dtype": (sixteen(lambda x, p: angles(p.to(x.dtype), 64)[:, 0]), "compute angles in float32"),
    "angles always bfloat16": (cast(B16), "compute angles in float32"),
    "inv_freq was cast": (halves(angle=lambda p, d: p[:, None, :, None] * frequencies(d).to(B16).float()), "inv_freq"),
    "tables always bfloat16": (lambda x, p: of_tables(LENGTH, B16)(x, p).to(x.dtype), "coarser than x"),
    "x through float16": (lambda x, p: sound(x.half(), p).to(x.dtype), "coarser than x"),
    "bfloat16 tables for float16": (
        lambda x, p, dims=64: of_tables(LENGTH, F32 if x.dtype == F32 else B16, dims)(x, p).to(x.dtype),
        "coarser than x",
    ),
    "and in a quarter of the dims": (
        lambda x, p: torch.cat((WRONG["bfloat16 tables for float16"][0](x[..., :16], p, 16), x[..., 16:]), -1),
        "coarser than x",
    ),
    "no minus": (halves(lambda a, b, c, s: (a * c + b * s, b * c + a * s)), "one angle"),
    "the second half stays": (halves(lambda a, b, c, s: (a * c - b * s, b)), "one angle"),
    "cos and sin exchanged": (halves(lambda a, b, c, s: (a * s - b * c, b * s + a * c)), "are mixed up"),
    "x1 overwritten": (halves(lambda a, b, c, s: (a * c - b * s, b * c + (a * c - b * s) * s)), "one angle"),
    "no cos": (halves(lambda a, b, c, s: (a - b * s, b + a * s)), "one angle"),
    "tables of the other layout": (
        lambda x, p: (
            x * angles(p, 64).repeat_interleave(2, -1).cos().to(x.dtype)
            + torch.cat((-x[..., 32:], x[..., :32]), -1) * angles(p, 64).repeat_interleave(2, -1).sin().to(x.dtype)
        ),
        "tables of one layout",
    ),
    "swapped halves in q": (lambda q, k, p: (swapped(q, p), sound(k, p)), "different orders"),
    "only q": (lambda q, k, p: (sound(q, p), k), "k is not rotated"),
    "only k": (lambda q, k, p: (q, sound(k, p)), "q is not rotated"),
    "k is made from q": (lambda q, k, p: (sound(q, p), sound(q, p)), "Position 0 does not leave k as it is"),
    "returned in the wrong order": (lambda q, k, p: (sound(k, p), sound(q, p)), "mixed up"),
    "opposite directions": (lambda q, k, p: (sound(q, p), SOUND["the other sign"](k, p)), "turns another way"),
    "another base for k": (lambda q, k, p: (sound(q, p), SOUND["base 1e7"](k, p)), "turns another way"),
    "other pairs for k": (lambda q, k, p: (sound(q, p), interleaved(k, p)), "other pairs"),
    "starts at 1": (lambda x, p: sound(x, p + 1), "it is 1 too many or too few"),
    "starts at 7": (lambda x, p: sound(x, p + 7), "it is 7 too many or too few"),
    "k one ahead": (lambda q, k, p: (sound(q, p), sound(k, p + 1)), "Position 0 does not leave k as it is"),
    "counted backwards": (lambda x, p: sound(x, p.flip(-1)), "off-by-one in the start"),
    "positions ignored": (lambda x, p: sound(x, torch.arange(x.shape[2])[None]), "counted anew"),
    "one token is a step ahead": (lambda x, p: sound(x, p + (x.shape[2] == 1)), "counted anew"),
    "a counter of its own": (Counting(), "Position 0"),
    "scaled by the length": (lambda x, p: halves(angle=lambda q, d: angles(q, d) / x.shape[2])(x, p), "counted anew"),
    "the table starts again": (lambda x, p: sound(x, p % 512), "starts again"),
    "the table ends": (lambda x, p: sound(x, p.clamp(max=511)), "a table that ends there"),
    "roots of positions": (halves(angle=lambda p, d: angles(p.float().sqrt(), d)), "not the position times"),
    "frequencies upside down": (halves(angle=lambda p, d: p[:, None, :, None] / frequencies(d)), "distance"),
    "heads mixed": (lambda x, p: sound(x, p).roll(1, 1), "Position 0"),
    "pairs mixed": (lambda x, p: torch.where(p[:, None, :, None] == 0, x, sound(x, p).roll(1, -1)), "in other pairs"),
    "the first row's positions": (lambda x, p: sound(x, p[:1]), "padded on the left"),
    "the first row's start": (lambda x, p: from_start(x, int(p[0, 0])), "padded on the left"),
    "one head of four": (lambda x, p: torch.cat((sound(x[:, :1], p), x[:, 1:]), 1), "Some heads rotate"),
    "three heads of four": (lambda x, p: torch.cat((sound(x[:, :3], p), x[:, 3:]), 1), "Some heads rotate"),
    "a learned table": (lambda x, p: x + (p[:, None, :, None] / 1e3).to(x.dtype), "length"),
    "normalised": (lambda x, p: torch.nn.functional.normalize(sound(x, p), dim=-1), "Position 0"),
    "grows": (lambda x, p: sound(x, p) * (1 + p[:, None, :, None] / 1e5).to(x.dtype), "length"),
    "twice as long": (lambda x, p: 2 * sound(x, p), "2 times x"),
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
    assert report.passed is False, report
    assert words in report.hint, report


def test_rounded_angles_are_seen_at_the_shortest_length_that_is_allowed():
    report = checks.rotary(WRONG["angles in x's dtype"][0], length=256)
    assert report.passed is False and "compute angles in float32" in report.hint


UNDECIDED = {
    "some frequencies are 0": (halves(angle=lambda p, d: angles(p, d) * (torch.arange(32) < 16)), "rotary_dim=32"),
    "pairs turn both ways": (halves(angle=lambda p, d: angles(p, d) * (-1) ** torch.arange(32)), "some backward"),
    "one frequency": (halves(angle=lambda p, d: angles(p, d)[..., :1].expand(-1, -1, -1, 32)), "equally fast"),
    "a table of 512": (lambda x, p: of_tables(512)(x, p).to(x.dtype), "pass length="),
    "rotated twice": (lambda x, p: sound(sound(x, p), p), "rotated twice"),
    "rotated twice, in pairs of neighbours": (lambda x, p: interleaved(interleaved(x, p), p), "rotated twice"),
}


@pytest.mark.parametrize("name", UNDECIDED)
def test_what_may_be_meant_is_inconclusive_and_says_what_would_decide(name):
    function, words = UNDECIDED[name]
    report = checks.rotary(function, length=LENGTH)
    assert report.passed is None and words in report.hint, report


def test_what_was_meant_passes_where_it_is_said():
    assert "not the first 32" in checks.rotary(UNDECIDED["some frequencies are 0"][0], rotary_dim=32).caution
    report = checks.rotary(UNDECIDED["a table of 512"][0], length=512)
    assert report and not report.caution


def test_code_for_one_row_passes_with_a_caution():
    def apply(x, p):
        assert len(x) == 1
        return sound(x, p)

    report = checks.rotary(apply, length=256)
    assert report and "Judged for one row" in report.caution


def test_yarns_factor_passes_with_a_caution():
    report = checks.rotary(lambda x, p: (1.1386 * sound(x.float(), p)).to(x.dtype), length=256)
    assert report and "1.14 times as long" in report.caution, report


def test_partial_rotary_passes_with_a_caution_without_one_where_it_is_told_and_not_where_all_should_rotate():
    untold, told, all_of_them = (checks.rotary(partial(16), length=256, rotary_dim=dims) for dims in (None, 16, 64))
    assert untold and "rotary_dim=16" in untold.caution
    assert told and not told.caution
    assert all_of_them.passed is False and "16 dims rotate" in all_of_them.hint
    last = checks.rotary(lambda x, p: torch.cat((x[..., :32], sound(x[..., 32:], p)), -1), length=256, rotary_dim=32)
    assert last and "not the first 32" in last.caution


def test_code_for_one_dtype_is_judged_in_that_dtype():
    """nanochat's tables are bfloat16, for activations that are."""
    assert not checks.rotary(of_tables(LENGTH, B16), length=LENGTH)
    assert checks.rotary(of_tables(LENGTH, B16), length=LENGTH, dtypes=[B16])
    rounded = of_tables(LENGTH, B16)
    ahead = checks.rotary(lambda x, p: rounded(x, (p + 1).clamp(max=LENGTH - 1)), length=512, dtypes=[B16])
    assert ahead.passed is False and "it is 1 too many or too few" in ahead.hint


def test_a_wrong_layout_and_a_wrong_head_size_say_what_was_given():
    t = angles(torch.arange(LENGTH)[None], 32)[0]  # [1, T, 16]
    report = checks.rotary(lambda x, p: x[..., :32] * t[:, p[0]].transpose(0, 1), length=256)
    assert report.passed is False and "[B, T, H, D], or pass head_dim=" in report.hint


def test_settings_that_cannot_be_are_named():
    for name, wrong in (("length", 255), ("dtypes", []), ("dtypes", [torch.int8])):
        with pytest.raises(ValueError, match=f"rotary: {name}"):
            checks.rotary(sound, **{name: wrong})


SMALL = {"hidden_size": 128, "num_attention_heads": 2, "num_hidden_layers": 2, "vocab_size": 64}
MODELS = {
    "llama.Llama": {},
    "qwen3.Qwen3": {"head_dim": 64},
    "gpt_neox.GPTNeoX": {},
    "glm.Glm": {"head_dim": 64},
    "cohere.Cohere": {},
    "helium.Helium": {"head_dim": 64},
    "nanochat.NanoChat": {},
    "gpt_oss.GptOss": {"head_dim": 64},
}


def installed(path, **more):
    """A model's rotation as `apply(q, k, positions)`, and its rotary module."""
    folder, name = path.split(".")
    module = pytest.importorskip(f"transformers.models.{folder}.modeling_{folder}")
    config = getattr(pytest.importorskip("transformers"), f"{name}Config", None)
    config = config(**(SMALL | {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0} | more))
    rope = getattr(module, f"{name}RotaryEmbedding")(config)
    return (lambda q, k, p: module.apply_rotary_pos_emb(q, k, *rope(q, p))), rope


@pytest.mark.parametrize("path", MODELS)
def test_the_rotary_functions_of_transformers_pass(path):
    function, rope = installed(path, **MODELS[path])
    report = checks.rotary(function, length=2048)
    assert report, report


SCALED = {
    "dynamic": {"rope_type": "dynamic", "factor": 4.0},
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512},
    "longrope": {
        "rope_type": "longrope", "factor": 4.0, "original_max_position_embeddings": 512,
        "short_factor": [1.0] * 32, "long_factor": [2.0] * 32,
    },
    "llama3": {
        "rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 512,
        "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    },
}  # fmt: skip


@pytest.mark.parametrize("kind", SCALED)
def test_scaled_variants_pass_with_their_attention_factor(kind):
    parameters = SCALED[kind] | {"rope_theta": 1e4}
    function, rope = installed("llama.Llama", rope_parameters=parameters, max_position_embeddings=2048)
    report = checks.rotary(function, length=4096)
    assert report, report
    assert ("dynamic scaling" in report.caution) == (kind in ("dynamic", "longrope"))


def gpt_j():
    """Its own tables, and x as [B, T, H, D]."""
    module = pytest.importorskip("transformers.models.gptj.modeling_gptj")
    table = module.create_sinusoidal_positions(2048, 64)

    def rotate(x, p):
        sin, cos = table[p].to(x.dtype).chunk(2, -1)
        return module.apply_rotary_pos_emb(x.transpose(1, 2), sin, cos).transpose(1, 2)

    return rotate


def llama_4():
    """Complex numbers, and the result is cast."""
    module = pytest.importorskip("transformers.models.llama4.modeling_llama4")
    config = pytest.importorskip("transformers").Llama4TextConfig(**SMALL, head_dim=64)
    rope = module.Llama4TextRotaryEmbedding(config)

    def rotate(q, k, p):
        q, k = module.apply_rotary_emb(q.transpose(1, 2), k.transpose(1, 2), rope(q, p))
        return q.transpose(1, 2), k.transpose(1, 2)

    return rotate


def deepseek():
    """It takes pairs apart."""
    module = pytest.importorskip("transformers.models.deepseek_v3.modeling_deepseek_v3")
    config = pytest.importorskip("transformers").DeepseekV3Config(qk_rope_head_dim=64)
    rope = module.DeepseekV3RotaryEmbedding(config)
    return lambda q, k, p: module.apply_rotary_pos_emb_interleave(q, k, *rope(q, p))


@pytest.mark.parametrize("make, word", [(gpt_j, ""), (llama_4, ""), (deepseek, "another order")])
def test_other_forms_of_transformers_pass(make, word):
    report = checks.rotary(make(), length=2048)
    assert report and word in report.caution, report


def test_a_cast_model_is_refused_and_one_loaded_in_bfloat16_is_not(tmp_path):
    transformers = pytest.importorskip("transformers")
    from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

    config = transformers.LlamaConfig(**SMALL, intermediate_size=64)
    model = transformers.LlamaForCausalLM(config)
    model.save_pretrained(tmp_path)
    loaded = transformers.LlamaForCausalLM.from_pretrained(tmp_path, dtype=B16)
    for cast_to, passes in ((loaded, True), (model.bfloat16(), False)):
        rope = cast_to.model.rotary_emb
        report = checks.rotary(lambda q, k, p, rope=rope: apply_rotary_pos_emb(q, k, *rope(q, p)), length=2048)
        assert bool(report) is passes, report
