"""The house: imports flow one way, wings are entered by their faces. Read off the syntax trees; nothing is imported."""

import ast
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parent.parent / "labkit"

# What a room may import, from the ground up: each line may use the lines above it. Each file of the core is a room.
FLOORS = [
    {"common", "verdicts", "sampling", "findings"},
    {"memory.refusal"},  # the rules for out-of-memory messages, which triage reads too
    {"triage"},
    {"events", "lessons", "loaded", "launch", "progress"},
    {"grpo.kl", "grpo.advantage", "grpo.loss", "grpo.task", "grpo.grads"},
    {"grpo.policy", "grpo.rollout"},
    {"grpo.exam", "grpo.batch", "grpo.record"},
    {"grpo.train"},
    {"grpo", "kl", "grads"},  # the core's face, and two short names
    {"sandbox", "memory"},
    {"checks", "checklist"},
    {"display", "doctor"},
    {"course", "callback"},
    {"__main__"},
]
ALONE = {"memory.refusal"}  # a room of its own in a wing: it stands lower than the rest
WINGS = {"sandbox", "memory", "display", "checks", "triage", "loaded", "launch", "course"}
DRAWS = {"matplotlib", "ipywidgets", "anywidget", "IPython", "PIL", "rich", "labkit.display"}
MAY_DRAW = {"display", "course", "callback", "__main__"}  # the course prints a table
LIGHT = {"common", "findings", "events", "lessons", "verdicts", "doctor", "progress", "__init__", "__main__"}
LIGHT |= {"course.__init__", "course.runner", "course.console", "course.recorded", "course.lab"}
LIGHT |= {"course.working_copy", "course.learners", "course.classroom", "course.answers"}
LIGHT |= {"sandbox", "triage", "loaded", "launch", "memory", "grpo.__init__", "grpo.task"}


def modules(package=PACKAGE):
    """Dotted name inside the package (a wing's face is the wing's name) -> syntax tree."""
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package).with_suffix("").parts
        yield ".".join(parts), ast.parse(path.read_text())


def imports(name, tree, top_level_only=False):
    """Absolute dotted names that module `name` imports, however it writes them; `from a import b` gives a and a.b."""
    here = ["labkit", *name.split(".")]
    type_only = {
        id(node)
        for block in ast.walk(tree)
        if isinstance(block, ast.If) and "TYPE_CHECKING" in ast.dump(block.test)
        for node in ast.walk(block)
    }
    for node in tree.body if top_level_only else ast.walk(tree):
        if id(node) in type_only:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = here[: len(here) - node.level] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names)


def within(module, room):
    return module == room or module.startswith(room + ".")


def room(name):
    """The room of a module: "memory.scope" -> "memory", but "grpo.kl" stays, and the face is "grpo"."""
    if name in ALONE:
        return name
    parts = name.removesuffix(".__init__").split(".")
    if parts[0] == "grpo" and len(parts) > 1:
        return f"grpo.{parts[1]}"
    return parts[0]


def room_of(dotted):
    """The room of an imported name, "labkit.memory.scope" -> "memory"; None outside labkit, and for labkit itself."""
    package, _, inner = dotted.partition(".")
    if package != "labkit" or not inner:
        return None
    parts = inner.split(".")
    if ".".join(parts[:2]) in ALONE:
        return ".".join(parts[:2])
    # `from labkit.grpo.kl import k2` gives labkit.grpo.kl.k2, and `from labkit.grpo import load` a name of the face
    if parts[0] == "grpo" and len(parts) > 1 and f"grpo.{parts[1]}" not in TREES:
        return "grpo"
    return room(inner)


def upward(name, tree):
    """Imports of `name` from a floor that is not below its own; rooms on one floor may use each other."""
    floor = {room: level for level, rooms in enumerate(FLOORS) for room in rooms}
    mine = room(name)
    targets = list(imports(name, tree))
    # `from labkit.grpo import kl` names the face only on the way to the module
    passed = {target.rpartition(".")[0] for target in targets if target.removeprefix("labkit.") in TREES}
    rooms = {room_of(target) for target in targets if target not in passed} - {None, mine}
    return sorted(r for r in rooms if floor.get(r, -1) > floor.get(mine, 99))


def past_the_face(name, tree):
    """Imports that reach into a wing from outside: of a module of it that is no wing itself, or of a `_private`."""
    bad = set()
    for target in imports(name, tree):
        there, inner = room_of(target), target.removeprefix("labkit.")
        if there is None or there == room(name):
            continue
        private = inner.split(".")[-1].startswith("_") and not inner.endswith("__")
        if private or (there in WINGS and inner != there and inner in TREES):
            bad.add(target)
    return sorted(bad)


TREES = dict(modules())
INNER = {name: tree for name, tree in TREES.items() if name != "__init__"}


def test_every_room_has_a_floor_and_imports_flow_one_way():
    assert {room(name) for name in INNER} == set().union(*FLOORS)
    assert not {name: wrong for name, tree in INNER.items() if (wrong := upward(name, tree))}


