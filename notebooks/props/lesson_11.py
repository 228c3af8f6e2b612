"""Lesson 11: rows with and without data, an update on a simulated card, and the lesson's three pictures.

The update that is taught stands in the notebook and is an argument here. "Tapped" means: the real model runs on fake
tensors, which have shapes and lifetimes and no data, and PyTorch's allocator is simulated.

Models are built in processes of their own, two at a time. So transformers and peft are imported where a model is built:
the notebook's kernel does without them, which spares its start two seconds.
"""

import random
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from functools import partial
from typing import Any

import matplotlib.pyplot as plt
import torch
from matplotlib.figure import Figure

from labkit import checks, sandbox
from labkit.grpo import rollout, task
from labkit.grpo.advantage import group_advantage
from labkit.checks.report import PASS, CannotJudge, Verdict, attempt, fail, judged
from labkit.grpo.policy import Policy, load, token_logprobs

from .budget import predict
from .card import Tap
from .children import events_of

GIB, MIB = 2**30, 2**20
COLOURS = {  # of a tensor's category, in every picture of the lesson
    "weights": "#999999",
    "activations": "#56B4E9",
    "logits": "#D55E00",
    "the rest": "#DDDDDD",
}
NAMES = {"parameter": "weights", "activation": "activations", "logits": "logits"}

KEPT = {  # by shape, without the rows: what a GPT-2 layer saves at 256 tokens a row
    (256, 3072): "inside the MLP: four tensors for GELU",
    (12, 256, 64): "query, key, value, attention's output",
    (256, 768): "inputs of the two layer norms",
    (768,): "input of attention's matrix (LoRA is there)",
    (1, 256, 256): "attention's mask",
    (16,): "between LoRA's two matrices",
    (12, 256): "attention: a sum for each token",
    (256, 1): "layer norms: mean and deviation",
}

Update = Callable[[Any, torch.optim.Optimizer, "Rows"], Any]


@dataclass
class Rows:
    """Answers with their prompts, scored: what an update of GRPO reads. T tokens a row, t of them new."""

    ids: torch.Tensor  # [rows, T]
    attention_mask: torch.Tensor  # [rows, T], 0 = padding
    positions: torch.Tensor  # [rows, T]
    counted: torch.Tensor  # [rows, t], 0 = after the end of the answer
    old_logp: torch.Tensor  # [rows, t] nats
    advantages: torch.Tensor  # [rows, 1]

    @property
    def new(self) -> int:
        return self.counted.shape[1]

    @property
    def answers(self) -> torch.Tensor:
        return self.ids[:, -self.new :]

    def split(self, parts: int) -> list["Rows"]:
        """The same rows in so many equal parts."""
        tensors = [getattr(self, field.name).chunk(parts) for field in fields(self)]
        return [Rows(*columns) for columns in zip(*tensors, strict=True)]


def rows_without_data(rows: int, prompt: int, new: int) -> Rows:
    """Call it inside a tap: the tensors are fake."""
    ids = torch.zeros(rows, prompt + new, dtype=torch.long)
    ones = torch.ones(rows, new)
    return Rows(ids, torch.ones_like(ids), torch.zeros_like(ids), ones, ones, torch.ones(rows, 1))


@torch.no_grad()
def rows_of(policy: Policy, seed: int, prompts: int = 8, group: int = 8) -> Rows:
    """One rollout of the small policy on sums, with rewards and advantages."""
    add = task.get("add")
    asked = add.sample(prompts, random.Random(seed))
    generator = torch.Generator(policy.device).manual_seed(seed)
    out = rollout.generate(policy, asked, num_samples=group, generator=generator)
    rewards = task.rewards([prompt for prompt in asked for _ in range(group)], out.texts)
    scores = torch.tensor([float(reward) for reward in rewards], device=policy.device)
    new = out.tokens.shape[1]
    mask = out.attention_mask
    return Rows(
        ids=out.ids,
        attention_mask=mask,
        positions=(mask.cumsum(-1) - 1).clamp_min(0),
        counted=out.mask.float(),
        old_logp=token_logprobs(policy.model, out.ids, mask, new)[0],
        advantages=group_advantage(scores, group)[:, None],
    )


