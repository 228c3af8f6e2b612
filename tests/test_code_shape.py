"""The shape of the code: how dense a line may be, per 1,000 lines of a wing (CONTRIBUTING.md has why)."""

import ast

import pytest

# Per 1,000 lines of code: at most so many comprehensions and ternaries, at least so many comments. In all: the rest.
LIMITS = {
    "comprehensions": 30,
    "nested comprehensions": 0,
    "ternaries": 15,
    "nested ternaries": 0,
    "comments": 90,
    "most parameters": 8,
    "record splats": 0,
    "bools as numbers": 0,
}

# Functions that may have more parameters, and how many. What a lesson breaks or mends is an argument of the trainer; a
# sampler takes its settings one by one, as every library's does.
APART = {"grpo": {"train": 16, "generate": 11}}

# Wing -> what is held now. A wing moves here, with all limits, when it is rewritten.
MOVED = {"grpo": LIMITS}

# Wings that are not rewritten yet, with today's figures: they may become better and not worse. Lower a figure with
# each change that lowers it. The order is that of LIMITS:
# comprehensions, nested; ternaries, nested; comments; parameters; splats; bools.
TO_COME = {
    "labkit": (61, 2, 38, 0, 48, 7, 1, 3),
    "checks": (50, 6, 15, 0, 50, 7, 1, 1),
    "course": (37, 0, 23, 0, 58, 9, 1, 0),
    "display": (62, 4, 47, 0, 57, 9, 0, 0),
    "launch": (53, 0, 42, 0, 20, 4, 0, 0),
    "loaded": (133, 1, 62, 0, 40, 2, 0, 0),
    "memory": (28, 0, 45, 0, 78, 3, 0, 0),
    "sandbox": (18, 0, 21, 0, 96, 7, 0, 0),
    "triage": (79, 3, 34, 0, 60, 8, 1, 3),
}


@pytest.fixture(scope="module")
def shapes(script):
    code_shape = script("code_shape")
    return {
        wing: code_shape.shape_of(paths, apart=tuple(APART.get(wing, ()))) for wing, paths in code_shape.wings().items()
    }


def worse(shape, limits):
    """Figures of a wing that its limits do not allow: name -> (figure, limit)."""
    found = {}
    for name, limit in limits.items():
        figure = shape[name]
        too_few = name == "comments" and figure < limit
        too_many = name != "comments" and figure > limit
        if too_few or too_many:
            found[name] = (figure, limit)
    return found


def test_every_wing_is_listed_once_and_a_wing_that_has_moved_is_held_to_all_limits(shapes):
    assert sorted([*MOVED, *TO_COME]) == sorted(shapes)
    assert not {wing: limits for wing, limits in MOVED.items() if limits != LIMITS}


@pytest.mark.parametrize("wing", MOVED)
def test_a_wing_that_has_moved_keeps_the_limits(wing, shapes):
    assert not worse(shapes[wing], MOVED[wing])


@pytest.mark.parametrize("wing", TO_COME)
def test_a_wing_that_is_still_to_come_gets_no_worse(wing, shapes):
    today = dict(zip(LIMITS, TO_COME[wing], strict=True))
    assert not worse(shapes[wing], today)


@pytest.mark.parametrize(("wing", "name"), [(wing, name) for wing, names in APART.items() for name in names])
def test_the_function_that_is_apart_has_no_more_parameters_than_it_may(wing, name, script):
    code_shape = script("code_shape")
    trees = [ast.parse(path.read_text()) for path in code_shape.wings()[wing]]
    functions = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    (function,) = [one for one in functions if one.name == name]
    assert code_shape.parameters(function) <= APART[wing][name]


PLANTED = {
    "comprehensions": "a = [x for x in y]",
    "nested comprehensions": "a = [[x for x in z] for z in y]",
    "ternaries": "a = x if y else z",
    "nested ternaries": "a = x if y else (z if w else v)",
    "comments": "a = 1  # why",
    "record splats": "a = Point(*row)",
    "bools as numbers": "a = ['no', 'yes'][b > 1]",
}
ALSO_BOOLS = ("a = 's' * (n != 1)", "a = (not b) * c", "a = rows[: n > 1]", "a = bool(b) * 2")
LET_THROUGH = """
import torch
a = numbers[mask > 0]
b = [f(*row) for row in rows]
c = {k: (lambda: [v for v in k]) for k in b}
d = a * 2
"""


def counted(code_shape, tmp_path, code, name):
    path = tmp_path / "planted.py"
    path.write_text(code)
    return code_shape.shape_of([path])[name]


def test_what_is_planted_is_counted_and_what_only_looks_like_it_is_not(script, tmp_path):
    code_shape = script("code_shape")
    assert not [name for name, code in PLANTED.items() if not counted(code_shape, tmp_path, code, name)]
    assert all(counted(code_shape, tmp_path, code, "bools as numbers") for code in ALSO_BOOLS)
    for name in ("bools as numbers", "record splats", "nested comprehensions"):
        assert not counted(code_shape, tmp_path, LET_THROUGH, name), name
    # a docstring is no code, an order to the linter no comment
    path = tmp_path / "planted.py"
    path.write_text(
        '"""Two\n\nlines."""\n\nimport os  # noqa: F401\n\n\ndef f(a, b, *, c, **d):\n    """One."""\n    return a\n'
    )
    shape = code_shape.shape_of([path])
    assert (shape.lines, shape["comments"], shape["most parameters"]) == (3, 0, 4)


def test_by_hand_it_prints_a_row_for_each_wing_and_names_an_unknown_one(script, capsys):
    code_shape = script("code_shape")
    assert code_shape.main([]) == 0
    rows = capsys.readouterr().out.splitlines()
    assert [row.split()[0] for row in rows] == ["wing", *code_shape.wings()]
    assert code_shape.main(["grpoo"]) == 2 and "no wing 'grpoo'" in capsys.readouterr().err
