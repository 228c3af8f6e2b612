import importlib.util
import json
import os
import random
from pathlib import Path

import pytest
from cut import bug_cells, installed, path_of

from labkit.checks.setting_applies import CANARY, first_use, setting_applies
from labkit.memory import explain, owner
from labkit.memory.allocator import Allocator, OutOfMemory

OLD, NEW = "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"
ON = "expandable_segments:True"
GIB = 2**30


def by_version(version, environ):
    """The new name where it is read; there the old one must go, since it would win."""
    numbers = tuple(int(n) for n in version.split(".")[:2])
    if numbers < (2, 10):
        return {**environ, OLD: ON}
    return {**{n: v for n, v in environ.items() if n != OLD}, NEW: ON}


def always_old(version, environ):
    return {**environ, OLD: ON}


def test_the_check_that_passes_on_the_fix_fails_on_the_bug_cut_out_of_the_lesson():
    bug = setting_applies(bug_cells("07")["report_environment"])
    assert not bug and bug.seen["torch"] == "2.6.0" and "does not read" in bug.hint
    assert setting_applies(always_old, device="cpu")
    assert setting_applies(by_version, device="cpu").seen["a new process here"] == "reads it"


@pytest.mark.parametrize(
    "wrong, words",
    [
        (lambda version, environ: {**environ, OLD: ON, NEW: ON} if version >= "2.9" else {**environ, NEW: ON}, "2.6.0"),
        (lambda version, environ: {**environ, (NEW if version >= "2.9" else OLD): ON}, "2.9.1"),  # the warning obeyed
        (lambda version, environ: {**environ, (OLD if version < "2.10" else NEW): ON}, "2.6.0"),  # "2.6" > "2.10"
        (lambda version, environ: {OLD: ON}, "inherited environment was lost"),
        (lambda version, environ: {"PATH": "", OLD: ON}, "inherited environment was lost"),
        (lambda version, environ: {"PATH": environ["PATH"], "HOME": environ["HOME"], OLD: ON}, "LD_LIBRARY_PATH"),
        (lambda version, environ: {**environ, "PATH": "/opt:" + environ["PATH"], OLD: ON}, "changed [PATH]"),
        (lambda version, environ: {n: v for n, v in environ.items() if v} | {OLD: ON}, "changed [LD_LIBRARY_PATH]"),
        (lambda version, environ: {**environ, OLD: "expandable_segments:true"}, "reads PYTORCH_CUDA_ALLOC_CONF alone"),
        (lambda version, environ: {**environ, OLD: "expandible_segments:True"}, "reads PYTORCH_CUDA_ALLOC_CONF alone"),
        (lambda version, environ: {**environ, OLD: True}, "texts only"),
        (lambda version, environ: environ.update({OLD: ON}), "return is missing"),
        (lambda version, environ: ON, "Expected a dict"),
        (None, "no function yet"),
    ],
)
def test_environments_that_do_not_switch_it_on_are_refused_and_say_why(wrong, words):
    report = setting_applies(wrong, prove=False)
    assert not report and words in repr(report), report


@pytest.mark.parametrize(
    "right",
    [
        always_old,
        lambda version, environ: environ.update({OLD: ON}) or environ,  # in place
        lambda version, environ: dict(environ, CUDA_VISIBLE_DEVICES="0", **{OLD: ON}),  # more may be added
        lambda version, environ: {n: v for n, v in environ.items() if "ALLOC_CONF" not in n} | {OLD: ON},
    ],
)
def test_an_environment_that_keeps_the_rest_passes(right):
    report = setting_applies(right, prove=False)
    assert report, report


def test_the_environment_of_this_process_is_compared_too(monkeypatch):
    monkeypatch.setenv("LABKIT_TEST_ONLY", "1")
    inherited = ("PATH", "HOME", "LD_LIBRARY_PATH", "WANDB_MODE")
    some = setting_applies(lambda v, environ: {n: environ[n] for n in inherited if n in environ} | {OLD: ON})
    assert not some and "inherited environment was lost" in some.hint, some
    assert "LABKIT_TEST_ONLY" in some.seen["lost or changed"]


def test_a_new_name_beside_an_inherited_old_one_is_found_out():
    report = setting_applies(lambda version, environ: {**environ, NEW: ON}, versions=["2.13.0"], prove=False)
    assert not report and report.seen["inherited"] == f"{OLD}=max_split_size_mb:256"


def test_the_proof_is_torchs_own_and_not_the_tables(monkeypatch):
    """With a table that believes in another name, the process still says that nobody reads it."""
    from labkit.memory import settings

    monkeypatch.setattr(settings, "_reads", lambda version: ["PYTORCH_HIP_ALLOC_CONF"])
    hip_and_old = {"PYTORCH_HIP_ALLOC_CONF": ON, OLD: "max_split_size_mb:64"}
    hip = setting_applies(lambda version, environ: {**environ, **hip_and_old}, device="cpu")
    assert not hip and hip.seen["a new process here"] == "does not read it"


