"""Wheels for a machine without a network: what is packed, and what is laid out there."""

import os
import subprocess
import zipfile

import pytest


@pytest.fixture
def packing(script):
    return script("pack_wheels")


def wheel(folder, name, version, *requires, **files):
    """A wheel of one module, and of other files by name."""
    lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
    lines += [f"Requires-Dist: {line}" for line in requires]
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as file:
        file.writestr(f"{name}/__init__.py", f"version = {version!r}\n")
        file.writestr(f"{name}-{version}.dist-info/METADATA", "\n".join(lines) + "\n")
        for path, text in files.items():
            file.writestr(path, text)


def test_the_list_follows_every_requirement_of_the_target_and_stops_at_what_is_there(packing):
    there = set(packing.THERE.split())
    names = set(packing.needed(there, "3.12", "x86_64"))
    assert {"papermill", "ipykernel", "nbclient", "pyzmq", "rpds-py", "traitlets", "anywidget", "pytest"} <= names
    assert not names & ({"numpy", "jupyterlab", "debugpy", "aiohttp", "colorama", "exceptiongroup"} | there)
    # 5.17 refuses the huggingface-hub that 5.23 asks for: whoever brings one brings the other
    assert not names & {"huggingface-hub", "tokenizers"}
    assert "exceptiongroup" in packing.needed(there, "3.10", "x86_64")  # pytest asks for it below Python 3.11
    assert "numpy" in packing.needed(there - {"matplotlib"}, "3.12", "x86_64")


def test_only_what_is_missing_is_unpacked_and_what_it_lacks_is_named(packing, tmp_path, monkeypatch):
    with pytest.raises(ValueError, match="make them with `pack`"):
        packing.unpack(tmp_path, tmp_path / "lib")
    monkeypatch.syspath_prepend(str(tmp_path / "nothing"))  # restores sys.path at the end
    wheel(tmp_path, "labkit_wanted", "1.5", "labkit_absent>=2", "pytest>=1", "labkit_extra; extra == 'x'")
    wheel(tmp_path, "pytest", "1.0")
    (tmp_path / "lib").mkdir(exist_ok=True)
    (tmp_path / "lib" / "stale.py").write_text("")
    new, old = packing.unpack(tmp_path, tmp_path / "lib")
    assert new == ["labkit-wanted 1.5"] and old == [f"pytest {pytest.__version__} (packed: 1.0)"]
    assert sorted(p.name for p in (tmp_path / "lib").iterdir()) == ["labkit_wanted", "labkit_wanted-1.5.dist-info"]
    assert packing.unmet(tmp_path / "lib") == ["labkit_wanted needs labkit-absent>=2, found none"]


def test_the_programs_and_commands_of_a_wheel_are_laid_out_and_run(packing, tmp_path):
    files = {
        "labkit_tool/cli.py": "class App:\n    start = staticmethod(lambda: print('started'))\n",
        "labkit_tool-1.0.dist-info/entry_points.txt": "[console_scripts]\ntool = labkit_tool.cli:App.start\n",
        "labkit_tool-1.0.data/scripts/compiled": "#!/bin/sh\necho compiled\n",
    }
    wheel(tmp_path, "labkit_tool", "1.0", **files)
    packing.unpack(tmp_path, tmp_path / "lib")
    env = os.environ | {"PYTHONPATH": str(tmp_path / "lib")}
    for name, prints in (("tool", "started\n"), ("compiled", "compiled\n")):
        assert subprocess.check_output([tmp_path / "lib" / "bin" / name], env=env, text=True) == prints