def build(lora: int = 16, layers: int = 12, vocabulary: int = 50_257) -> Any:
    """GPT-2 124M (or with other sizes), float32, without dropout; with LoRA on the attention's matrix."""
    from peft import LoraConfig, get_peft_model
    from transformers import GPT2Config, GPT2LMHeadModel

    off = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    config = GPT2Config(
        n_layer=layers, vocab_size=vocabulary, bos_token_id=0, eos_token_id=0, **off
    )
    model = GPT2LMHeadModel(config)
    if lora:
        adapter = LoraConfig(r=lora, target_modules=["c_attn"], fan_in_fan_out=True)
        with warnings.catch_warnings():  # peft 0.21 reads a name that transformers 5.23 retires
            warnings.simplefilter("ignore", FutureWarning)
            model = get_peft_model(model, adapter).get_base_model()
    return model.train()


def tapped(
    update: Update,
    card_gib: float | None = None,
    *,
    rows: int = 32,
    prompt: int = 128,
    new: int = 128,
    lora: int = 16,
    checkpointing: bool = False,
    vocabulary: int = 50_257,
) -> Tap:
    """One update of GPT-2 124M on a simulated card; the optimizer's state is there before it.

    card_gib   size of the card; None: no limit

    Raises: torch.OutOfMemoryError where the card refuses.
    """
    tap = Tap(None if card_gib is None else int(card_gib * GIB), fake=True)
    model = tap.build(lambda: build(lora, vocabulary=vocabulary))
    if checkpointing:  # its name before transformers 5.23, where it is the one there
        getattr(model, "activation_checkpointing_enable", model.gradient_checkpointing_enable)()
    with tap:
        tap.adopt(model)
        optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad])
        data = rows_without_data(rows, prompt, new)
        make_state(optimizer)
        tap.mark("the update")
        tap.reset_peak()
        update(model, optimizer, data)
        tap.mark("done")
    return tap


@dataclass(frozen=True)
class Tapped:
    """What pictures and tables need of a tap."""

    peak: int  # bytes
    peak_by_category: dict[str, int]
    over_time: dict[str, list[float]]  # as `over_time` returns it


def side_by_side(updates: dict[str, dict[str, Any]]) -> dict[str, Tapped]:
    """Name -> what is left of `tapped(**settings)`, from two processes that take half of the updates each."""
    names = list(updates)
    half = len(names) // 2
    parts = {"first": names[:half], "second": names[half:]}
    jobs = {
        part: {"updates": {name: updates[name] for name in some}}
        for part, some in parts.items()
        if some
    }
    pairs = [pair for events in _in_children(_each_tapped, jobs).values() for pair in events]
    return dict(pairs)


def _each_tapped(updates: dict[str, dict[str, Any]]) -> Iterator[tuple[str, Tapped]]:
    for name, settings in updates.items():
        tap = tapped(**settings)
        yield name, Tapped(tap.peak, dict(tap.peak_by_category), over_time(tap))


def _in_children(function: Callable[..., Any], settings: dict[str, Any]) -> dict[str, list[Any]]:
    runs = sandbox.run_all(function, settings)
    return {name: events_of(run, name) for name, run in runs.items()}


def refusal_of(update: Update, **settings: Any) -> str:
    """The message with which a simulated card refuses `tapped(update, **settings)`.

    Raises: ValueError where the update fits.
    """
    job = {"update": update, "settings": settings}
    return _refused(_in_children(_message_of, {"the update": job})["the update"][0], "the update")


def _message_of(update: Update, settings: dict[str, Any]) -> str | None:
    try:
        tapped(update, **settings)
    except torch.OutOfMemoryError as error:
        return str(error)
    return None


def _refused(message: str | None, name: str) -> str:
    if message is None:
        raise ValueError(f"{name} fits on its card: expected a refusal")
    return message


