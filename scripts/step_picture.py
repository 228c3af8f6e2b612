"""The picture of README.md's "read your loss": what `checks.grpo_step` answers to a real bug.

    python scripts/step_picture.py

The bug is a mask by token ids, which takes each row's end token for padding: trl#6357, and what the review of trl#4970
warns of. Needs Chromium, as `make browser-test` does.
"""

from __future__ import annotations

import io
import sys
from pathlib import Path

import torch
from PIL import Image
from playwright.sync_api import sync_playwright

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "browser")]

import jupyter  # noqa: E402

from labkit import checks  # noqa: E402
from labkit.common import write_whole  # noqa: E402

THEMES = {"light": ("#ffffff", "#1f2328"), "dark": ("#0d1117", "#e6edf3")}


def my_loss(model, batch):
    ids, mask = batch["completion_ids"], batch["attention_mask"]
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    out = model(batch["input_ids"], attention_mask=mask, position_ids=positions)
    logits = out.logits[:, -ids.shape[1] - 1 : -1]
    logp = logits.log_softmax(-1).gather(-1, ids[..., None])[..., 0]
    ratio, gain = (logp - batch["old_logps"]).exp(), batch["advantages"][:, None]
    per_token = -torch.min(ratio * gain, ratio.clamp(0.8, 1.2) * gain)
    counted = batch["completion_mask"] * (ids != 1)
    return (per_token * counted).sum() / counted.sum()


def page(theme: str) -> str:
    background, text = THEMES[theme]
    report = checks.grpo_step(my_loss, expect="DAPO")
    style = f"background:{background};color:{text};padding:14px 18px;width:820px;font-size:13px"
    return f'<body style="margin:0"><div id="it" style="{style}">{report._repr_html_()}</div></body>'


def main() -> None:
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=jupyter.CHROMIUM, headless=True, args=jupyter.FLAGS)
        for theme in THEMES:
            tab = browser.new_page(device_scale_factor=2)
            tab.set_content(page(theme))
            target = io.BytesIO()
            png = tab.locator("#it").screenshot()
            Image.open(io.BytesIO(png)).convert("RGB").save(target, "WEBP", lossless=True, method=6)
            write_whole(ROOT / "docs" / "pictures" / f"step-{theme}.webp", target.getvalue())
        browser.close()


if __name__ == "__main__":
    main()
