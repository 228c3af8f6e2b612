"""The texts that libraries raise, assert and warn with: found in their sources, and compared with those triage knows.

    python scripts/triage/vocabulary.py                 coverage: texts known of texts found, per library and version
    python scripts/triage/vocabulary.py --unknown trl   the texts of a library that triage does not know
    python scripts/triage/vocabulary.py --source vllm DIR 0.11   read a library that is not installed from DIR
    python scripts/triage/vocabulary.py --add           sort new texts into classes, and write them into the data
    python scripts/triage/vocabulary.py --write         write docs/vocabulary.md

What is known is data: scripts/triage/vocabulary.jsonl, one text a line, `{}` where a value stands. Only files that a
GRPO run goes through are read (FILES). Texts that C++ writes are not found by this script; those in the data were
looked up.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata, util
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT))

from labkit.common import write_whole  # noqa: E402

KNOWN = Path(__file__).with_name("vocabulary.jsonl")
CLASSES = ROOT / "labkit" / "triage" / "vocabulary.toml"
PAGE = ROOT / "docs" / "vocabulary.md"
HEAD = """# What libraries say when a run breaks

Made by `python scripts/triage/vocabulary.py --write`: the texts that libraries raise, assert and warn with, in the
files that a GRPO run goes through, and how many of them `labkit triage` knows. A text is known when
vocabulary.jsonl has it, with a class of vocabulary.toml: a cause of this course, or `other` and what to do. Texts
were sorted into classes by their words; a sorted text is a likely cause, never a settled one. A text that is in no
class is not known; of an error with such a text triage says which known logs it resembles.

