"""The tap against PyTorch's own allocator (a recording), and against what is really alive."""

from __future__ import annotations

import gc
import gzip
import json
import re
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from props.card import Tap, current
from props.card.as_cuda import AUTOCAST_TO_FLOAT32
from props.card.ledger import Ledger
from props.card.storages import Storages
from torch import nn
from torch.nn import functional as F

TRACE = Path(__file__).parents[1] / "data/allocator-traces/gpt2-train-sdpa.jsonl.gz"
MIB = 2**20
# The recording's cuBLAS workspaces: one for the forward's thread, one for the backward's.
RECORDED_WORKSPACE = 32 * MIB


def rounded(nbytes: int) -> int:
    return -(-nbytes // 512) * 512


def gpt2(**changes):
    from transformers import GPT2Config, GPT2LMHeadModel

    config = {"n_layer": 2, "n_embd": 64, "n_head": 2, "vocab_size": 100, "n_positions": 64}
    return GPT2LMHeadModel(GPT2Config(**config | {"bos_token_id": 0, "eos_token_id": 0} | changes))


# ---- against the recording ------------------------------------------------------------------------------


def test_a_training_run_on_the_cpu_has_the_recorded_cuda_runs_memory_to_the_byte_and_in_its_order():
    """The recorded run again, on fake CPU tensors: GPT-2, 4 layers, 256 wide, dropout 0.1, 8 rows of 128 tokens, AdamW.

    The recording's step makes one temporary a parameter, so its optimizer was not the `foreach` one.
    """
    header, *events = [json.loads(line) for line in gzip.decompress(TRACE.read_bytes()).decode().splitlines()]
    tap = Tap(fake=True, cublas_workspace=RECORDED_WORKSPACE)
    model = tap.build(lambda: gpt2(n_layer=4, n_embd=256, n_head=4, vocab_size=4096, n_positions=128))
    steps = []
    with tap:
        tap.adopt(model)
        ids = torch.zeros(8, 128, dtype=torch.long)
        optimizer = torch.optim.AdamW(model.train().parameters(), foreach=False)
        for _ in range(3):
            model(ids, labels=ids).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            now = {"allocated_bytes": tap.allocated, "peak_allocated_bytes": tap.peak, "reserved_bytes": tap.reserved}
            steps.append(now | {"inactive_split_bytes": tap.allocator.inactive_split_bytes})
        log = list(tap.ledger.log)  # what follows is the model's own end
    assert steps == header["step_stats"]
    theirs = signed_sizes((event["action"], event["addr"], event["size"]) for event in events)
    ours = signed_sizes((event[0], event[1], event[2] if event[0] == "malloc" else 0) for event in log)
    assert theirs[:244] == ours[:244]  # the forward pass, the loss, and into the backward pass: up to the first scratch
    recording = iter(size for size in theirs if size != -4)  # their script held the loss a little longer
    assert all(size in recording for size in ours if size != -4)  # ours is theirs, with the scratch left out


def signed_sizes(events):
    """The size of each block as it comes, and minus that as it goes."""
    live, sizes = {}, []
    for kind, key, size in events:
        if kind in ("alloc", "malloc"):
            live[key] = size
            sizes.append(size)
        elif kind in ("free", "free_requested") and key in live:
            sizes.append(-live.pop(key))
    return sizes


# ---- what is alive --------------------------------------------------------------------------------------


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 5), st.integers(1, 4000)), max_size=40))
def test_allocated_is_what_the_live_storages_hold_after_any_program(program):
    held: list[torch.Tensor] = []
    with Tap() as tap:
        for kind, at, size in program:
            if kind == 0 or not held:
                held.append(torch.ones(size))
                continue
            chosen = held[at % len(held)]
            if kind == 1:
                held.append(chosen[:: 1 + size % 3].view(-1))  # a view
            elif kind == 2:
                chosen.add_(1).mul_(2)  # in place
            elif kind == 3:
                held.append(torch.cat([chosen, chosen]))
            elif kind == 4:
                held.pop(at % len(held))
            elif kind == 5:
                held.append(chosen.chunk(2)[0])
            else:
                chosen.data = torch.zeros(size)  # the old storage may die
            del chosen
        alive = [*held, *(t._base for t in held if t._base is not None)]  # a view holds its base, even after `.data =`
        storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in alive}
        assert tap.allocated == sum(rounded(n) for n in storages.values())
        held.clear()
        del alive
        assert tap.allocated == 0


