"""`import jupyter` and `import checks` from the tests of this folder; skip all of them where no browser can run."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


def pytest_collection_modifyitems(items):
    import jupyter

    if why := jupyter.missing():
        for item in items:
            if "browser" in item.keywords:
                item.add_marker(pytest.mark.skip(reason=why))
