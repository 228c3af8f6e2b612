"""Recordings: what was kept comes back exact, what was left out is said, and an old or made-up one is known as such.

The recordings written here come from no GPU and say so: device "cpu", in folders of the tests.
"""

import json
import math
import os
import random
import subprocess
import venv
from pathlib import Path

import nbformat
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import labkit
from labkit import lessons, recordings
from labkit.events import Outcome, Run, Step
from labkit.lessons import Lesson
from labkit.recordings import evidence, files

ROOT = Path(__file__).resolve().parents[1]
FACTS = {"python": "3.11.7", "torch": "2.13.0+cpu", "transformers": "5.23.0", "gpu": [], "driver": None}
STDERR = "block: [0,0,0] Assertion `probability tensor contains either `inf`, `nan` or element < 0` failed.\n"


def passed(path, number="01", **fields):
    """A lesson that has run."""
    verdicts = [{"result": "pass", "claim": "it dies", "seen": "round 2"}]
    return Lesson(number, "A small lesson", path, verdicts=verdicts, seconds=1.5, **fields)


def notebook(path, *cells, tags=()):
    """Cells: code, or Markdown where the text starts with '#'. `tags` maps the place of a cell to its tags."""
    book = nbformat.v4.new_notebook(
        metadata={"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    )
    make = lambda text: (nbformat.v4.new_markdown_cell if text.startswith("#") else nbformat.v4.new_code_cell)(text)
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
        "device-assert:multinomial",
        1,
        None,
        "AcceleratorError",
        "CUDA error: device-side assert triggered",
        "Traceback (most recent call last):\n  boom\n",
        710,
        "",
        STDERR,
        math.nan,
    )
    return Run([steps[0], {"note": "between"}, steps[1]], outcome, {"label": "bug", "mu": 16})


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder of our own for recordings, with lesson 01 in `notebooks` beside it."""
    monkeypatch.setenv(files.FOLDER, str(tmp_path / "recordings"))
    monkeypatch.setenv(files.ON_CPU, "1")
    monkeypatch.chdir(tmp_path)
    notebook(
        tmp_path / "notebooks/01_small.ipynb", "# 01 · A small lesson", "lr = 0.1\nfor i in range(3):\n    lr *= 2"
    )
    return tmp_path


def record(place, *pairs, **things):
    kept = place / "kept.jsonl"
    with recordings.collecting(kept):
        for name, thing in [*pairs, *things.items()]:
            recordings.keep(name, thing)
    return recordings.write(passed(place / "notebooks/01_small.ipynb"), kept, "cpu", FACTS, {"SEED": 0})


def edit(place, old="lr = 0.1", new="lr = 0.2"):
    path = place / "notebooks/01_small.ipynb"
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))


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
        ("x", Run([Step(1), {"a": {1, 2}}]), TypeError, r"keep\('x'\).events\[1\]\['a'\] is a set: .* a set a list"),
        ("x", Run(meta={"a": b"x"}), TypeError, r"keep\('x'\).meta\['a'\] is a bytes"),
        ("x", Path("a.txt"), TypeError, r"keep\('x'\) is a PosixPath"),
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
    assert repr(run.outcome) == repr(was.outcome) and run.meta == was.meta
    assert repr(run.events) == repr(was.events)  # repr: NaN is not equal to itself
    assert found.device == "cpu" and found.lesson == "01" and found.verdicts[0]["claim"] == "it dies"


DATA = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=12,
)


@given(DATA)
@settings(max_examples=200, deadline=None)
def test_whatever_is_kept_is_collected_again(tmp_path_factory, data):
    path = tmp_path_factory.getbasetemp() / "kept.jsonl"
    with recordings.collecting(path):
        recordings.keep("data", data)
    assert repr(evidence.collected(path)) == repr({"data": data})


def test_tensors_and_arrays_travel_as_numbers(place):
    torch = pytest.importorskip("torch")
    numpy = pytest.importorskip("numpy")
    run = Run([{"row": torch.arange(3)}, (1, 2)])
    record(place, numbers={"mean": torch.tensor(0.5), "row": [numpy.ones(2), numpy.float64(2)]}, run=run)
    found = recordings.load("01").evidence
    assert found["numbers"] == {"mean": 0.5, "row": [[1.0, 1.0], 2.0]}
    assert found["run"].events == [{"row": [0, 1, 2]}, [1, 2]]


def test_the_later_of_two_things_with_one_name_is_kept(place):
    record(place, ("x", "early"), ("x", "late"))
    assert recordings.load("01").evidence == {"x": "late"}
    assert evidence.KEEP not in os.environ


# ---------------------------------------------------------------------------------------------------- small enough


@given(st.text(alphabet="ab\n", min_size=0, max_size=300), st.integers(2, 120))
@settings(max_examples=300, deadline=None)
def test_a_shortened_text_keeps_its_ends_and_says_how_much_is_gone(text, limit):
    short = recordings.without_middle(text, limit)
    if len(text) <= limit:
        assert short == text
        return
    head, rest = short.split("\n[... ", 1)
    gone, tail = rest.split(" characters left out here ...]\n", 1)
    assert text.startswith(head) and text.endswith(tail) and len(head) + int(gone) + len(tail) == len(text)
    assert len(head) + len(tail) <= limit


def as_step(n, row):
    return Step(n, extra=row)


@pytest.mark.parametrize("make", [lambda n, row: row, as_step], ids=["dict", "step"])
@pytest.mark.parametrize("seed", range(5))
def test_a_thinned_list_keeps_its_ends_its_extremes_and_its_order(seed, make):
    dice = random.Random(seed)
    column = lambda: {name: dice.gauss(0, 10) for name in "abc" if dice.random() < 0.95}
    data = [{"n": n, **column()} for n in range(dice.randint(31, 300))]
    rows = [make(row["n"], row) for row in data]
    kept = recordings.thinned(rows, 30)
    places = [row["n"] for row in kept]
    assert len(kept) == 30 and places == sorted(set(places)) and {0, len(rows) - 1} <= set(places)
    assert max(b - a for a, b in zip(places, places[1:], strict=False)) <= len(rows) // 6  # no long gap
    for name in "abc":
        values = [row[name] for row in data if name in row]
        shown = [data[n][name] for n in places if name in data[n]]
        assert min(values) in shown and max(values) in shown


@pytest.mark.parametrize("broken", [{"kl": math.nan, "x": 1}, {"kl": math.inf, "x": 1}, {"x": 1}])
def test_where_a_number_breaks_is_never_thinned_away(broken):
    """A number that is missing counts as one that broke."""
    rows = [{"kl": 0.1 + n / 1e4, "x": 1, "n": n} for n in range(437)]
    rows += [{**broken, "n": n} for n in range(437, 900)]
    kept = recordings.thinned(rows, 10)
    assert rows[437] in kept and rows[436] in kept and len(kept) == 10
    steps = [Step(row["n"], kl=row.get("kl", math.nan)) for row in rows]
    kept = recordings.thinned(steps, 10)
    assert steps[437] in kept and steps[436] in kept and len(kept) == 10


def test_a_list_of_numbers_is_thinned_too():
    row = [1.0, 5.0, 2.0, math.nan, 3.0, 0.5, 1.0]
    assert recordings.thinned(row, 6) == [row[i] for i in (0, 1, 2, 3, 5, 6)]
    assert recordings.thinned(["a", None, True], 2) == ["a", True]


def test_a_recording_stays_under_its_limit_and_names_what_it_left_out(place):
    run = crashed()
    run.events = [Step(n, grad_norm=float(n % 977), kl=0.001 * n) for n in range(1, 20_001)]
    run.outcome = Outcome(**{**vars(run.outcome), "stderr": STDERR + "noise\n" * 60_000 + "last words\n"})
    path = record(place, bug=run, small=Run([Step(1)]))
    found = recordings.load("01")
    assert path.stat().st_size <= 300_000
    stderr = found.evidence["bug"].outcome.stderr
    assert stderr.startswith(STDERR) and stderr.endswith("last words\n") and "characters left out" in stderr
    kept = found.evidence["bug"]["grad_norm"]
    assert max(kept) == 976.0 and found.evidence["bug"].steps[-1].step == 20_000 and len(kept) == 500
    note = f"{len(kept)} of 20000 events (first, last, lowest, highest, evenly spaced)"
    assert found.evidence["bug"].meta["thinned"] == note and found.evidence["small"].meta == {}


def test_what_cannot_be_made_small_is_refused_by_name_and_leaves_the_old_recording_alone(place):
    before = record(place, x="fine").read_text()
    wide, flat = {f"key {i}": "x" * 60 for i in range(9_000)}, [0.5] * 2_000
    with pytest.raises(ValueError, match=r"292.97 KiB are allowed.* The largest: 'wide', \d+\.\d\d KiB, 'flat', 9"):
        record(place, wide=wide, flat=flat)
    assert (place / "recordings/01.json").read_text() == before


# ------------------------------------------------------------------------------------------------ valid, up to date


def changed(row, name, value):
    """A copy with one field changed; without it when `value` is `...`."""
    rest = {key: old for key, old in row.items() if key != name}
    return rest if value is ... else rest | {name: value}


def read(path, row):
    path.write_text(json.dumps(row))
    return recordings.load("01")


def test_a_field_that_is_missing_is_named(place):
    path = record(place, bug=crashed(), text="a text")
    row = json.loads(path.read_text())
    assert read(path, row)
    for name in row:
        with pytest.raises(ValueError, match=rf"recordings/01\.json: .*{name}"):
            read(path, changed(row, name, ...))


@pytest.mark.parametrize(
    ("bug", "says"),
    [
        ({"$film": {}}, r"evidence\['bug'\]: '\$film' is no tag"),
        ({"$run": {"events": [], "outcome": {}, "meta": {}}}, r"evidence\['bug'\]: outcome: expected a Outcome"),
    ],
)
def test_evidence_that_cannot_be_is_named(place, bug, says):
    path = record(place, bug=crashed())
    with pytest.raises(ValueError, match=says):
        read(path, changed(json.loads(path.read_text()), "evidence", {"bug": bug}))


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"format": "labkit-recording/2"}', '{"format": "labkit-recording/3"}', '"text"']
)
def test_a_damaged_recording_is_an_error_that_names_its_file(place, text):
    record(place, x="y").write_text(text)
    with pytest.raises(ValueError, match=r"recordings/01\.json: "):
        recordings.load("01")


def test_a_recording_is_outdated_as_soon_as_the_code_of_its_lesson_changes(place):
    record(place, x="y")
    assert not recordings.load("01").outdated
    edit(place, "A small lesson", "Another title")
    assert not recordings.load("01").outdated
    edit(place)
    assert recordings.load("01").outdated


def test_what_a_reader_or_papermill_writes_does_not_outdate_a_recording(tmp_path):
    alone = files.code_hash(notebook(tmp_path / "a.ipynb", "lr = 0.1"))
    with_theirs = notebook(
        tmp_path / "b.ipynb",
        "SEED = 9",
        "lr = 0.1",
        "# words",
        "x = 7",
        tags={0: ["injected-parameters"], 3: ["exercise"]},
    )
    assert files.code_hash(with_theirs) == alone
    assert files.code_hash(notebook(tmp_path / "c.ipynb", "lr = 0.1", "x = 7")) != alone


# -------------------------------------------------------------------------------------------------------- in the lesson


def test_without_a_recording_one_line_says_how_to_make_it(place, capsys):
    labkit.recording("01")
    said = capsys.readouterr().out
    assert "No GPU recording of lesson 01 yet" in said and "labkit course 01 --device cuda --record" in said
    assert said.count("\n") == 1 and recordings.load("01") is None


def test_what_was_skipped_there_is_not_said_to_hold(place, capsys):
    path = record(place, bug=crashed())
    row = json.loads(path.read_text())
    row["verdicts"].append({"result": "skip", "claim": "the guard holds", "seen": "TRL is not installed"})
    path.write_text(json.dumps(row))
    labkit.recording("01")
    said = capsys.readouterr().out
    assert "Verdicts that hold there: 1" in said and "Not tried there: 1" in said and "TRL is not installed" in said


def test_a_recording_is_labelled_and_shows_the_exact_text_and_the_numbers(place, capsys):
    record(place, bug=crashed(), fences="```\ninside\n````\n", rows=[{"layer": "a|b", "norm": 0.123456}])
    labkit.recording(1)
    said = capsys.readouterr().out
    assert "a CPU (a test, not a GPU)" in said and "torch 2.13.0+cpu" in said and "Python 3.11.7" in said
    assert f"```text\n{STDERR}```" in said and "error code 710" in said and "device-assert:multinomial" in said
    assert "`````text\n```\ninside\n````\n`````" in said and "| a\\|b | 0.123 |" in said
    assert "Verdicts that hold there: 1" in said and "Outdated" not in said
    assert "| step | round | grad_norm |" in said and "| NaN |" in said and "2 steps, ended" in said
    edit(place)
    labkit.recording("01")
    said = capsys.readouterr().out
    assert "**Outdated:**" in said and STDERR in said


def test_each_kind_of_evidence_is_shown(place, capsys):
    many = Run([Step(n, memory_reserved=2.5 * 2**20) for n in range(3_000)], Outcome("oom", 1))
    record(
        place,
        ("end", Outcome("timeout", None)),
        ("row", {"mean": 0.5, "bad": math.nan}),
        ("list", [1.5, None]),
        ("ragged", [{"a": 1}, {"b": "x" * 900}]),
        ("many", many),
        ("none", None),
    )
    labkit.recording("01")
    said = capsys.readouterr().out
    for text in (
        "**end**: ended with `timeout`",
        "| mean | 0.5 |\n| bad | NaN |",
        "**list**\n\n1.5\nnone",
        "| a | b |",
        "characters left out here",
        "**many**: 500 steps",
        "*The recording has 500 of 3000 events",
        "| 2.50 MiB |",
        "**none**\n\nnone",
    ):
        assert text in said, text


def test_a_recorded_run_is_drawn_behind_a_live_one(place):
    from labkit.display import Board

    record(place, bug=crashed())
    track = Board().add_ended(recordings.load("01").evidence["bug"], ghost=True)
    assert len(track.rows) == 2 and track.label == "bug" and track.mu == 16


@pytest.mark.parametrize("lesson", ["", "one", 123, True, "../01", None])
def test_a_lesson_is_named_by_its_number(lesson):
    with pytest.raises(ValueError, match="expected a lesson's number"):
        recordings.load(lesson)


# ---------------------------------------------------------------------------------------------------------- writing


def test_no_recording_of_a_failed_lesson_and_none_of_a_cpu_among_ours(place, monkeypatch):
    kept = place / "kept.jsonl"
    kept.write_text("")
    path = place / "notebooks/01_small.ipynb"
    for failed in (passed(path, error="ValueError: no"), passed(path, expected=["never made"])):
        with pytest.raises(ValueError, match="did not pass"):
            recordings.write(failed, kept, "cpu", FACTS, {})
    monkeypatch.delenv(files.FOLDER)
    for device, says in (("cpu", "recordings are made on a GPU"), ("auto", "sees no GPU")):
        with pytest.raises(ValueError, match=says):
            recordings.write(passed(path), kept, device, FACTS, {})
        with pytest.raises(ValueError, match=says):
            recordings.check(device, FACTS)
    monkeypatch.setenv(files.FOLDER, str(ROOT / "labkit/recordings"))
    with pytest.raises(ValueError, match="sees no GPU"):
        recordings.check("auto", FACTS)
    assert not (place / "recordings").exists() and not (ROOT / "labkit/recordings/01.json").exists()


@pytest.mark.parametrize("device", ["auto", "cuda"])
def test_a_gpu_without_a_readable_driver_is_found_before_any_lesson_runs(device, monkeypatch):
    assert recordings.check(device, FACTS | {"gpu": ["A GPU"], "driver": "1.0"}) == "cuda"
    with pytest.raises(ValueError, match="names its driver"):
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
        "labkit.verdict('it dies in round', run.rounds + 1, '==', 2)\nlabkit.recording('01')",
        tags={1: ["parameters"]},
    )
    return place


def labkit_course(bare, *args, **extra):
    python = bare / "python" / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    env = {k: v for k, v in os.environ.items() if not k.startswith(("JUPYTER", "LABKIT", "VIRTUAL"))}
    env |= {"PYTHONPATH": "lib", "JUPYTER_DATA_DIR": str(bare / "no-data"), **extra}
    return subprocess.run(
        [python, "-m", "labkit", "course", *args], capture_output=True, text=True, timeout=170, cwd=bare, env=env
    )


def test_without_papermill_or_a_kernel_the_course_says_in_one_line_what_to_install(bare):
    done = labkit_course(bare, PYTHONPATH="")
    assert done.returncode == 2 and "not installed here: papermill ipykernel" in done.stderr
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
    done = labkit_course(
        bare,
        "01",
        "--record",
        "--device",
        "cpu",
        LABKIT_RECORDINGS=str(folder),
        LABKIT_RECORD_ON_CPU="1",
        JUPYTER_PATH=str(bare / "other"),
    )
    assert done.returncode == 0, done.stderr
    assert "recorded:" in done.stdout
    monkeypatch.setenv(files.FOLDER, str(folder))
    monkeypatch.chdir(bare)
    found = recordings.load("01")
    assert found.device == "cpu" and not found.outdated and found.parameters == {"SEED": 0}
    assert [file.name for file in folder.iterdir()] == ["01.json"]
    assert found.verdicts == [{"result": "pass", "claim": "it dies in round", "seen": "2 == 2"}]
    assert math.isnan(found.evidence["bug"]["kl"][1])
    assert found.evidence["bug"].outcome.stderr == "last words"
    copied = nbformat.read(bare / "out/course/01_small.ipynb", as_version=4)
    text = copied.cells[-1].outputs[-1]["data"]
    assert text["text/plain"] == "GPU recording of lesson 01" and "No GPU recording" in text["text/markdown"]


# ---------------------------------------------------------------------------------------------- the ones in the package


OURS = sorted((ROOT / "labkit/recordings").glob("*.json"))


@pytest.mark.parametrize("path", OURS, ids=lambda path: path.stem)
def test_a_recording_of_ours_is_a_gpus_valid_and_claims_what_the_lesson_claims(path, monkeypatch):
    """The lesson's code must be the recorded one."""
    monkeypatch.delenv(files.FOLDER, raising=False)
    monkeypatch.chdir(ROOT)
    found = recordings.load(path.stem)
    assert found.device == "cuda" and path.stat().st_size <= files.LIMIT
    assert not found.outdated, f"lesson {path.stem} has changed since {found.date}: record it again"
    (lesson,) = lessons.choose(ROOT / "notebooks", [path.stem])
    assert [v["claim"] for v in found.verdicts] == lesson.expected
    cells = json.loads(lesson.path.read_text())["cells"]
    if any("labkit.recording(" in "".join(cell["source"]) for cell in cells):
        outputs = json.dumps([cell.get("outputs") for cell in cells])
        assert "Recorded on a GPU" in outputs and found.date[:10] in outputs, "execute the notebook again"