def test_a_variable_set_after_the_first_use_is_not_read_and_one_set_before_is():
    from labkit import sandbox

    def process(early):
        if early:
            os.environ[OLD] = CANARY
        first_use("cpu")
        bug_cells_configure(CANARY)
        first_use("cpu")
        yield os.environ[NEW]

    bug_cells_configure = bug_cells("07")["configure"]
    late = sandbox.run(process, False)
    assert late.outcome and late.events == [CANARY]
    assert "max_split_size_mb" in sandbox.run(process, True).outcome.message


@pytest.fixture(scope="module")
def lesson():
    """The lesson's program of requests, and what plays it: (requests of a seed, play, Emptying)."""
    wanted = ("LAYERS, WIDTH", "def evaluate(", "def rollout(", "def training_step(", "def grpo(", "class Requests(")
    wanted += ("def play(", "class Emptying(")
    space = {"Allocator": Allocator, "OutOfMemory": OutOfMemory, "torch": pytest.importorskip("torch")}
    for cell in json.loads(path_of("07").read_text())["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "code" and source.startswith(wanted):
            exec(compile(source, "lesson 07", "exec"), space)

    def requests(seed):
        dice, made = random.Random(seed), space["Requests"]()
        space["grpo"](made, [new + dice.randrange(-6, 7) for new in (400, 200, 300, 100)])
        return made

    return requests, space["play"], space["Emptying"]


SAVED_BY = {0: "kv-cache gradient", 1: "gradient", 2: "kv-cache gradient", 3: "", 4: "kv-cache activation", 5: ""}


@pytest.mark.parametrize("seed", list(SAVED_BY))
def test_after_which_kind_empty_cache_saves_the_run_is_as_the_lesson_says(lesson, seed):
    requests, play, emptying = lesson
    made, saved = requests(seed), []
    for kind in emptying.after:
        card = emptying(int(3.6 * GIB))
        card.after = (kind,)
        if play(made, card)[1] is None:
            saved.append(kind)
    assert " ".join(saved) == SAVED_BY[seed]
    assert play(made, Allocator(int(3.6 * GIB), ON))[1] is None


def test_a_refusal_can_say_fragments_with_the_setting_in_force(lesson):
    requests, play, _ = lesson
    _, refusal = play(requests(2), Allocator(int(3.4 * GIB), ON))
    assert owner(refusal).verdict == "fragments"


def test_the_pinned_torch_of_nanochat_does_not_read_its_line():
    assert explain(None, {NEW: ON}, "2.9.1").honoured is None
    assert explain(None, {NEW: ON}, "2.10.0").honoured == NEW


def test_the_setters_older_name_is_deprecated_in_the_installed_torch():
    source = installed("torch", "cuda/memory.py")
    before, after = source.split("def _set_allocator_settings(", 1)
    assert "torch.cuda._set_allocator_settings is deprecated" in before[-300:]
    assert "_accelerator_setAllocatorSettings(env)" in after[:200]


def test_the_installed_header_reads_the_old_name_first_and_the_new_one_only_without_it():
    header = installed("torch", "include/c10/cuda/CUDAAllocatorConfig.h")
    reads = header.split("static CUDAAllocatorConfig& instance()")[1].split("parseArgs")[0]
    assert reads.index(f'get_env("{OLD}")') < reads.index("!env.has_value()") < reads.index(f'get_env("{NEW}")')


def test_launchers_hand_on_the_environment():
    handler = "distributed/elastic/multiprocessing/subprocess_handler/subprocess_handler.py"
    assert "env_vars = os.environ.copy()" in installed("torch", handler)
    assert installed("accelerate", "utils/launch.py").count("current_env = os.environ.copy()") >= 2


@pytest.mark.parametrize("package", ["transformers", "trl", "accelerate"])
def test_no_file_of_the_trainers_sets_it(package):
    found = importlib.util.find_spec(package)
    if found is None or found.origin is None:
        pytest.skip(f"{package} is not installed")
    texts = {file: file.read_bytes() for file in Path(found.origin).parent.rglob("*.py")}
    assert not [file for file, text in texts.items() if b"ALLOC_CONF" in text or b"expandable_segments" in text]


def test_the_trainers_have_the_options_that_the_lesson_names():
    assert "torch_empty_cache_steps" in installed("transformers", "training_args.py")
    assert "torch_empty_cache_steps" in installed("trl", "trainer/base_config.py")
    assert "vllm_enable_sleep_mode" in installed("trl", "trainer/grpo_config.py")
