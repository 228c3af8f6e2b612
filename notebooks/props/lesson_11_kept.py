"""Page 11: what one layer keeps of a row, tensor by tensor; and what Qwen3 keeps of its rows."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from labkit import sandbox

from .card import Tap
from .children import events_of
from .lesson_11 import CUBLAS, GIB, build, no_padding

KEPT = {  # by shape, without the row: what a GPT-2 layer keeps of 256 tokens
    (256, 3072): "inside the MLP: four tensors for GELU",
    (12, 256, 64): "query, key, value, attention's output",
    (256, 768): "inputs of the two layer norms",
    (768,): "input of attention's matrix (LoRA is there)",
    (16,): "between LoRA's two matrices",
    (12, 256): "attention: a sum for each token",
    (256, 1): "layer norms: mean and deviation",
}


def kept_by_a_layer(tokens: int = 256) -> list[dict[str, Any]]:
    """What one layer keeps of one row for the backward pass: two layers' tensors minus one layer's, by shape."""
    runs = sandbox.run_all(_kept, {"one": {"layers": 1}, "two": {"layers": 2}}, tokens=tokens)
    one, two = (events_of(run, name)[0] for name, run in runs.items())
    width = tokens * 768 * 4  # bytes: float32, as wide as the model
    table = []
    for shape, size in (two - one).most_common():
        described = {"one layer keeps": f"{list(shape)}", "what it is": KEPT.get(shape[1:], "")}
        table.append(described | {"widths of 768": size / width})
    return table


def _kept(layers: int, tokens: int) -> Iterator[Counter]:
    """Shape -> bytes that a GPT-2 of so many layers saves of one row, without its parameters."""
    tap, saved = Tap(fake=True), {}
    model = tap.build(lambda: build(layers=layers))
    own = {x.untyped_storage()._cdata for x in [*model.parameters(), *model.buffers()]}

    def pack(x: torch.Tensor) -> torch.Tensor:
        saved[x.untyped_storage()._cdata] = x  # of two views of one storage, one counts
        return x

    with tap, no_padding(), torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        ids = torch.zeros(1, tokens, dtype=torch.long)
        model.transformer(input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False)
    sizes: Counter = Counter()
    for key, x in saved.items():
        if key not in own:
            sizes[tuple(x.shape)] += x.untyped_storage().nbytes()
    yield sizes


# rows -> GiB on one NVIDIA H200, and the attention kernel that PyTorch's profiler saw there: docs/h200.md
QWEN3_ON_H200 = {
    "H200, padded: it took a fused kernel": {1: 1.66, 7: 11.53},
    "H200, no padding: it took the math kernel": {1: 1.94, 7: 13.49},
    "H200, no padding, bfloat16: a fused kernel": {1: 0.91, 7: 6.22},
}


def qwen3(rows: Sequence[int], prompt: int = 168, new: int = 256) -> list[dict[str, Any]]:
    """GiB that the forward pass of Qwen3-0.6B keeps for so many rows, padded or not.

    float32, with the logits of the answers as TRL asks for them: `logits_to_keep` is one more than the answer's tokens.
    With a mask transformers repeats the keys and values, and a fused kernel serves. Without one PyTorch is asked to
    repeat them (`enable_gqa`), which in float32 only the math kernel does on CUDA.
    """
    jobs = {
        "simulated, padded, a fused kernel": {"padded": True},
        "simulated, no padding, the math kernel": {"padded": False},
    }
    runs = sandbox.run_all(_qwen3, jobs, rows=rows, prompt=prompt, new=new)
    table = []
    for name, run in runs.items():
        sizes = zip(rows, events_of(run, name), strict=True)
        row = {"attention": name} | {f"{count} rows": size for count, size in sizes}
        table.append(row)
    for name, measured in QWEN3_ON_H200.items():
        table.append({"attention": name} | {f"{count} rows": measured[count] for count in rows})
    return table


def _qwen3(rows: Sequence[int], prompt: int, new: int, padded: bool) -> Iterator[float]:
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from transformers import Qwen3Config, Qwen3ForCausalLM

    sizes: dict[str, Any] = {"vocab_size": 151_936, "hidden_size": 1024, "intermediate_size": 3072}
    sizes |= {"num_hidden_layers": 28, "num_attention_heads": 16}
    sizes |= {"num_key_value_heads": 8, "head_dim": 128, "tie_word_embeddings": True}
    tap = Tap(fake=True, cublas_workspace=CUBLAS)
    model = tap.build(lambda: Qwen3ForCausalLM(Qwen3Config(**sizes)).train())
    as_on_cuda = contextlib.ExitStack()
    if not padded:
        as_on_cuda.enter_context(no_padding())
        as_on_cuda.enter_context(sdpa_kernel(SDPBackend.MATH))
    with tap, as_on_cuda:
        tap.adopt(model)
        for count in rows:
            ids = torch.zeros(count, prompt + new, dtype=torch.long)
            before = tap.allocated
            out = model(
                ids, attention_mask=torch.ones_like(ids), logits_to_keep=new + 1, use_cache=False
            )
            yield (tap.allocated - before) / GIB
            del out
