"""Lesson 13: what it says of processes, notebooks and tracebacks, and that a reader's function may do anything."""

import os
import re
import subprocess
import sys

from cut import Page, prose
from props import lesson_13 as lab
from props import lesson_13_holders as holders
from props import lesson_13_pictures as pictures
from props import lesson_13_processes as processes

REWARD = """
class Reward:
    def __init__(self):
        self.rounds = 0
    def __call__(self, prompts, answers):
        self.rounds += 1
        self.version = {version}
        return [0.0 for _ in answers]
"""


def printed(tmp_path, main, **modules):
    """What a script prints that stands in a folder beside these modules."""
    for name, text in ({"main": main} | modules).items():
        (tmp_path / f"{name}.py").write_text(text)
    done = subprocess.run([sys.executable, "main.py"], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    return done.stdout


def test_a_traceback_shows_what_stands_there_after_lines_were_inserted_above(tmp_path):
    main = """
import traceback, rows
text = open("rows.py").read()
open("rows.py", "w").write("# a note\\n# and another\\n" + text)
try:
    rows.one()
except NameError:
    print(traceback.format_exc())
"""
    text = printed(tmp_path, main, rows="# the first line\ndef one():\n    return delta\n")
    assert "in one\n    # the first line\n" in text and "'delta' is not defined" in text


def test_a_reload_reads_one_module_again_and_not_what_that_module_imports(tmp_path):
    main = """
import importlib, pathlib, rewards
pathlib.Path("grading.py").write_text("def score():\\n    return 'new'\\n# longer than before")
importlib.reload(rewards)
print(rewards.grading.score())
"""
    rewards, grading = "import grading", "def score():\n    return 'old'\n"
    assert printed(tmp_path, main, rewards=rewards, grading=grading) == "old\n"


def test_autoreload_gives_an_instance_the_new_method_and_does_not_run_init_again(tmp_path):
    file = tmp_path / "meter.py"
    text = "class Meter:\n    def __init__(self):\n        self.a = 1\n    def read(self):\n        return 1\n"
    file.write_text(text)
    with processes.Python(tmp_path, "kernel") as kernel:
        kernel.run("%load_ext autoreload\n%autoreload 2\nimport meter; one = meter.Meter()")
        file.write_text(text.replace("return 1", "return 22").replace("self.a = 1", "self.a = self.b = 1"))
        assert kernel.run("answer = [one.read(), hasattr(one, 'b'), hasattr(meter.Meter(), 'b')]") == [22, False, True]


def test_a_partial_a_bound_method_and_a_default_answer_as_the_list_does_after_every_remedy():
    page = Page("13")
    start = page["START_2"] + "from functools import partial\nby_partial = partial(score)\n"
    start += "def by_default(score=score):\n    return score()\n"
    others = {"list": "reward_funcs[0]()", "partial": "by_partial()", "default": "by_default()"}
    again = "from grading import Reward, score"
    answers = holders.ask(page["GRADING"], start, others, again, page["LATER"])
    assert answers["partial"] == answers["default"] == answers["list"]
    assert set(answers["list"].values()) == {"old", "new"}


def test_the_boxes_are_asked_a_second_import_reads_nothing_and_a_button_that_does_nothing_changes_nothing():
    page = Page("13")
    old, new = REWARD.format(version=1), "# edited\n" + REWARD.format(version=2)
    buttons = page["BUTTONS"]
    buttons["reload"] = "import rewards"  # `press` reads the page's own dict
    chain = processes.Chain(page["press"], page["START"], ["reload", "from_import"], old, new)
    assert set(chain.boxes(("reload", "from_import")).values()) == {1}
    assert set(chain.boxes((), "both").values()) == {2}


def test_a_refresh_that_raises_or_takes_things_away_is_a_frame_with_its_error_and_is_drawn():
    def raises(trainer):
        trainer.restart_worker()
        raise AttributeError("reload")

    def takes_away(trainer):
        trainer.reward = None
        del trainer.worker

    found = []
    for refresh in (raises, takes_away):
        with lab.trainer_with(REWARD.format(version=2), rounds=3) as here:
            here.save("# edited\n" + REWARD.format(version=3))
            found.append(here.mended(refresh))
    assert found[0] == {
        "versions": {"module": 2, "trainer": 2, "worker": 3},
        "rounds": 3,
        "error": "AttributeError: reload",
    }
    assert found[1]["versions"] == {"module": 2, "trainer": 0, "worker": 0} and found[1]["rounds"] == "gone"
    assert "module, trainer, worker" in pictures.title_of("yours", found[1], 3)


def test_a_table_of_nonsense_is_no_table_and_letters_may_be_words_or_lists():
    from labkit.events import Run

    for nonsense in (3, "o n", [1, 2], {"name": 5}):
        assert holders.written(Run([nonsense])) == {}
    assert holders.written(Run([])) == {}
    expected = {"reload": "old", "reload, import": "new", "%autoreload 2": "new", "new kernel": "?"}
    assert holders.read({"name": "old, new, N x"}) == holders.read({"name": ["o", "n", "n", 4]}) == {"name": expected}


def test_the_line_to_paste_names_the_process_the_file_and_the_version(capsys):
    (line,) = re.findall(r"```python\n# .*\n(print.*)\n```", prose("13"))
    exec(line, {"os": os, "__file__": "rewards.py"})
    assert capsys.readouterr().out.split() == [str(os.getpid()), "rewards.py", "version", "3"]


def test_after_a_reload_an_old_function_reads_the_new_names_of_its_module_and_keeps_what_stands_in_it(tmp_path):
    text = "VERSION = {n}\ndef score():\n    return VERSION, {n}\n"
    main = f"""
import importlib, pathlib, rewards
old = rewards.score
pathlib.Path("rewards.py").write_text({text.format(n=3)!r} + "# longer than before")
importlib.reload(rewards)
print(*old())
"""
    assert printed(tmp_path, main, rewards=text.format(n=2)) == "3 2\n"