def make_state(optimizer: torch.optim.Optimizer) -> None:
    """A first step on zero gradients, so that AdamW's two moments exist."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    optimizer.zero_grad()


def row_of_qwen3(prompt: int, new: int) -> float:
    """GB (10^9 bytes) that the forward pass of Qwen3-0.6B keeps for one row, float32, with its logits for the answer.

    As TRL calls it: `logits_to_keep` is one more than the answer's tokens. Two rows less one row, with fake tensors.
    """
    from transformers import Qwen3Config, Qwen3ForCausalLM

    config = Qwen3Config(
        vocab_size=151_936,
        hidden_size=1024,
        intermediate_size=3072,
        num_hidden_layers=28,
        num_attention_heads=16,
        num_key_value_heads=8,
        head_dim=128,
        tie_word_embeddings=True,
    )
    tap = Tap(fake=True)
    model = tap.build(lambda: Qwen3ForCausalLM(config).train())

    def kept(rows: int) -> int:
        ids = torch.zeros(rows, prompt + new, dtype=torch.long)
        mask = torch.ones_like(ids)
        before = tap.allocated
        out = model(ids, attention_mask=mask, logits_to_keep=new + 1, use_cache=False)
        size = tap.allocated - before
        del out
        return size

    with tap:
        tap.adopt(model)
        return (kept(2) - kept(1)) / 1e9


def in_words(categories: dict[str, int]) -> dict[str, float]:
    """GiB by the lesson's words, from bytes by the tap's categories."""
    held = dict.fromkeys(COLOURS, 0.0)
    for category, size in categories.items():
        held[NAMES.get(category, "the rest")] += size / GIB
    return held


def saved_by_a_layer(rows: int, tokens: int, lora: int = 16) -> list[dict[str, Any]]:
    """What one layer saves for the backward pass: two layers' tensors less one layer's, summed by shape."""
    job = {"rows": rows, "tokens": tokens, "lora": lora}
    of_layers = _in_children(_saved, {f"{n} layers": job | {"layers": n} for n in (1, 2)})
    (one_layer,), (two_layers,) = of_layers.values()
    width = rows * tokens * 768 * 4  # bytes: float32, as wide as the model
    return [
        {"saved": shape, "what it is": KEPT.get(shape[1:], ""), "in widths of 768": size / width}
        for shape, size in (two_layers - one_layer).most_common()
    ]


def _saved(rows: int, tokens: int, lora: int, layers: int) -> Counter:
    """Shape -> bytes that a GPT-2 of so many layers saves for the backward pass, without its parameters."""
    tap, saved = Tap(fake=True), {}
    model = tap.build(lambda: build(lora, layers))
    own = {x.untyped_storage()._cdata for x in [*model.parameters(), *model.buffers()]}

    def pack(x: torch.Tensor) -> torch.Tensor:
        saved[x.untyped_storage()._cdata] = x  # of two views of one storage, one counts
        return x

    with tap, torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        ids = torch.zeros(rows, tokens, dtype=torch.long)
        model.transformer(input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False)
    sizes: Counter = Counter()
    for key, x in saved.items():
        if key not in own:
            sizes[tuple(x.shape)] += x.untyped_storage().nbytes()
    return sizes


def losses_of(
    arms: dict[str, Update], seeds: Sequence[int], model: str, device: str, updates: int = 4
) -> tuple[list[dict[str, Any]], dict[str, float]]:
    """Train the small policy for so many updates on one rollout, with each arm, for each seed.

    Returns a table with the last losses; and for each arm but the first the largest difference of a loss to the first's.
    """
    table, apart = [], dict.fromkeys(list(arms)[1:], 0.0)
    run = {"arms": arms, "model": model, "device": device, "updates": updates}
    runs = _in_children(_losses, {f"seed {seed}": run | {"seed": seed} for seed in seeds})
    for seed, (losses,) in zip(seeds, runs.values(), strict=True):
        table.append({"seed": seed} | {f"loss {updates}, {n}": losses[n][-1] for n in arms})
        first = next(iter(losses.values()))
        for name in apart:
            far = [abs(one - other) for one, other in zip(first, losses[name], strict=True)]
            apart[name] = max(apart[name], *far)
    return table, apart


def _losses(
    arms: dict[str, Update], seed: int, model: str, device: str, updates: int
) -> dict[str, list[float]]:
    """Arm -> the loss of each update, in nats, on the rollout of `seed`."""
    rows = rows_of(load(model, device), seed)
    losses = {}
    for name, update in arms.items():
        trained = load(model, device).model
        optimizer = torch.optim.AdamW(trained.parameters(), lr=5e-5)
        losses[name] = [update(trained, optimizer, rows).item() for _ in range(updates)]
    return losses


def until_refused(
    update: Update,
    card_gib: float,
    new_tokens: Sequence[int],
    *,
    keep_logits: bool = False,
    rows: int = 18,
    prompt: int = 128,
) -> dict[str, Any]:
    """Updates on a simulated card, one for each number of new tokens, until one is refused.

    keep_logits   a logger holds the logits of every update: a leak

    Returns the number of the update that died, what was in tensors before it (GiB), and its new tokens.
    """
    tap = Tap(int(card_gib * GIB), fake=True)
    model = tap.build(build)
    kept: list[torch.Tensor] = []
    if keep_logits:
        model.register_forward_hook(lambda *call: kept.append(call[2].logits.detach()))
    with tap:
        tap.adopt(model)
        optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad])
        make_state(optimizer)
        for number, new in enumerate(new_tokens, 1):
            before = tap.allocated / GIB
            try:
                update(model, optimizer, rows_without_data(rows, prompt, new))
            except torch.OutOfMemoryError as error:
                found = {"dies in update": number, "in tensors before it, GiB": before}
                return found | {"new tokens": new, "message": str(error)}
    raise ValueError(
        f"all {len(new_tokens)} updates fit in {card_gib} GiB: expected one to be refused"
    )


def ends_side_by_side(
    ends: dict[str, dict[str, Any]], **qwen3: int
) -> tuple[dict[str, dict[str, Any]], float]:
    """Name -> what `until_refused(**settings)` returns; and `row_of_qwen3(**qwen3)`. Each in a process of its own."""
    jobs = {name: {"function": until_refused, "settings": end} for name, end in ends.items()}
    jobs["Qwen3"] = {"function": row_of_qwen3, "settings": qwen3}
    found = {name: events[0] for name, events in _in_children(_call, jobs).items()}
    row = found.pop("Qwen3")
    return found, row


def _call(function: Callable[..., Any], settings: dict[str, Any]) -> Any:
    return function(**settings)


def over_time(tap: Tap) -> dict[str, list[float]]:
    """GiB by category after every allocation and free of the last update."""
    live: dict[int, tuple[str, int]] = {}
    held: Counter = Counter()
    lines: dict[str, list[float]] = {name: [] for name in COLOURS}
    for event, *details in tap.log:
        if details == ["done"]:
            break
        if event == "mark":
            lines = {name: [] for name in COLOURS}
            continue
        if event not in ("malloc", "free", "relabel"):
            continue
        number = details[0]
        if event != "malloc":
            category, size = live.pop(number)
            held[category] -= size
        if event != "free":
            size = details[1] if event == "malloc" else size
            category = NAMES.get(details[-1], "the rest")
            live[number] = (category, size)
            held[category] += size
        for name, line in lines.items():
            line.append(held[name] / GIB)
    return lines


def picture_of_updates(taps: dict[str, Tapped], title: str, card_gib: float = 8) -> Figure:
    """One panel for each tapped update, its tensors piled up by category, with the card's size as a line."""
    figure, panels = plt.subplots(
        1, len(taps), figsize=(8, 3.0), layout="constrained", sharey=True, squeeze=False
    )
    for axes, (name, tap) in zip(panels[0], taps.items(), strict=True):
        lines = tap.over_time
        axes.stackplot(
            range(len(lines["weights"])),
            *lines.values(),
            labels=list(lines),
            colors=[COLOURS[name] for name in lines],
        )
        axes.axhline(card_gib, color="black", linestyle="--", linewidth=1)
        axes.annotate(f"a card of {card_gib:g} GiB", (0, card_gib * 1.03), fontsize=8)
        total = [sum(column) for column in zip(*lines.values(), strict=True)]
        top = max(range(len(total)), key=total.__getitem__)
        axes.plot(top, total[top], "v", color="black")
        axes.annotate(f"  peak {total[top]:.1f} GiB", (top, total[top]), fontsize=8, va="bottom")
        axes.set_title(name, fontsize=9)
        axes.set_xlabel("allocations and frees of one update")
        axes.margins(x=0.02)
    panels[0][0].set_ylabel("GiB in tensors (simulated)")
    panels[0][0].set_ylim(0, 12)
    figure.legend(
        *panels[0][0].get_legend_handles_labels(), loc="outside lower center", ncols=4, fontsize=8
    )
    figure.suptitle(title, fontsize=10)
    plt.close(figure)
    return figure