"""

# The files of each library that a GRPO run goes through, as patterns below its folder, blanks between.
FILES = {
    "trl": (
        "trainer/grpo_*.py trainer/base*.py trainer/_base*.py trainer/utils.py trainer/callbacks.py "
        "generation/*.py extras/vllm_client.py models/utils.py models/activation_offloading.py data_utils.py "
        "chat_template_utils.py import_utils.py _compat.py scripts/vllm_serve.py rewards/*.py"
    ),
    "transformers": (
        "trainer.py trainer_*.py training_args.py generation/utils.py generation/logits_process.py "
        "generation/configuration_utils.py modeling_utils.py masking_utils.py cache_utils.py "
        "modeling_flash_attention_utils.py integrations/deepspeed.py integrations/peft.py "
        "integrations/sdpa_*.py quantizers/*.py tokenization_utils_base.py data/data_collator.py "
        "modeling_layers.py"
    ),
    "accelerate": ("accelerator.py state.py data_loader.py optimizer.py utils/*.py commands/launch.py"),
    "peft": ("peft_model.py tuners/tuners_utils.py tuners/lora/*.py utils/*.py mapping*.py config.py"),
    "datasets": ("arrow_dataset.py load.py builder.py table.py formatting/*.py features/features.py"),
    "torch": (
        "autograd/__init__.py autograd/graph.py nn/functional.py nn/modules/module.py cuda/__init__.py "
        "nn/parallel/*.py distributed/distributed_c10d.py distributed/rendezvous.py distributed/fsdp/*.py "
        "distributed/elastic/multiprocessing/*.py distributed/elastic/rendezvous/*.py "
        "distributed/launcher/api.py optim/optimizer.py optim/lr_scheduler.py amp/*.py utils/checkpoint.py "
        "utils/data/dataloader.py utils/data/_utils/*.py serialization.py nn/utils/clip_grad.py _tensor.py "
        "distributions/*.py"
    ),
    "vllm": (
        "v1/engine/*.py v1/worker/gpu_*.py v1/worker/utils.py v1/core/*.py v1/sample/*.py engine/*.py "
        "config/*.py worker/worker.py sampling_params.py lora/*.py device_allocator/*.py v1/utils.py "
        "distributed/parallel_state.py entrypoints/llm.py v1/executor/*.py model_executor/models/utils.py"
    ),
    "verl": (
        "trainer/main_ppo.py trainer/ppo/*.py workers/*.py workers/actor/*.py workers/rollout/**/*.py "
        "workers/sharding_manager/*.py workers/reward_manager/*.py single_controller/**/*.py utils/*.py "
        "utils/reward_score/*.py protocol.py utils/dataset/*.py workers/config/*.py"
    ),
    "deepspeed": (
        "runtime/engine.py runtime/config.py runtime/zero/*.py runtime/fp16/*.py runtime/bf16_*.py "
        "runtime/utils.py comm/comm.py __init__.py runtime/swap_tensor/*.py ops/op_builder/builder.py"
    ),
    "bitsandbytes": ("functional.py autograd/*.py nn/*.py optim/*.py cextension.py cuda_specs.py"),
}
LOGGED = {"warn", "warning", "warning_once", "warning_advice", "error", "exception", "critical"}


@dataclass(frozen=True)
class Site:
    """A text, `{}` where a value stands, and where it is written."""

    kind: str  # raise, assert or warn
    error: str  # the exception's name, "" for a warning
    text: str
    where: str


def texts(path: Path, inside: str) -> Iterator[Site]:
    """The texts of one file; those of fewer than twelve plain characters say too little to be recognised."""
    tree = ast.parse(path.read_text(encoding="utf-8", errors="replace"))
    for node in ast.walk(tree):
        kind, error, told = "", "", None
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and node.exc.args:
            kind, error, told = "raise", _name(node.exc.func), node.exc.args[0]
        elif isinstance(node, ast.Assert) and node.msg is not None:
            kind, error, told = "assert", "AssertionError", node.msg
        elif isinstance(node, ast.Call) and _name(node.func) in LOGGED and node.args:
            kind, told = "warn", node.args[0]
        text = " ".join(_template(told).split()) if told is not None else ""
        if len(re.sub(r"\{\}|\W", "", text)) >= 12:
            yield Site(kind, error, text, f"{inside}:{node.lineno}")


def _name(func: ast.expr) -> str:
    return func.attr if isinstance(func, ast.Attribute) else func.id if isinstance(func, ast.Name) else ""


def _template(node: ast.expr) -> str:
    """The text of an expression, `{}` for what is not written there."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else "{}"
    if isinstance(node, ast.JoinedStr):
        return "".join(_template(part) for part in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _template(node.left) + _template(node.right)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod):
        return re.sub(r"%[-+ #0-9.]*[sdrfgx]", "{}", _template(node.left))
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in ("format", "join"):
        return re.sub(r"\{[^{}]*\}", "{}", _template(node.func.value)) if node.func.attr == "format" else "{}"
    return "{}"


def library(name: str, folder: Path) -> list[Site]:
    """Every text of a library's files, each once."""
    found: dict[str, Site] = {}
    for pattern in FILES[name].split():
        for path in sorted(folder.glob(pattern)):
            for site in texts(path, f"{name}/{path.relative_to(folder).as_posix()}"):
                found.setdefault(site.text, site)
    return list(found.values())


def installed(name: str) -> tuple[Path, str] | None:
    """Where a library is installed, and its version. None: it is not."""
    spec = util.find_spec(name)
    if spec is None or spec.origin is None:
        return None
    return Path(spec.origin).parent, metadata.version(name).split("+")[0]


def classes() -> dict[str, re.Pattern[str]]:
    """Each class of texts with the pattern of its words; classes that are only filled by hand have none."""
    import tomllib

    table = tomllib.loads(CLASSES.read_text(encoding="utf-8"))["class"]
    return {name: re.compile("|".join(row["words"]), re.IGNORECASE) for name, row in table.items() if row["words"]}


def sorted_into(site: Site, known: dict[str, re.Pattern[str]]) -> str:
    """The first class whose words stand in the text; "" when none does: the text is not known then."""
    line = f"{site.error} | {site.kind} | {site.text} | {site.where}"
    return next((name for name, words in known.items() if words.search(line)), "")


