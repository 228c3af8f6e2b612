"""Drive a real JupyterLab, or Notebook 7, in headless Chromium: open a notebook, run it, look, click, take pictures.

    with Lab(folder) as lab, lab.browser() as browser:
        notebook = browser.open("lesson.ipynb")
        notebook.restart_and_run_all()
        notebook.wait_until_done(timeout=120)
        notebook.screenshot("lesson")
        assert not notebook.problems

The server has its own configuration, data, settings, workspaces and runtime folders, so that nothing of the
user's is read or changed. Chromium is Debian's; set LABKIT_CHROMIUM for another. This file asserts nothing about a
notebook.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

CHROMIUM = os.environ.get("LABKIT_CHROMIUM", "/usr/bin/chromium")
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"]
FLAGS += ["--disable-component-update", "--disable-sync"]
SHOTS = Path(__file__).parent / "shots"
TOKEN = "labkit"

# Messages of JupyterLab itself (4.6) that no notebook can do anything about.
NOT_OURS = re.compile(
    r"favicon|Failed to load resource|/api/|/lsp|lumino|Download the React DevTools|sourcemap|source map"
    r"|jupyterlab_server|GPU stall|Could not determine jupyterlab|Failed to fetch|WebSocket connection",
    re.IGNORECASE,
)


def missing() -> str:
    """Why the browser tests cannot run here, or an empty string."""
    if not Path(CHROMIUM).exists():
        return f"no Chromium at {CHROMIUM}; set LABKIT_CHROMIUM"
    try:
        import playwright  # noqa: F401
    except ImportError:
        return "playwright is not installed: pip install -e '.[test]'"
    return ""


class Lab:
    """A server on a free port, serving `folder`: JupyterLab's, or Notebook 7's with `classic`."""

    def __init__(self, folder: str | Path, theme: str = "JupyterLab Light", classic: bool = False):
        self.folder, self.classic = Path(folder).resolve(), classic
        self.home = Path(tempfile.mkdtemp(prefix="labkit-jupyter-"))
        quiet = {"fetchNews": "false", "checkForUpdates": False, "doNotDisturbMode": True}
        settings = self.home / "settings" / "@jupyterlab" / "apputils-extension"
        settings.mkdir(parents=True)
        for name, values in (("notification", quiet), ("themes", {"theme": theme})):
            (settings / f"{name}.jupyterlab-settings").write_text(json.dumps(values))
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> Lab:
        env = {**os.environ, "JUPYTER_PREFER_ENV_PATH": "1", "JUPYTER_PLATFORM_DIRS": "1"}
        for name in ("CONFIG", "DATA", "RUNTIME"):
            env[f"JUPYTER_{name}_DIR"] = str(self.home / name.lower())
        env["JUPYTERLAB_SETTINGS_DIR"] = str(self.home / "settings")
        env["JUPYTERLAB_WORKSPACES_DIR"] = str(self.home / "workspaces")
        env["IPYTHONDIR"] = str(self.home / "ipython")
        env.pop("PYTEST_CURRENT_TEST", None)
        env.pop("LABKIT_SAVED_PAGES", None)  # a reader's page: its knobs turn
        program, app = ("notebook", "JupyterNotebookApp") if self.classic else ("jupyterlab", "LabApp")
        options = {
            "ServerApp.ip": "127.0.0.1",
            "ServerApp.port": self.port,
            "ServerApp.port_retries": 0,
            "ServerApp.root_dir": self.folder,
            "IdentityProvider.token": TOKEN,
            f"{app}.expose_app_in_browser": True,
            "LabApp.news_url": None,
        }
        command = [sys.executable, "-m", program, "--no-browser", "--allow-root"]
        command += [f"--{name}={value}" for name, value in options.items()]
        self.log = (self.home / "server.log").open("w")
        self.server = subprocess.Popen(
            command, env=env, stdout=self.log, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            self._wait_for_server()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _wait_for_server(self) -> None:
        for _ in range(600):
            with contextlib.suppress(OSError):
                self.api("status")
                return
            if self.server.poll() is not None:
                break
            time.sleep(0.1)
        raise RuntimeError(f"jupyter lab does not answer:\n{(self.home / 'server.log').read_text()[-2000:]}")

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.server.send_signal(signal.SIGTERM)  # the server shuts its kernels down
        try:
            self.server.wait(15)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.server.pid, signal.SIGKILL)
            self.server.wait()
        self.log.close()
        shutil.rmtree(self.home, ignore_errors=True)

    def api(self, path: str) -> Any:
        """GET from the server's REST interface."""
        request = urllib.request.Request(f"{self.url}/api/{path}", headers={"Authorization": f"token {TOKEN}"})
        with urllib.request.urlopen(request, timeout=5) as answer:
            return json.load(answer)

    @contextlib.contextmanager
    def browser(self, width: int = 1280, height: int = 900) -> Iterator[Browser]:
        """A headless Chromium whose pages belong to this server."""
        from playwright.sync_api import sync_playwright

        with sync_playwright() as playwright:
            chromium = playwright.chromium.launch(executable_path=CHROMIUM, headless=True, args=FLAGS)
            try:
                yield Browser(self, chromium, {"width": width, "height": height})
            finally:
                chromium.close()


