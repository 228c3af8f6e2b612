"""`checks.grpo_step` on TRL's own losses, over its loss types and options: the table of docs/grpo-step.md."""

import re
from pathlib import Path

import pytest

pytest.importorskip("trl", reason="needs trl: pip install labkit[trl]")

import torch  # noqa: E402
import trl_losses  # noqa: E402

from labkit.checks import grpo_step  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")
PAGE = Path(__file__).resolve().parents[2] / "docs" / "grpo-step.md"
WORDS = {True: "passes", False: "fails", None: "open"}


def written(options):
    return ", ".join(f"{name}={value!r}" for name, value in options.items())


@pytest.mark.parametrize(("options", "said", "passed", "variant", "part"), trl_losses.TABLE)
def test_trls_loss_is_read_as_what_its_options_make_it(options, said, passed, variant, part):
    report = grpo_step(trl_losses.grpo(**options), **said)
    assert (report.passed, report.variant) == (passed, variant), report
    assert any(part in text for text in report.parts.values()), report.parts
    # no row of the page says otherwise
    row = f"| `{written(options)}` | `{written(said)}` | {WORDS[passed]} | {variant} |".replace("``", "")
    row, text = (re.sub(r" +", " ", one) for one in (row, PAGE.read_text()))
    assert row in text, row


def test_trls_rloo_is_a_ratio_of_the_whole_sequence():
    report = grpo_step(trl_losses.rloo(), expect="RLOO")
    assert report and report.parts["ratio"] == "ratio of the whole sequence"


def test_trls_mask_without_the_end_token_is_named():
    loss = trl_losses.grpo()

    def without_end(model, batch):
        return loss(model, batch | {"completion_mask": batch["completion_mask"] * (batch["completion_ids"] != 1)})

    report = grpo_step(without_end)
    # the same mask hides the end from the model
    assert report.passed is False and "end token" in report.hint


def test_a_fused_head_gives_the_eager_weights():
    """TRL's chunked log-probs against its loss written out: token by token."""
    import step_losses as own

    eager = grpo_step(own.grpo(reduce=own.all_tokens))
    fused = grpo_step(trl_losses.grpo())
    found = [torch.tensor([one.found for one in report.tokens]) for report in (eager, fused)]
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-6)
