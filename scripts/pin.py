"""Write constraints.txt and environment.yml from what is installed and tested in this environment.

    .venv/bin/python scripts/pin.py

constraints.txt pins everything that is installed; environment.yml pins what pyproject.toml names. Local version
suffixes (+cpu) and packages that come only with a CUDA build are left out, so that the files serve every machine.
"""

from __future__ import annotations

import importlib.metadata
import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NOT_PINNED = re.compile(r"^(pip|setuptools|wheel|grpo-failure-lab|nvidia-(?!ml-py).*|triton)$")


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def installed() -> dict[str, str]:
    found = {canonical(d.metadata["Name"]): d.version.split("+")[0] for d in importlib.metadata.distributions()}
    return {name: found[name] for name in sorted(found) if not NOT_PINNED.match(name)}


def named() -> list[str]:
    """The direct dependencies of the package, the course and the tests, as pyproject.toml has them."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    asked = list(project["dependencies"])
    for extra in ("course", "trl", "test"):
        asked += project["optional-dependencies"][extra]
    return [re.split(r"[<>=!~;\[ ]", line)[0] for line in asked]


def main() -> None:
    versions = installed()
    (ROOT / "constraints.txt").write_text("".join(f"{n}=={v}\n" for n, v in versions.items()))
    direct = "".join(f"      - {n}=={versions[canonical(n)]}\n" for n in named())
    (ROOT / "environment.yml").write_text(
        "# conda env create -f environment.yml && conda activate grpo-failure-lab && pip install --no-deps -e .\n"
        "name: grpo-failure-lab\nchannels:\n  - conda-forge\ndependencies:\n  - python=3.12\n  - pip\n  - pip:\n"
        + direct
    )


if __name__ == "__main__":
    main()