def saved_by_shorter_answers(peak_of: Callable[[int, int], float], prompt: int) -> float:
    """% of the peak that 96 answer tokens save over 128; `peak_of(prompt, new)`."""
    return 100 * (1 - peak_of(prompt, 96) / peak_of(prompt, 128))


def picture_of_savings(
    taps: dict[str, Tapped], by_hand: Callable[[int, int, int], dict[str, float]], rows: int = 32
) -> Figure:
    """Left: what is held at the peak of each tap. Right: what shorter answers save, by prompt length.

    by_hand   (rows, prompt, new) -> the peak by category
    """
    figure, (left, right) = plt.subplots(
        1, 2, figsize=(8.4, 3.7), layout="constrained", width_ratios=[1.25, 1]
    )

    def pencil(prompt: int, new: int) -> float:
        return sum(by_hand(rows, prompt, new).values())

    def predicted(prompt: int, new: int) -> float:
        return predict("124M", batch=rows, prompt=prompt, new_tokens=new, lora=16).peak

    lines = {at: saved_by_shorter_answers(pencil, at) for at in range(16, 513, 16)}
    dots = {at: saved_by_shorter_answers(predicted, at) for at in (32, 128, 256, 512)}
    for name, tap in taps.items():
        start = 0.0
        for part, size in in_words(tap.peak_by_category).items():
            left.barh(name, size, left=start, color=COLOURS[part], label=part)
            start += size
        left.annotate(f" {start:.1f}", (start, name), fontsize=8, va="center")
    left.axvline(8, color="black", linestyle="--", linewidth=1)
    left.set_xlim(0, 14.5)
    left.set_xlabel("GiB at the peak of an update (simulated)")
    left.tick_params(axis="y", labelsize=8)
    left.annotate(" a card of 8 GiB", (8, -0.6), fontsize=8)
    left.set_ylim(len(taps) - 0.35, -1.2)
    handles, labels = left.get_legend_handles_labels()
    parts = len(COLOURS)
    figure.legend(
        handles[:parts], labels[:parts], fontsize=8, loc="outside lower left", ncols=parts
    )
    right.plot(list(lines), list(lines.values()), color="black", label="by hand")
    right.plot(list(dots), list(dots.values()), "o", color="#D55E00", label="predicted")
    right.set_xlabel("tokens of the prompt")
    right.set_ylabel("% of the peak saved")
    right.set_ylim(0, 25)
    right.legend(fontsize=8)
    left.set_title("Rows and tokens fill the card, the rank does not", fontsize=9)
    right.set_title("The longer the prompt, the less\n96 answer tokens save over 128", fontsize=9)
    plt.close(figure)
    return figure