@pytest.mark.parametrize("first_dies", [True, False])
@pytest.mark.parametrize("sum_dies", [True, False])
def test_a_sum_of_gradients_takes_over_the_block_of_the_first_only_if_that_is_dead(first_dies, sum_dies):
    held = {"first": torch.ones(1024), "second": torch.ones(1024)}
    storages = Storages(Ledger(64 * MIB))
    for tensor in held.values():
        storages.hold(tensor, "backward")
    held["sum"] = held["first"] + held["second"]
    del tensor
    assert storages.add_gradients(held["first"], held["second"], held["sum"], "backward")
    storages.label(held["sum"], "gradient")  # while it waits
    for name, dies in (("sum", sum_dies), ("first", first_dies)):
        if dies:
            del held[name]
    expected = {"backward": 4096 * (len(held) - (not sum_dies)), "gradient": 4096 * (not sum_dies)}
    assert storages.ledger.by_category == {name: n for name, n in expected.items() if n}
    made = [event for event in storages.ledger.log if event[0] == "malloc"]
    assert len(made) == (3 if not first_dies and not sum_dies else 2)
    held.clear()
    assert storages.ledger.allocated == 0


def test_nothing_is_counted_outside_and_a_block_that_outlives_the_tap_is_freed_by_its_death():
    outside = torch.ones(1000)
    with Tap() as tap:
        outside.add_(1)
        assert tap.allocated == 0
        kept = torch.ones(1000)
    torch.ones(5000)
    assert tap.allocated == rounded(4000)
    del kept
    gc.collect()
    assert tap.allocated == 0


def test_inference_mode_does_not_hide_the_inside_of_composite_operations():
    def peak(guard):
        a, b = torch.ones(64, 256), torch.ones(64, 256)
        with Tap() as tap, guard():
            tap.adopt([a, b])
            F.cosine_similarity(a, b)
        return tap.peak

    assert peak(torch.inference_mode) == peak(torch.no_grad) > 2 * 64 * 256 * 4 + 512


# ---- categories -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("fake", [False, True])
def test_categories_hold_exactly_the_tensors_they_name(fake):
    tap = Tap(fake=fake)
    model = tap.build(lambda: gpt2(resid_pdrop=0.0, attn_pdrop=0.0, embd_pdrop=0.0))

    def size(tensors):
        return sum(rounded(t.numel() * t.element_size()) for t in tensors)

    with tap:
        tap.adopt(model)
        ids = torch.zeros(2, 16, dtype=torch.long)
        optimizer = torch.optim.AdamW(model.parameters())
        out = model(ids, use_cache=True)
        cache = [t for layer in out.past_key_values.layers for t in (layer.keys, layer.values)]
        assert tap.by_category["parameter"] == size(model.parameters())
        assert tap.by_category["kv-cache"] == size(cache) == 2 * 2 * 2 * 16 * 64 * 4
        assert tap.by_category["logits"] == size([out.logits])
        del out, cache
        model(ids, labels=ids, use_cache=False).loss.backward()
        assert tap.by_category["gradient"] == size(p.grad for p in model.parameters())
        assert "kv-cache" not in tap.by_category
        optimizer.step()
        moments = [v for state in optimizer.state.values() for k, v in state.items() if k != "step"]
        assert tap.by_category["optimizer"] == size(moments)  # the step counters live on the host
        assert sum(tap.by_category.values()) == tap.allocated
        assert sum(tap.peak_by_category.values()) == tap.peak
        optimizer.zero_grad()
        assert set(tap.by_category) == {"parameter", "optimizer", "other"}


