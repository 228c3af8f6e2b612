"""The static site in Chromium, from files: it is found, turned and answered without a server, on a phone too."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import jupyter
import pytest

pytestmark = [pytest.mark.browser, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[2]
PAGE = "13_the_fix_is_on_disk_and_it_dies_again"  # the quickest with knobs, questions and exercises
SIZES = [(360, "light"), (768, "dark"), (1280, "light")]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    out = tmp_path_factory.mktemp("site") / "site"
    command = [sys.executable, str(ROOT / "scripts" / "site.py"), "--out", str(out)]
    subprocess.run([*command, "--as-committed"], check=True, cwd=ROOT)
    subprocess.run([*command, "13"], check=True, cwd=ROOT)
    return out


@pytest.fixture(scope="module")
def chromium():
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=jupyter.CHROMIUM, headless=True, args=jupyter.FLAGS)
        yield chromium
        chromium.close()


@pytest.fixture(params=SIZES, ids=lambda size: f"{size[0]} px, {size[1]}")
def tab(request, chromium):
    """A page that must ask nobody for anything, and must raise nothing."""
    width, scheme = request.param
    context = chromium.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
    page = context.new_page()
    asked, errors = [], []
    page.on("request", lambda sent: None if sent.url.startswith(("file:", "data:")) else asked.append(sent.url))
    page.on("pageerror", lambda error: errors.append(str(error)))
    yield page
    assert not asked and not errors
    context.close()


def test_every_page_fits_its_screen_from_a_phones_width_up(site, tab):
    pages = sorted(site.glob("*.html"))
    assert len(pages) >= 40
    for page in pages:
        tab.goto(page.as_uri())
        over = tab.evaluate("document.documentElement.scrollWidth - window.innerWidth")
        assert over <= 0, f"{page.name} is {over} px too wide"


def test_a_word_of_an_error_message_leads_to_its_page(site, tab):
    tab.goto((site / "index.html").as_uri())
    cards = tab.locator(".card:visible")
    everything = cards.count()
    tab.fill("input[type=search]", "probability tensor inf")
    assert 1 <= cards.count() < everything / 2
    assert "probability" in tab.locator(".card:visible mark").first.inner_text().lower()
    tab.fill("input[type=search]", "probability tensor zebra")
    assert cards.count() == 0 and tab.locator(".count").inner_text().startswith("0 of ")
    tab.keyboard.press("Escape")
    assert cards.count() == everything
    tab.locator('[data-page^="01_"] a').first.click()
    assert "The sampler asserts" in tab.title()


def test_a_knob_turns_a_question_answers_and_folded_code_opens_without_a_kernel(site, tab):
    tab.goto((site / f"{PAGE}.html").as_uri())
    figure = tab.locator(".labkit-page:has(input[type=checkbox])").first
    before = figure.locator("img:visible").get_attribute("src")
    figure.locator("input[type=checkbox]").first.click()
    assert figure.locator("img:visible").get_attribute("src") != before
    question = tab.locator(".labkit-page:has(input[type=radio])").first
    question.locator("label").nth(2).click()
    question.locator("button", has_text="Check").click()
    assert question.locator("label[data-mark=right]").count() == 1
    code = tab.locator("details.code").first
    assert not code.locator("pre").first.is_visible()
    code.locator("summary").click()
    assert code.locator("pre").first.is_visible()
