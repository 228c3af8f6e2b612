"""Wheels for a machine without a network: what is packed, and what is laid out there."""

import os
import subprocess
import zipfile

import pytest


@pytest.fixture
def packing(script):
    return script("pack_wheels")


def wheel(folder, name, version, *requires):
    """A wheel of one module."""
    lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
    lines += [f"Requires-Dist: {line}" for line in requires]
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as file:
        file.writestr(f"{name}/__init__.py", f"version = {version!r}\n")
        file.writestr(f"{name}-{version}.dist-info/METADATA", "\n".join(lines) + "\n")


def test_the_list_follows_every_requirement_of_the_target_and_stops_at_what_is_there(packing):
    there = set(packing.THERE.split())
    names = packing.needed(there, "3.12", "x86_64")
    assert {"papermill", "ipykernel", "nbclient", "pyzmq", "rpds-py", "traitlets", "anywidget", "pytest"} <= set(names)
    assert not set(names) & ({"numpy", "jupyterlab", "debugpy", "aiohttp", "colorama", "exceptiongroup"} | there)
    assert "exceptiongroup" in packing.needed(there, "3.10", "x86_64")  # pytest asks for it below Python 3.11
    assert "numpy" in packing.needed(there - {"matplotlib"}, "3.12", "x86_64")


def test_only_what_is_missing_is_unpacked_and_what_it_lacks_is_named(packing, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path / "nothing"))  # restores sys.path at the end
    wheel(tmp_path, "labkit_wanted", "1.5", "labkit_absent>=2", "pytest>=1", "labkit_extra; extra == 'x'")
    wheel(tmp_path, "pytest", "1.0")
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "stale.py").write_text("")
    new, old = packing.unpack(tmp_path, tmp_path / "lib")
    assert new == ["labkit-wanted 1.5"] and old == [f"pytest {pytest.__version__} (packed: 1.0)"]
    assert sorted(p.name for p in (tmp_path / "lib").iterdir()) == ["labkit_wanted", "labkit_wanted-1.5.dist-info"]
    assert packing.unmet(tmp_path / "lib") == ["labkit_wanted needs labkit-absent>=2, found none"]


def test_the_programs_and_commands_of_a_wheel_are_laid_out_and_run(packing, tmp_path):
    wheel(tmp_path, "labkit_tool", "1.0")
    with zipfile.ZipFile(tmp_path / "labkit_tool-1.0-py3-none-any.whl", "a") as file:
        file.writestr("labkit_tool/cli.py", "class App:\n    start = staticmethod(lambda: print('started'))\n")
        commands = "[console_scripts]\ntool = labkit_tool.cli:App.start\n"
        file.writestr("labkit_tool-1.0.dist-info/entry_points.txt", commands)
        file.writestr("labkit_tool-1.0.data/scripts/compiled", "#!/bin/sh\necho compiled\n")
    packing.unpack(tmp_path, tmp_path / "lib")
    env = os.environ | {"PYTHONPATH": str(tmp_path / "lib")}
    for name, says in (("tool", "started\n"), ("compiled", "compiled\n")):
        assert subprocess.check_output([tmp_path / "lib" / "bin" / name], env=env, text=True) == says


def test_what_the_other_machines_transformers_asks_for_is_left_to_it(packing):
    # 5.17 refuses the huggingface-hub that 5.23 asks for: whoever brings one brings the other
    assert not {"huggingface-hub", "tokenizers"} & set(packing.needed(set(packing.THERE.split()), "3.12", "x86_64"))


def test_without_wheels_it_says_how_to_make_them(packing, tmp_path):
    with pytest.raises(ValueError, match="make them with `pack`"):
        packing.unpack(tmp_path, tmp_path / "lib")