def test_an_optimizer_that_existed_before_is_adopted_with_its_state():
    model = nn.Linear(64, 64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model(torch.ones(1, 64)).sum().backward()
    optimizer.step()
    with Tap() as tap:
        tap.adopt(model, optimizer)
        each = 64 * 64 * 4 + rounded(64 * 4)
        assert tap.by_category == {"parameter": each, "gradient": each, "optimizer": each}


def test_gradients_that_code_sets_by_itself_are_named_when_the_optimizer_uses_them():
    weight = nn.Parameter(torch.ones(64, 64))
    with Tap() as tap:
        tap.adopt([weight], category="parameter")
        (gradient,) = torch.autograd.grad((weight**2).sum(), [weight])
        weight.grad = gradient.clone()
        del gradient
        assert tap.by_category["other"] == 64 * 64 * 4
        torch.optim.SGD([weight], lr=0.1).step()
        assert tap.by_category == {"parameter": 64 * 64 * 4, "gradient": 64 * 64 * 4}


def test_attention_weights_as_wide_as_the_vocabulary_are_not_logits():
    tap = Tap(fake=True)
    model = tap.build(lambda: gpt2(vocab_size=16, attn_implementation="eager"))
    with tap, torch.no_grad():
        out = model(torch.zeros(3, 16, dtype=torch.long), use_cache=False)
        assert tap.by_category["logits"] == rounded(out.logits.numel() * 4)
    wide = [event[2] for event in tap.ledger.log if event[0] == "malloc" and event[3] == "logits"]
    assert wide == [out.logits.numel() * 4]


def test_categories_are_forced_relabelled_marked_and_in_a_snapshot_and_host_memory_is_not_counted():
    with Tap() as tap:
        a = torch.zeros(3 * MIB)
        with tap.category("backward"):
            torch.zeros(5 * MIB)
        with tap.host():
            b = torch.zeros(MIB)
        tap.mark("after")
        tap.label([a, b], "parameter")
        assert tap.by_category == {"parameter": 12 * MIB}
    assert tap.peak_by_category == {"backward": 20 * MIB, "other": 12 * MIB}
    assert {b["tag"] for s in tap.snapshot() for b in s["blocks"]} == {"parameter", None}
    assert [(m.allocated, m.mark) for m in tap.timeline if m.mark] == [(12 * MIB, "after")]


# ---- the simulated card ---------------------------------------------------------------------------------


def test_a_card_that_is_too_small_raises_where_cuda_would_and_can_be_used_afterwards():
    with Tap(total_memory=64 * MIB) as tap:
        first = torch.zeros(40 * MIB, dtype=torch.uint8)
        with pytest.raises(torch.OutOfMemoryError, match=r"Tried to allocate 40.00 MiB.*total capacity of 64.00 MiB"):
            torch.zeros(40 * MIB, dtype=torch.uint8)
        assert tap.allocated == 40 * MIB
        del first
        torch.zeros(60 * MIB, dtype=torch.uint8)
        assert tap.allocator.num_alloc_retries == 2  # the failure's, and the one that gave the cache back
        assert tap.peak == 60 * MIB


def test_running_out_inside_a_module_or_a_step_leaves_no_trace_on_the_names():
    model = nn.Sequential(nn.Linear(256, 256), nn.Linear(256, 2**14))
    with Tap(total_memory=60 * MIB) as tap:
        tap.adopt(model)
        with pytest.raises(torch.OutOfMemoryError):
            model(torch.ones(1000, 256))
        other = tap.by_category["other"]
        after_module = torch.ones(1000)
        assert tap.by_category["other"] == other + rounded(after_module.nbytes)
        for p in model.parameters():
            p.grad = torch.zeros_like(p)
        with pytest.raises(torch.OutOfMemoryError):
            torch.optim.AdamW(model.parameters()).step()
        held = tap.by_category["other"]
        after_step = torch.ones(1000)
        assert tap.by_category["other"] == held + rounded(after_step.nbytes)


@pytest.mark.parametrize("settings", ["", "expandable_segments:True"])
@pytest.mark.parametrize("card", [None, 256 * MIB, 40 * MIB])
def test_a_replay_is_what_a_run_on_that_card_would_have_been(card, settings):
    def run(tap):
        with tap:
            tap.mark("start")
            model = nn.Sequential(*(nn.Linear(512, 512) for _ in range(8)))
            optimizer = torch.optim.AdamW(model.parameters())
            try:
                for rows in (1000, 300, 2000):
                    model(torch.ones(rows, 512)).sum().backward()
                    optimizer.step()
                    optimizer.zero_grad()
                    tap.empty_cache()
            except torch.OutOfMemoryError:
                return tap.ledger
            return tap.ledger

    there = run(Tap(card, settings, fake=True))
    replayed = run(Tap(fake=True)).replay(1 << 50 if card is None else card, settings)
    assert bool(replayed.oom) == bool(there.oom) == (card == 40 * MIB)
    events = len(there.timeline)
    assert replayed.timeline[: events - 1] == there.timeline[: events - 1]
    assert replayed.peak == there.peak
    assert replayed.allocator.peak_reserved_bytes == there.allocator.peak_reserved_bytes
    assert replayed.peak_by_category == there.peak_by_category


# ---- as CUDA would --------------------------------------------------------------------------------------


def test_a_program_computes_the_same_numbers_under_the_tap():
    def run(watched):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Dropout(0.3), nn.LayerNorm(64), nn.Linear(64, 8))
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        losses = []
        with Tap() if watched else torch.enable_grad():
            for _ in range(4):
                loss = F.dropout(model(torch.ones(16, 32)), 0.2).pow(2).sum()
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                losses.append(loss.item())
        return losses

    assert run(True) == pytest.approx(run(False), rel=1e-6)
    assert run(True)[0] == run(False)[0]  # the same random bits