def known_texts() -> list[dict[str, str]]:
    return [json.loads(line) for line in KNOWN.read_text(encoding="utf-8").splitlines()] if KNOWN.exists() else []


def add(name: str, version: str, sites: list[Site]) -> None:
    """Write the texts of a library that some class takes into the data, in place of those of another version."""
    sort = classes()
    rows = [row for row in known_texts() if row["in"].split()[0] != name or row["kind"] == "looked up"]
    by_hand = {row["text"]: row["class"] for row in rows if row["kind"] == "looked up"}
    for site in sites:
        corrected = next((cls for text, cls in by_hand.items() if site.text.startswith(text)), "")
        if found := corrected or sorted_into(site, sort):
            rows.append({"in": f"{name} {version}", "kind": site.kind, "text": site.text, "class": found})
    rows.sort(key=lambda row: (row["kind"] == "looked up", row["in"], row["class"], row["text"]))
    write_whole(KNOWN, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))


def coverage(found: dict[str, tuple[str, list[Site]]]) -> str:
    """A table: of the texts found in each library, how many are known, with a cause of the course, or with advice."""
    rows = known_texts()
    table = _classes_with_cause()
    lines = ["| library | version | texts found | known | a cause of this course | other, and what to do | notices |"]
    lines.append("| --- | --- | ---: | ---: | ---: | ---: | ---: |")
    total = [0, 0, 0, 0, 0]
    for name, (version, sites) in found.items():
        of = {row["text"]: table[row["class"]] for row in rows if row["in"] == f"{name} {version}"}
        kinds = [of[site.text] for site in sites if site.text in of]
        with_cause = sum(kind not in ("", "other") for kind in kinds)
        counts = [len(sites), len(kinds), with_cause, kinds.count("other"), kinds.count("")]
        total = [a + b for a, b in zip(total, counts, strict=True)]
        lines.append(f"| {name} | {version} | {_cells(counts)} |")
    lines.append(f"| all | | {_cells(total)} |")
    by_hand = sum(row["kind"] == "looked up" for row in rows)
    lines += ["", f"Looked up beside these, from C++, CUDA, NCCL, Ray and programs around them: {by_hand} texts."]
    return "\n".join(lines)


def _cells(counts: list[int]) -> str:
    found, known, *rest = counts
    return " | ".join([str(found), f"{known} ({known / max(found, 1):.0%})", *map(str, rest)])


def _classes_with_cause() -> dict[str, str]:
    import tomllib

    table = tomllib.loads(CLASSES.read_text(encoding="utf-8"))["class"]
    return {name: row["cause"] for name, row in table.items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--unknown", metavar="NAME", help="print the texts of this library that are not known")
    parser.add_argument("--add", action="store_true", help="sort new texts into classes and write them into the data")
    parser.add_argument("--source", nargs=3, action="append", default=[], metavar=("NAME", "DIR", "VERSION"))
    parser.add_argument("--write", action="store_true", help="write docs/vocabulary.md (needs every library)")
    args = parser.parse_args()
    places = {name: at for name in FILES if (at := installed(name))}
    places |= {name: (Path(folder), version) for name, folder, version in args.source}
    found = {name: (version, library(name, folder)) for name, (folder, version) in places.items()}
    if args.add:
        for name, (version, sites) in found.items():
            add(name, version, sites)
    if args.unknown:
        known = {row["text"] for row in known_texts()}
        print(*(f"{s.where}: {s.text}" for s in found[args.unknown][1] if s.text not in known), sep="\n")
        return 0
    text = coverage(found)
    print(text)
    if args.write and not (missing := sorted(set(FILES) - set(found))):
        write_whole(PAGE, HEAD + text + "\n")
    elif args.write:
        raise SystemExit(f"--write: {', '.join(missing)} not installed; name its source with --source NAME DIR VERSION")
    return 0


if __name__ == "__main__":
    sys.exit(main())