REFUSED = {  # exercise B: settings of `tapped`, and the card
    "P": {"card_gib": 9, "rows": 32, "prompt": 64, "new": 192},
    "Q": {"card_gib": 6, "rows": 8, "prompt": 512, "new": 256},
    "R": {"card_gib": 4, "rows": 24, "prompt": 96, "new": 160},
    "S": {"card_gib": 8, "rows": 12, "prompt": 256, "new": 512},
}


def four_refusals(update: Update) -> list[dict[str, Any]]:
    """What four runs on simulated cards were refused, with their settings."""
    runs = {name: {"update": update, "settings": settings} for name, settings in REFUSED.items()}
    table = []
    for name, events in _in_children(_message_of, runs).items():
        settings = REFUSED[name]
        sizes = {key: settings[key] for key in ("rows", "prompt", "new")}
        tried = _refused(events[0], name).split(". ")[1].removeprefix("Tried to allocate ")
        table.append({"run": name} | sizes | {"tried to allocate": tried})
    return table


def tensor_of(row: dict[str, Any]) -> str:
    """The tensor whose size by hand is nearest to what a row of `four_refusals` was refused."""
    amount, unit = row["tried to allocate"].split()
    tried = float(amount) * {"MiB": MIB, "GiB": GIB}[unit]
    rows, tokens = row["rows"], row["rows"] * (row["prompt"] + row["new"])
    sizes = {
        "all logits": tokens * 50_257 * 4,
        "answer logits": rows * row["new"] * 50_257 * 4,
        "inside the MLP": tokens * 4 * 768 * 4,
        "query, key, value": tokens * 3 * 768 * 4,
    }
    return min(sizes, key=lambda name: abs(sizes[name] / tried - 1))