def test_optimizers_take_the_foreach_path_and_everything_is_put_back():
    from torch.nn.modules import module as modules
    from torch.optim import optimizer as optimizers

    def patched():
        hooks = len(modules._global_forward_hooks), len(modules._global_forward_pre_hooks)
        return optimizers._get_foreach_kernels_supported_devices, list(optimizers._foreach_supported_types), hooks

    before = patched()
    parameters = [nn.Parameter(torch.ones(1000, 100)) for _ in range(5)]
    for p in parameters:
        p.grad = torch.ones_like(p)
    with Tap() as tap:
        tap.adopt(parameters, category="parameter")
        torch.optim.AdamW(parameters).step()
        assert current() is tap
    assert current() is None
    each = 1000 * 100 * 4
    assert tap.peak >= 4 * 5 * each  # values, two moments, and all the square roots at once
    assert patched() == before
    assert not any(p._post_accumulate_grad_hooks for p in parameters)


def test_the_float32_list_is_the_one_that_cuda_autocast_is_compiled_from():
    text = (Path(torch.__file__).parent / "include/ATen/autocast_mode.h").read_text()
    names = set()
    for macro in ("FP32", "FP32_SET_OPT_DTYPE", "DIFFERENT_REDISPATCH_SIGNATURE"):
        body = text.split(f"#define AT_FORALL_{macro}(_)")[1].split("\n\n")[0]
        names |= set(re.findall(r"(?:_\(|ADD_NS\()(\w+)\s*[,)]", body))
    names = {n for n in names if "upsample" not in n and n != "ADD_NS"}
    made_of_them = {"cross_entropy", "cross_entropy_loss", "softmin", "normalize"}
    made_of_them |= {"__pow__", "__rpow__", "__rtruediv__"}
    assert names <= AUTOCAST_TO_FLOAT32
    if torch.__version__.startswith("2.13."):
        assert names == AUTOCAST_TO_FLOAT32 - made_of_them


def test_autocast_keeps_softmax_and_powers_in_float32_as_cuda_does():
    x = torch.ones(4, 4, dtype=torch.bfloat16)
    with Tap(), torch.autocast("cpu", dtype=torch.bfloat16):
        assert (x @ x).dtype == torch.bfloat16
        assert x.softmax(-1).dtype == (x**3).dtype == F.layer_norm(x, (4,)).dtype == torch.float32
        assert F.cross_entropy(x, torch.zeros(4, dtype=torch.long)).dtype == torch.float32
        assert (x + x).dtype == F.gelu(x).dtype == torch.bfloat16


def test_checkpointed_layers_see_cuda_dropout_in_the_recomputation_too():
    tap = Tap(fake=True)
    model = tap.build(lambda: gpt2(resid_pdrop=0.1))
    getattr(model, "activation_checkpointing_enable", model.gradient_checkpointing_enable)()
    with tap:
        ids = torch.zeros(2, 16, dtype=torch.long)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = model.train()(ids, labels=ids, use_cache=False).loss
        loss.backward()  # torch raises CheckpointError if the recomputation saves anything else
        assert all(p.grad is not None for p in model.parameters())


def test_a_tap_records_once():
    with Tap() as tap, pytest.raises(RuntimeError, match="already recording"):
        tap.__enter__()
