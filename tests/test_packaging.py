"""pyproject.toml, constraints.txt and environment.yml must say the same."""

import re
import sys
import tomllib
from pathlib import Path

import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
RANGES = [Requirement(r) for r in PROJECT["dependencies"] + EXTRAS["course"] + EXTRAS["trl"] + EXTRAS["test"]]
PINS = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().split())


def test_every_dependency_is_pinned_inside_its_range_and_conda_installs_exactly_these_pins():
    for requirement in RANGES:
        assert Version(PINS[canonicalize_name(requirement.name)]) in requirement.specifier, requirement
    parts = yaml.safe_load((ROOT / "environment.yml").read_text())["dependencies"]
    (of_pip,) = (part["pip"] for part in parts if isinstance(part, dict))
    conda = {canonicalize_name(r.name): str(r.specifier) for r in map(Requirement, of_pip)}
    assert conda == {name: f"=={PINS[name]}" for name in (canonicalize_name(r.name) for r in RANGES)}


def test_torch_is_pinned_to_a_release_that_has_a_cpu_build():
    assert PINS["torch"] == "2.13.0"
    assert not [name for name in PINS if name.startswith("nvidia-") and name != "nvidia-ml-py"]


def test_no_pin_and_no_file_records_where_packages_come_from():
    for name in ("constraints.txt", "environment.yml", "pyproject.toml", "Makefile"):
        assert not re.search(r"https?://|index-url|find-links", (ROOT / name).read_text()), name


def test_every_declared_python_runs_this_syntax():
    assert PROJECT["requires-python"] == ">=3.11" and sys.version_info >= (3, 11)


def test_the_makefile_has_the_targets_the_readme_names():
    targets = set(re.findall(r"^([.a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert targets >= {"course", ".venv", "test", "lab", "browser-test", "gpu-test", "bench", "lint"}
    assert targets >= set(re.findall(r"\bmake ([a-z-]+)", (ROOT / "README.md").read_text()))