class Browser:
    def __init__(self, lab: Lab, chromium: Any, viewport: dict[str, int]):
        self.lab, self.chromium, self.viewport = lab, chromium, viewport

    def open(self, name: str) -> Notebook:
        """Open a notebook, alone in the window, and wait until its kernel answers."""
        page = self.chromium.new_page(viewport=self.viewport)
        notebook = Notebook(self.lab, page, name)
        notebook.load()
        return notebook


class Notebook:
    """One notebook in one page. `page` is playwright's, for everything that has no method here."""

    def __init__(self, lab: Lab, page: Any, name: str):
        self.lab, self.page, self.name = lab, page, name
        self.problems: list[str] = []  # exceptions and errors on the console, JupyterLab's own left out
        page.on("pageerror", lambda error: self.problems.append(str(error)))
        page.on("console", self._console)

    def _console(self, message: Any) -> None:
        if message.type == "error" and not NOT_OURS.search(message.text):
            self.problems.append(message.text)

    # ---- JupyterLab

    def load(self) -> None:
        """Open the notebook in this page, alone in the window, and wait until its kernel answers."""
        place = f"notebooks/{self.name}?" if self.lab.classic else f"lab/tree/{self.name}?reset&"
        self.page.goto(f"{self.lab.url}/{place}token={TOKEN}")
        self.wait_for_kernel()

    def shut_down_and_reopen(self) -> None:
        """End the kernel, leave the page, and open the file again: no cell of it has run in the new kernel."""
        self.page.evaluate("() => jupyterapp.shell.currentWidget.context.sessionContext.shutdown()")
        self.until(lambda: not self.lab.api("kernels"), 30, "the kernel did not end")
        self.page.goto("about:blank")
        self.load()

    def command(self, name: str, arguments: dict[str, Any] | None = None) -> None:
        """A JupyterLab command, by its id, without waiting for it."""
        self.page.evaluate("([n, a]) => void jupyterapp.commands.execute(n, a)", [name, arguments or {}])

    def kernel_status(self) -> str:
        """'idle', 'busy', … or '' while there is no kernel."""
        script = "() => jupyterapp.shell.currentWidget?.context?.sessionContext?.session?.kernel?.status ?? ''"
        return self.page.evaluate(script)

    def wait_for_kernel(self, timeout: float = 60) -> None:
        """Until the kernel is idle and the page is connected to it, and one second more: before that, a restart
        leaves every cell at [*]."""
        self.page.wait_for_function("() => !!window.jupyterapp", timeout=timeout * 1000)
        self.until(lambda: self.kernel_status() == "idle", timeout, "the kernel did not become idle")
        connected = lambda: any(s["kernel"]["connections"] >= 1 for s in self.lab.api("sessions"))
        self.until(connected, timeout, "no page is connected to the kernel")
        self.page.wait_for_timeout(1000)

    def restart_and_run_all(self) -> None:
        """The menu entry of that name, its dialog accepted. Returns when the cells are queued."""
        self.command("notebook:restart-run-all")
        self.page.locator(".jp-Dialog button.jp-mod-accept").click(timeout=15_000)
        self.page.locator(".jp-Dialog").wait_for(state="detached", timeout=60_000)

    def starred(self) -> int:
        """How many cells are queued or running."""
        script = (
            "() => [...document.querySelectorAll('.jp-InputPrompt')].filter(p => p.textContent.includes('*')).length"
        )
        return self.page.evaluate(script)

    def done(self) -> bool:
        """No cell is queued or running, and the kernel is idle."""
        if self.page.locator(".jp-Dialog").count():
            raise RuntimeError(f"a dialog is open: {self.page.locator('.jp-Dialog').inner_text()!r}")
        return self.kernel_status() == "idle" and not self.starred()

    def wait_until_done(self, timeout: float = 120) -> None:
        """Until `done` three times in a row, 0.2 s apart."""
        end, times = time.monotonic() + timeout, 0
        while times < 3:
            if time.monotonic() > end:
                raise TimeoutError(f"{self.name}: still running after {timeout} s")
            times = times + 1 if self.done() else 0
            self.page.wait_for_timeout(200)

    def run_cell(self, number: int) -> None:
        """Run one cell, counted from 0; returns at once."""
        self.page.evaluate("n => { jupyterapp.shell.currentWidget.content.activeCellIndex = n }", number)
        self.command("notebook:run-cell")

    def cell(self, number: int) -> Any:
        """The locator of a cell, counted from 0, which is scrolled to."""
        self.page.evaluate("n => jupyterapp.shell.currentWidget.content.scrollToItem(n)", number)
        return self.page.locator(f".jp-Cell[data-windowed-list-index='{number}']")

    def sources(self) -> list[str]:
        """What each cell holds."""
        script = "() => jupyterapp.shell.currentWidget.content.widgets.map(c => c.model.sharedModel.source)"
        return self.page.evaluate(script)

    def write(self, number: int, source: str) -> None:
        """Replace what a cell holds."""
        script = "([n, text]) => jupyterapp.shell.currentWidget.content.widgets[n].model.sharedModel.setSource(text)"
        self.page.evaluate(script, [number, source])

    def run_from(self, number: int) -> None:
        """Run a cell and all below it. Returns when they are queued."""
        self.page.evaluate("n => { jupyterapp.shell.currentWidget.content.activeCellIndex = n }", number)
        self.command("notebook:run-all-below")
        self.until(self.starred, 20, f"cell {number} does not run")

    def outputs(self, number: int) -> list[dict[str, Any]]:
        """The outputs of a cell, as they would be saved."""
        script = "n => jupyterapp.shell.currentWidget.content.widgets[n].model.outputs?.toJSON() ?? []"
        return self.page.evaluate(script, number)

    def save(self) -> dict[str, Any]:
        """Save, and read the file back."""
        self.page.evaluate("() => jupyterapp.shell.currentWidget.context.save()")
        return json.loads((self.lab.folder / self.name).read_text())

    def theme(self, name: str) -> None:
        """Switch the theme: "JupyterLab Dark", "JupyterLab Light"."""
        self.command("apputils:change-theme", {"theme": name})
        light = "true" if "Light" in name else "false"
        self.page.wait_for_selector(f"body[data-jp-theme-light={light}]", state="attached", timeout=20_000)
        self.page.wait_for_timeout(600)

    # ---- looking and clicking

    def until(self, condition: Callable[[], Any], timeout: float, what: str) -> Any:
        """Poll until `condition()` is true; TimeoutError says `what`."""
        end = time.monotonic() + timeout
        while not (value := condition()):
            if time.monotonic() > end:
                raise TimeoutError(f"{self.name}: {what} within {timeout} s")
            self.page.wait_for_timeout(20)
        return value

    def screenshot(self, name: str) -> Path:
        """A picture of the window, in tests/browser/shots."""
        SHOTS.mkdir(exist_ok=True)
        file = SHOTS / f"{name}.png"
        self.page.screenshot(path=str(file))
        return file