def names_the_tensors(
    refusals: list[dict[str, Any]], answer: Callable[[], dict[str, str]]
) -> checks.Report:
    """Judge `answer()`: run -> which tensor was refused."""

    def judge(evidence: dict[str, Any]) -> Verdict:
        said = attempt(answer)
        wrong = [row["run"] for row in refusals if said.get(row["run"]) != tensor_of(row)]
        return fail(f"Not yet: {', '.join(wrong)}. Multiply for that run.") if wrong else PASS

    return judged("names_the_tensors", "each refused tensor has its name", answer, judge)


def holds_few_logits(answer: Callable[..., torch.Tensor]) -> checks.Report:
    """Judge `answer(head, hidden, answers)`: the usual log-probs and gradients, and never half of the logits at once."""

    def usual(head: Any, hidden: torch.Tensor, answers: torch.Tensor) -> torch.Tensor:
        return head(hidden).log_softmax(-1).gather(-1, answers[..., None]).squeeze(-1)

    def small(function: Callable[..., torch.Tensor]) -> list[torch.Tensor]:
        generator = torch.Generator().manual_seed(0)
        head = torch.nn.Linear(16, 50, bias=False)
        head.weight.data = torch.randn(50, 16, generator=generator)
        hidden = torch.randn(2, 150, 16, generator=generator).requires_grad_()
        answers = torch.randint(50, (2, 150), generator=generator)
        logp = function(head, hidden, answers)
        if logp.shape != (2, 150):
            raise CannotJudge("Expected one log-prob for each token.", returned=tuple(logp.shape))
        (logp * torch.randn(2, 150, generator=generator)).sum().backward()
        return [logp.detach(), hidden.grad, head.weight.grad]

    def judge(evidence: dict[str, Any]) -> Verdict:
        expected, returned = small(usual), small(partial(attempt, answer))
        for name, one, other in zip(
            ("log-probs", "gradient", "gradient"), expected, returned, strict=True
        ):
            if (
                other is None
                or one.shape != other.shape
                or not torch.allclose(one, other, atol=1e-4)
            ):
                return fail(
                    f"On a small head the {name} are not those of the formula in one piece."
                )
        tap = Tap(fake=True)
        head = tap.build(lambda: torch.nn.Linear(768, 151_936, bias=False).requires_grad_(False))
        with tap:
            tap.adopt(head)
            hidden = torch.zeros(1, 896, 768, requires_grad=True)
            before = tap.allocated
            tap.reset_peak()
            attempt(answer, head, hidden, torch.zeros(1, 896, dtype=torch.long)).sum().backward()
        evidence["logits in one piece"] = f"{896 * 151_936 * 4 / MIB:.0f} MiB"
        evidence["held at the peak"] = f"{(tap.peak - before) / MIB:.0f} MiB"
        if tap.peak - before > 896 * 151_936 * 2:
            return fail(
                "Too much is held. What does the graph keep of each chunk until the backward pass?"
            )
        return PASS

    return judged("holds_few_logits", "the usual log-probs, a few logits at a time", answer, judge)
