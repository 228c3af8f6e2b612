"""Recordings: what was kept comes back exact, what was left out is said, and an old or made-up one is known as such.

The recordings written here come from no GPU and say so: device "cpu", in folders of the tests.
"""

import copy
import gzip
import json
import math
import os
import random
import subprocess
import venv
from dataclasses import dataclass, field
from pathlib import Path

import nbformat
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import labkit
from labkit import course, recordings
from labkit.events import Outcome, Run, Step
from labkit.recordings import evidence, fit, schema, writing

ROOT = Path(__file__).resolve().parents[1]
FACTS = {"python": "3.11.7", "torch": "2.13.0+cpu", "transformers": "5.23.0", "gpu": [], "driver": None}
STDERR = "block: [0,0,0] Assertion `probability tensor contains either `inf`, `nan` or element < 0` failed.\n"


@dataclass
class Lesson:
    """A lesson that has run, as `labkit.course` would hand it over."""

    path: Path
    number: str = "01"
    title: str = "A small lesson"
    verdicts: list = field(
        default_factory=lambda: [{"result": "pass", "claim": "it dies", "seen": "round 2"}]
    )
    seconds: float = 1.5
    error: str = ""
    missing: list = field(default_factory=list)

    @property
    def ok(self):
        return not self.error


def notebook(path, *cells, tags=()):
    """Cells: code, or Markdown where the text starts with '#'. `tags` maps the place of a cell to its tags."""
    book = nbformat.v4.new_notebook(
        metadata={"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    )
    make = lambda text: (
        nbformat.v4.new_markdown_cell if text.startswith("#") else nbformat.v4.new_code_cell
    )(text)
    book.cells = [make(text) for text in cells]
    for place, names in dict(tags).items():
        book.cells[place].metadata["tags"] = list(names)
    path.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(book, path)
    return path


def crashed():
    steps = [
        Step(1, grad_norm=1.5, kl=0.0, reward=0.25, extra={"kl/add": 0.5}),
        Step(2, grad_norm=math.inf, kl=math.nan, nonfinite_params=7, skipped=True),
    ]
    outcome = Outcome(
        "device-assert:multinomial", 1, None, "AcceleratorError", "CUDA error: device-side assert triggered",
        "Traceback (most recent call last):\n  boom\n", 710, "", STDERR, math.nan,
    )  # fmt: skip
    return Run([steps[0], {"note": "between"}, steps[1]], outcome, {"label": "bug", "mu": 16})


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder of our own for recordings, with lesson 01 in `notebooks` beside it."""
    monkeypatch.setenv(schema.FOLDER, str(tmp_path / "recordings"))
    monkeypatch.chdir(tmp_path)
    notebook(
        tmp_path / "notebooks/01_small.ipynb",
        "# 01 · A small lesson",
        "lr = 0.1\nfor i in range(3):\n    lr *= 2",
    )
    return tmp_path


def record(place, **things):
    lesson = Lesson(place / "notebooks/01_small.ipynb")
    with recordings.collecting(recordings.kept_file(lesson, place)):
        for name, thing in things.items():
            recordings.keep(name, thing)
    return recordings.write(lesson, place, FACTS, device="cpu")


# --------------------------------------------------------------------------------------------------------- keeping


def test_keep_is_silent_and_writes_nothing_unless_a_recording_goes_on(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(evidence.KEEP, raising=False)
    assert recordings.keep("bug", crashed()) is None
    assert capsys.readouterr() == ("", "") and list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "thing", "error", "says"),
    [
        ("", 1, ValueError, "name must be one line"),
        ("two\nlines", 1, ValueError, "name must be one line"),
        ("x", {"a": [1, object()]}, TypeError, r"keep\('x'\)\['a'\]\[1\] is a object"),
        ("x", {1.5: 1}, TypeError, r"has the key 1.5"),
        ("x", {"float": 1}, ValueError, "only key is 'float'"),
        ("x", Path("no-such-file.jsonl.gz"), ValueError, "cannot be read as a memory history"),
    ],
)
def test_what_could_not_be_kept_on_a_gpu_is_refused_everywhere(monkeypatch, name, thing, error, says):
    monkeypatch.delenv(evidence.KEEP, raising=False)
    with pytest.raises(error, match=says):
        recordings.keep(name, thing)


def test_a_crashed_run_comes_back_exact_with_its_last_words(place):
    record(place, bug=crashed())
    found = recordings.load("01")
    run, was = found.evidence["bug"], crashed()
    assert repr(run.outcome) == repr(was.outcome) and run.meta == was.meta and run.events[1] == was.events[1]
    assert repr(run.steps) == repr(was.steps)  # repr: NaN is not equal to itself
    assert found.device == "cpu" and found.lesson == "01" and found.verdicts[0]["claim"] == "it dies"


DATA = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(max_size=4).filter(lambda k: k != "float"), inner, max_size=4)
    ),
    max_leaves=12,
)


@given(DATA.filter(lambda data: not isinstance(data, str)))
@settings(max_examples=200, deadline=None)
def test_any_plain_data_survives_the_trip_through_json(data):
    item = json.loads(json.dumps(evidence.pack(data), allow_nan=False))
    assert repr(evidence.unpack(item)) == repr(data)


def test_tensors_and_arrays_travel_as_numbers(place):
    torch = pytest.importorskip("torch")
    record(place, numbers={"mean": torch.tensor(0.5), "row": torch.arange(3)})
    assert recordings.load("01").evidence["numbers"] == {"mean": 0.5, "row": [0, 1, 2]}


def test_the_later_of_two_things_with_one_name_is_kept(place):
    lesson = Lesson(place / "notebooks/01_small.ipynb")
    with recordings.collecting(recordings.kept_file(lesson, place)):
        recordings.keep("x", "early")
        recordings.keep("x", "late")
    recordings.write(lesson, place, FACTS, device="cpu")
    assert recordings.load("01").evidence == {"x": "late"}
    assert evidence.KEEP not in os.environ


def test_a_kept_memory_history_is_a_file_that_the_allocator_replays(place):
    trace = ROOT / "tests/data/allocator-traces/expandable-history.jsonl.gz"
    stale = place / "recordings/01.older.jsonl.gz"
    stale.parent.mkdir()
    stale.write_bytes(b"from an earlier recording")
    record(place, **{"Eval, then train": trace})
    path = recordings.load("01").evidence["Eval, then train"]
    assert gzip.decompress(path.read_bytes()) == gzip.decompress(trace.read_bytes())
    assert labkit.memory.allocator.replay(path) and not stale.exists()
    path.write_bytes(gzip.compress(b"{}\n"))
    with pytest.raises(ValueError, match=r"01\.json: evidence\['Eval, then train'\].file: .*sha256 differs"):
        recordings.load("01")


# ---------------------------------------------------------------------------------------------------- small enough


@given(st.text(alphabet="ab\n", min_size=0, max_size=300), st.integers(2, 120))
@settings(max_examples=300, deadline=None)
def test_a_shortened_text_keeps_its_ends_and_says_how_much_is_gone(text, limit):
    short = fit.without_middle(text, limit)
    if len(text) <= limit:
        assert short == text
        return
    head, rest = short.split("\n[... ", 1)
    gone, tail = rest.split(" characters left out of the recording here ...]\n", 1)
    assert text.startswith(head) and text.endswith(tail) and len(head) + int(gone) + len(tail) == len(text)
    assert len(head) + len(tail) <= limit


@pytest.mark.parametrize("seed", range(50))
def test_a_thinned_list_keeps_its_ends_its_extremes_and_its_order(seed):
    dice = random.Random(seed)
    column = lambda: {name: dice.gauss(0, 10) for name in "abc" if dice.random() < 0.95}
    rows = [{"step": {"n": n, **column()}} for n in range(dice.randint(31, 300))]
    kept = fit.thinned(rows, 30)
    places = [row["step"]["n"] for row in kept]
    assert len(kept) == 30 and places == sorted(set(places)) and {0, len(rows) - 1} <= set(places)
    assert max(b - a for a, b in zip(places, places[1:], strict=False)) <= len(rows) // 6  # no long gap
    for name in "abc":
        values, shown = ([r["step"][name] for r in some if name in r["step"]] for some in (rows, kept))
        assert min(values) in shown and max(values) in shown


@pytest.mark.parametrize("broken", [{"kl": {"float": "nan"}, "x": 1}, {"x": 1}], ids=["nan", "absent"])
def test_where_a_number_breaks_is_never_thinned_away(broken):
    """A step's log leaves a NaN out, so a number that is missing counts as one that broke."""
    rows = [{"step": {"kl": 0.1 + n / 1e4, "x": 1, "n": n}} for n in range(437)]
    rows += [{"step": {**broken, "n": n}} for n in range(437, 900)]
    kept = fit.thinned(rows, 10)
    assert rows[437] in kept and rows[436] in kept and len(kept) == 10


def test_a_recording_stays_under_its_limit_and_names_what_it_left_out(place):
    run = crashed()
    run.events = [Step(n, grad_norm=float(n % 977), kl=0.001 * n) for n in range(1, 20_001)]
    noisy = Outcome(**{**run.outcome.__dict__, "stderr": STDERR + "noise\n" * 60_000 + "last words\n"})
    run.outcome = noisy
    path = record(place, bug=run, small={"x": 1})
    found = recordings.load("01")
    assert path.stat().st_size <= 300_000
    stderr = found.evidence["bug"].outcome.stderr
    assert stderr.startswith(STDERR) and stderr.endswith("last words\n") and "characters left out" in stderr
    kept = found.evidence["bug"]["grad_norm"]
    assert max(kept) == 976.0 and found.evidence["bug"].steps[-1].step == 20_000
    assert found.notes["bug"] == [
        f"events: {len(kept)} of 20000 entries (first, last, lowest, highest, evenly spaced)"
    ]
    assert "small" not in found.notes and len(kept) >= 250


def test_what_cannot_be_made_small_is_refused_and_leaves_the_old_recording_alone(place):
    before = record(place, x="fine").read_text()
    with pytest.raises(ValueError, match="first of all in 'wide'"):
        record(place, wide={f"key {i}": "x" * 60 for i in range(9_000)})
    assert (place / "recordings/01.json").read_text() == before


# ------------------------------------------------------------------------------------------------ valid, up to date


def paths_in(row, where=()):
    """Every field of a recording, as a path of keys, but for what stands inside texts and data."""
    for key, value in row.items() if isinstance(row, dict) else enumerate(row):
        if key in ("meta", "data", "platform", "trl"):
            continue
        yield (*where, key)
        if isinstance(value, (dict, list)):
            yield from paths_in(value, (*where, key))


def test_every_field_of_a_recording_is_checked_and_named(place):
    trace = ROOT / "tests/data/allocator-traces/expandable-history.jsonl.gz"
    path = record(place, bug=crashed(), text="a text", history=trace)
    row = json.loads(path.read_text())
    schema.validate(row)
    fields = [
        p
        for p in paths_in(row)
        if p[0] not in ("parameters",) and "outcome" not in p[:-1] and "step" not in p
    ]
    fields = [
        p for p in fields if p != ("environment", "driver") and p[-1] not in ("note", "event")
    ]  # there is no driver here
    assert len(fields) > 25
    for keys in fields:
        broken = copy.deepcopy(row)
        owner = broken
        for key in keys[:-1]:
            owner = owner[key]
        owner[keys[-1]] = None
        with pytest.raises(ValueError) as caught:
            schema.validate(broken)
            raise AssertionError(f"{keys} = None passed")
        name = next(k for k in reversed(keys) if isinstance(k, str))
        assert name in str(caught.value), (keys, caught.value)


@pytest.mark.parametrize(
    ("keys", "value"),
    [
        (["device"], "tpu"),
        (["lesson"], "1"),
        (["code_hash"], "sha256:12"),
        (["date"], "yesterday"),
        (["verdicts", 0, "result"], "maybe"),
        (["evidence", "bug", "kind"], "film"),
        (["evidence", "bug", "events", 0], {"frame": 1}),
        (["evidence", "bug", "outcome"], {}),
        (["evidence", "bug", "outcome", "unheard_of"], 1),
    ],
)
def test_a_value_that_cannot_be_is_named(place, keys, value):
    row = json.loads(record(place, bug=crashed()).read_text())
    owner = row
    for key in keys[:-1]:
        owner = owner[key]
    owner[keys[-1]] = value
    with pytest.raises(ValueError, match=str(keys[1 if keys[0] == "evidence" else 0])):
        schema.validate(row)


def test_on_cuda_the_gpu_and_the_driver_must_be_named(place):
    row = json.loads(record(place, x="y").read_text()) | {"device": "cuda"}
    with pytest.raises(ValueError, match="environment.gpu: expected the name of a GPU"):
        schema.validate(row)
    row["environment"] = row["environment"] | {"gpu": ["A GPU"]}
    with pytest.raises(ValueError, match="environment.driver: expected str, got None"):
        schema.validate(row)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"format": "labkit-recording/2"}', '"text"'])
def test_a_damaged_recording_is_an_error_that_names_its_file(place, text):
    record(place, x="y").write_text(text)
    with pytest.raises(ValueError, match=r"recordings/01\.json: "):
        recordings.load("01")


def test_the_hash_sees_meaning_and_not_layout(tmp_path):
    code = "lr = 0.1\nfor i in range(3):\n    lr *= 2\n    b = f'{lr:.1f}'"

    def digest(*cells, tags=()):
        return recordings.code_hash(notebook(tmp_path / "n.ipynb", *cells, tags=tags))

    base = digest(code)
    same = [
        digest('lr=.1  # the rate\n\nfor i in (range( 3 )):\n\tlr *= 2\n\tb = f"{lr:.1f}"\n'),
        digest("# A title", "lr = 0.1", "# Words in between", code.split("\n", 1)[1]),
        digest(
            "labkit.recording('01')",
            code,
            "labkit.recording('01', 'bug')\nlabkit.predict('?', [1, 2], 0, 'why')",
        ),
        digest(code, "def mine():\n    return 7", tags={1: ["exercise"]}),
        digest("SEED = 9", code, tags={0: ["injected-parameters"]}),
    ]
    other = [
        digest(code.replace("0.1", "0.2")),
        digest(code.replace("    b", "b")),  # out of the loop: the bug of lesson 02
        digest(code, "x = labkit.recordings.as_run('01', 'bug')"),
        digest(code, "def mine():\n    return 7"),
        digest("b = f'{lr:.1f}'", "lr = 0.1\nfor i in range(3):\n    lr *= 2"),
        digest(code.replace("lr:.1f", "lr:.2f")),
        digest("await labkit.watch(1)\n" + code),
        digest("%time x = 1", code),
    ]
    assert set(same) == {base} and base not in other and len(set(other)) == len(other)


def test_a_recording_is_outdated_as_soon_as_the_code_of_its_lesson_changes(place):
    record(place, x="y")
    assert recordings.load("01").outdated is False
    path = place / "notebooks/01_small.ipynb"
    path.write_text(path.read_text().replace("A small lesson", "Another title"))
    assert recordings.load("01").outdated is False
    path.write_text(path.read_text().replace("lr = 0.1", "lr = 0.2"))
    assert recordings.load("01").outdated is True


# -------------------------------------------------------------------------------------------------------- in the lesson


def test_without_a_recording_one_line_says_how_to_make_it(place, capsys):
    labkit.recording("01")
    said = capsys.readouterr().out
    assert "No GPU recording of lesson 01 yet" in said and "labkit course 01 --device cuda --record" in said
    assert said.count("\n") == 1 and recordings.as_run("01", "bug") is None


def test_a_recording_is_labelled_and_shows_the_exact_text_and_the_numbers(place, capsys):
    record(place, bug=crashed(), fences="```\ninside\n````\n", rows=[{"layer": "a|b", "norm": 0.123456}])
    labkit.recording(1)
    said = capsys.readouterr().out
    assert "a CPU (a test, not a GPU)" in said and "torch 2.13.0+cpu" in said and "Python 3.11.7" in said
    assert (
        f"```text\n{STDERR}```" in said and "error code 710" in said and "device-assert:multinomial" in said
    )
    assert "`````text\n```\ninside\n````\n`````" in said and "| a\\|b | 0.123 |" in said
    assert "1 of 1 verdicts" in said and "Outdated" not in said
    path = place / "notebooks/01_small.ipynb"
    path.write_text(path.read_text().replace("lr = 0.1", "lr = 0.2"))
    labkit.recording("01", "bug")
    said = capsys.readouterr().out
    assert "**Outdated:**" in said and STDERR in said and "inside" not in said


def test_a_name_that_an_up_to_date_recording_lacks_is_an_error_and_an_outdated_one_a_line(place, capsys):
    record(place, bug=crashed(), text="no run")
    for ask in (lambda: labkit.recording("01", "bgu"), lambda: recordings.as_run("01", "bgu")):
        with pytest.raises(ValueError, match="'bgu'; it has"):
            ask()
    with pytest.raises(ValueError, match=r"no run 'text'; it has \['bug'\]"):
        recordings.as_run("01", "text")
    path = place / "notebooks/01_small.ipynb"
    path.write_text(path.read_text().replace("lr = 0.1", "lr = 0.2"))
    assert recordings.as_run("01", "bgu") is None
    labkit.recording("01", "bgu")
    assert "older than this cell" in capsys.readouterr().out


def test_a_recorded_run_is_drawn_behind_a_live_one(place):
    from labkit.display import Board

    record(place, bug=crashed())
    track = Board().add_ghost(recordings.as_run("01", "bug"))
    assert len(track.rows) == 2 and track.label == "bug, on a cpu" and track.mu == 16


@pytest.mark.parametrize("lesson", ["", "one", 123, True, "../01", None])
def test_a_lesson_is_named_by_its_number(lesson):
    with pytest.raises(ValueError, match="expected a lesson's number"):
        recordings.load(lesson)


# ---------------------------------------------------------------------------------------------------------- writing


def test_no_recording_of_a_failed_lesson_and_none_of_a_cpu_among_ours(place, monkeypatch):
    lesson = Lesson(place / "notebooks/01_small.ipynb", error="ValueError: no")
    with pytest.raises(ValueError, match="did not pass"):
        recordings.write(lesson, place, FACTS, device="cpu")
    monkeypatch.delenv(schema.FOLDER)
    with pytest.raises(ValueError, match="device 'cpu' has no place"):
        recordings.write(Lesson(lesson.path), place, FACTS, device="cpu")
    monkeypatch.setenv(writing.ON_CPU, "1")
    with pytest.raises(ValueError, match="sees no GPU"):
        recordings.check("auto", FACTS)
    assert not (place / "recordings").exists()


@pytest.mark.parametrize("device", ["auto", "cuda"])
def test_a_gpu_without_a_readable_driver_is_found_before_any_lesson_runs(device):
    assert recordings.check(device, FACTS | {"gpu": ["A GPU"], "driver": "1.0"}) == "cuda"
    with pytest.raises(ValueError, match="environment.driver"):
        recordings.check(device, FACTS | {"gpu": ["A GPU"]})
    with pytest.raises(ValueError, match="use --device cuda"):
        recordings.check("cpu", FACTS | {"gpu": ["A GPU"], "driver": "1.0"})


def test_paths_of_the_machine_are_shortened_and_nothing_else_is(place):
    cell, torchs = 'File "/tmp/ipykernel_77/123.py", line 3', "/pytorch/aten/x.cu:3"
    text = f'File "{ROOT}/labkit/train.py"\n{cell}\nFile "{os.__file__}"\n{torchs}'
    record(place, trace=text)
    shown = recordings.load("01").evidence["trace"].splitlines()
    assert shown[:2] == ['File "<lab>/labkit/train.py"', 'File "<cell>", line 3']
    assert shown[2].startswith('File "<python>') and shown[3] == torchs


def test_the_summary_keeps_lessons_that_did_not_run_again(place):
    path = place / "notebooks/01_small.ipynb"
    recordings.summarise([Lesson(path), Lesson(path, "02", error="DeadKernelError: gone")], FACTS, "cpu")
    recordings.summarise([Lesson(path, "02")], FACTS, "cpu")
    rows = recordings.summary()
    assert [(n, row["ok"]) for n, row in rows.items()] == [("01", True), ("02", True)]
    (place / "recordings/summary.json").write_text("[]")
    with pytest.raises(ValueError, match="summary.json: expected the format"):
        recordings.summary()


@pytest.fixture(scope="module")
def bare(tmp_path_factory):
    """A Python that has nothing, labkit in the folder where it is called, and the rest in a folder `lib` there."""
    place = tmp_path_factory.mktemp("bare")
    venv.create(place / "python", with_pip=False, symlinks=True)
    (place / "lib").mkdir()
    (place / "labkit").symlink_to(ROOT / "labkit")
    site = Path(nbformat.__file__).parents[1]
    for entry in site.iterdir():
        if not entry.name.startswith(("__editable__", "grpo_failure_lab", "__pycache__")):
            (place / "lib" / entry.name).symlink_to(entry)
    notebook(
        place / "notebooks/01_small.ipynb",
        "# 01 · A small lesson",
        "SEED = 0",
        "import labkit\nfrom labkit.events import Run, Step, Outcome\n"
        "run = Run([Step(1, kl=0.5), Step(2, kl=float('nan'))])\n"
        "run.outcome = Outcome('exception:ValueError', 1, stderr='last words')\n"
        "labkit.recordings.keep('bug', run)",
        "labkit.verdict('it dies', not run.outcome, 'in round 2')\nlabkit.recording('01')",
        tags={1: ["parameters"]},
    )
    return place


def labkit_course(bare, *args, **extra):
    python = bare / "python" / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    env = {k: v for k, v in os.environ.items() if not k.startswith(("JUPYTER", "LABKIT", "VIRTUAL"))}
    env |= {
        "PYTHONPATH": "lib",
        "JUPYTER_DATA_DIR": str(bare / "no-data"),
        **extra,
    }
    return subprocess.run(
        [python, "-m", "labkit", "course", *args],
        capture_output=True,
        text=True,
        timeout=170,
        cwd=bare,
        env=env,
    )


def test_without_papermill_or_a_kernel_the_course_says_in_one_line_what_to_install(bare):
    done = labkit_course(bare, PYTHONPATH="")
    assert done.returncode == 2 and "pip install papermill ipykernel" in done.stderr
    assert done.stderr.count("\n") == 1 and not (bare / "out").exists()


def test_without_a_gpu_record_is_one_line_and_writes_nothing(bare):
    if labkit.doctor.ask_torch().get("gpus"):
        pytest.skip("this machine has a GPU")
    done = labkit_course(bare, "--record", LABKIT_RECORDINGS=str(bare / "never"))
    assert done.returncode == 2 and "torch sees no GPU" in done.stderr and done.stderr.count("\n") == 1
    assert not (bare / "never").exists() and not (bare / "out").exists()


def test_a_real_recording_run_where_nothing_of_jupyter_is_installed(bare, monkeypatch):
    """Also with a `python3` kernel lying around that is another, dead Python."""
    dead = {"argv": ["/no/such/python", "{connection_file}"], "display_name": "x", "language": "python"}
    (bare / "other/kernels/python3").mkdir(parents=True)
    (bare / "other/kernels/python3/kernel.json").write_text(json.dumps(dead))
    folder = bare / "recordings"
    done = labkit_course(bare, "01", "--record", "--device", "cpu", LABKIT_RECORDINGS=str(folder),
                         LABKIT_RECORD_ON_CPU="1", JUPYTER_PATH=str(bare / "other"))  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "recorded:" in done.stdout
    monkeypatch.setenv(schema.FOLDER, str(folder))
    monkeypatch.chdir(bare)
    found = recordings.load("01")
    assert found.device == "cpu" and not found.outdated and found.parameters == {"SEED": 0}
    assert found.verdicts == [{"result": "pass", "claim": "it dies", "seen": "in round 2"}]
    assert math.isnan(recordings.as_run("01", "bug")["kl"][1])
    assert found.evidence["bug"].outcome.stderr == "last words"
    assert recordings.summary()["01"]["verdicts"] == found.verdicts
    copied = nbformat.read(bare / "out/course/01_small.ipynb", as_version=4)
    text = copied.cells[-1].outputs[-1]["data"]
    assert text["text/plain"] == "GPU recording of lesson 01" and "No GPU recording" in text["text/markdown"]


# ---------------------------------------------------------------------------------------------- the ones in the package


OURS = sorted(p for p in (ROOT / "labkit/recordings").glob("*.json") if p.name != "summary.json")


@pytest.mark.parametrize("path", OURS, ids=lambda path: path.stem)
def test_a_recording_of_ours_is_a_gpus_valid_up_to_date_and_says_what_the_lesson_says(path, monkeypatch):
    monkeypatch.delenv(schema.FOLDER, raising=False)
    monkeypatch.chdir(ROOT)
    found = recordings.load(path.stem)
    assert found.device == "cuda" and path.stat().st_size <= fit.LIMIT
    assert not found.outdated, f"lesson {path.stem} has changed since {found.date}: record it again"
    lesson = course.lessons(ROOT / "notebooks", [path.stem])[0]
    cells = json.loads(lesson.path.read_text())["cells"]
    said = [(v["claim"], v["seen"]) for v in course._verdicts(cells)]
    assert [(v["claim"], v["seen"]) for v in found.verdicts] == said
    if any("labkit.recording(" in "".join(cell["source"]) for cell in cells):
        outputs = json.dumps([cell.get("outputs") for cell in cells])
        assert "Recorded on a GPU" in outputs and found.date[:10] in outputs, "execute the notebook again"