def test_wings_are_entered_by_their_faces():
    assert not {name: wrong for name, tree in INNER.items() if (wrong := past_the_face(name, tree))}


def test_what_computes_never_imports_what_draws_and_light_rooms_no_torch_at_module_level():
    for name, tree in INNER.items():
        if name.split(".")[0] not in MAY_DRAW:
            drawing = [i for i in imports(name, tree) if any(within(i, d) for d in DRAWS)]
            assert not drawing, f"{name} imports {drawing}"
        if any(within(name, light) for light in LIGHT):
            packages = {i.split(".")[0] for i in imports(name, tree, top_level_only=True)}
            assert not packages & {"torch", "transformers"}, name


def test_no_module_imports_itself_through_others():
    known = {name.removesuffix(".__init__") for name in TREES}
    graph = {}
    for name, tree in TREES.items():
        mine = name.removesuffix(".__init__")
        targets = {i.removeprefix("labkit.") for i in imports(name, tree, top_level_only=True)}
        graph[mine] = {target for target in targets & known if not within(mine, target)}
    TopologicalSorter(graph).prepare()  # CycleError names a cycle


UPWARD = [
    ("grpo.kl", "from labkit.grpo.train import train"),
    ("grpo.kl", "from .train import train"),
    ("grpo.kl", "from . import train"),
    ("grpo.kl", "from labkit.grpo import load"),
    ("grpo.kl", "import labkit.grpo.train"),
    ("memory.scope", "from labkit import checks"),
    ("memory.scope", "from .. import checks"),
    ("memory.scope", "from ..checks import first_token"),
    ("sandbox.child", "def f():\n    from ..doctor import examine"),
]


PAST_A_FACE = [
    ("checks.guard", "from labkit.memory.meter import CudaMeter"),
    ("checks.guard", "from ..memory import meter, _private"),
    ("grpo.train", "from labkit.events import _plain"),
    ("grpo.train", "from .loss import _check_shapes"),
    ("display.dashboard", "from labkit.sandbox.server import Server"),
    ("memory.meter", "from ..checks.report import Report"),
]


def test_a_planted_import_is_seen_however_it_is_written_and_the_ways_in_that_are_right_are_let_through():
    assert not [(name, line) for name, line in UPWARD if not upward(name, ast.parse(line))]
    assert not [(name, line) for name, line in PAST_A_FACE if not past_the_face(name, ast.parse(line))]
    tree = ast.parse("from labkit import memory\nfrom labkit.memory import owner\nfrom .report import Report")
    assert not past_the_face("checks.guard", tree) and not upward("checks.guard", tree)


def test_checks_know_nothing_of_the_labs_own_trainer_and_no_function_has_a_buggy_switch():
    for name, tree in TREES.items():
        rooms = {room_of(i) for i in imports(name, tree)}
        trainer = {
            "train",
            "grads",
            "grpo",
            *(f"grpo.{one}" for one in ("train", "grads", "rollout", "policy", "loss")),
        }
        assert not within(name, "checks") or not rooms & trainer, name
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef):
                names = {argument.arg for argument in [*node.args.args, *node.args.kwonlyargs]}
                assert not {"buggy", "bug", "broken"} & names, (name, node.name)


def test_importing_labkit_and_its_command_loads_nothing_heavy_and_starts_nothing():
    code = (
        "import labkit, labkit.__main__, labkit.sandbox, labkit.course, labkit.doctor, labkit.memory, labkit.display;"
        "import sys, psutil;"
        "print(sorted({'torch', 'transformers', 'matplotlib', 'IPython', 'papermill'} & set(sys.modules)),"
        "psutil.Process().children())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == "[] []", done.stdout + done.stderr


def test_the_face_is_small_every_name_is_there_and_an_unknown_one_lists_them():
    import labkit

    assert 10 <= len(dir(labkit)) <= 20
    for name in dir(labkit):
        thing = getattr(labkit, name)
        assert thing.__doc__ and thing.__doc__.strip(), name
    assert labkit.kl.k3 and labkit.doctor.examine
    with pytest.raises(AttributeError, match="watch"):
        labkit.wacth  # noqa: B018


def test_the_short_names_of_the_core_are_the_core():
    import labkit
    from labkit import grpo
    from labkit.grads import guard
    from labkit.kl import k2

    assert k2 is grpo.kl.k2 is grpo.k2 is labkit.kl.k2 and guard is grpo.guard is labkit.grads.guard
    assert labkit.rollout is grpo.rollout and labkit.loss.gspo is grpo.gspo
    assert not [name for name in dir(grpo) if getattr(grpo, name).__doc__ is None]
    with pytest.raises(AttributeError, match="labkit.grpo has no 'trian'; it has .*train"):
        grpo.trian  # noqa: B018


def test_the_top_floor_has_room():
    assert len(list(PACKAGE.glob("*.py"))) <= 20
