"""Part of the Jupyter server: hears what is answered in a learner's page itself, and notes it (`labkit.progress`).

A question is judged in the browser and a hint opens there, so no kernel hears of it. `labkit lab` switches this on by
the configuration in the folder `jupyter` beside this file; another server may name that folder in JUPYTER_CONFIG_PATH.
This file judges nothing.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from labkit import lessons, progress


def _jupyter_server_extension_points() -> list[dict[str, str]]:
    return [{"module": __name__}]


def _load_jupyter_server_extension(server: Any) -> None:
    from jupyter_server.base.handlers import APIHandler
    from jupyter_server.utils import url_path_join
    from tornado import web

    copy = _copy_in(Path(server.root_dir))  # the folder that the browser shows

    class Answers(APIHandler):  # type: ignore[misc]  # jupyter_server may be missing
        @web.authenticated
        def post(self) -> None:
            if not _note(copy, self.get_json_body()):
                raise web.HTTPError(400, "labkit: expected page, name, began, kind, and right or hint")
            self.set_status(204)
            self.finish()

    server.web_app.add_handlers(".*$", [(url_path_join(server.base_url, "labkit/answers"), Answers)])


def _copy_in(root: Path) -> Path:
    """The learner's copy where the server shows `root`: the checkout, or the copy itself."""
    return lessons.copy_of(root / "notebooks") if not lessons.is_copy(root) else root


def _note(copy: Path, told: Any) -> bool:
    """Note what a page told, if progress is kept here. False where it is not what pages tell."""
    if not isinstance(told, dict) or not all(isinstance(told.get(key), str) for key in ("page", "name")):
        return False
    if not isinstance(told.get("began"), (int, float)):
        return False
    seen: dict[str, Any] = {"right": told.get("right")}
    if told.get("kind") == "hint":
        seen = {"hint": told.get("hint")}
    line = {"time": "", "page": told["page"], "name": told["name"], "kind": told.get("kind"), **seen}
    # an exercise is judged by the kernel: no page may say that it was right
    if told.get("kind") == "exercise" or not progress.fits(line):
        return False
    if lessons.is_copy(copy) and not progress.is_off():
        progress.note(copy / progress.FILE, told["page"], told["kind"], told["name"], told["began"], **seen)
    return True
