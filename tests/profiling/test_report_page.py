"""The report in a real browser: opened from a file, without a network."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Page

from sglang_photon.profiling.folder import Recording
from sglang_photon.profiling.report import write_report
from sglang_photon.reference.models import names
from tests.unit.profiling.recordings import (
    COMMIT_STACK,
    LAUNCH_STACK,
    PLAN_STACK,
    WAIT_STACK,
    recording,
    steps,
)

api = pytest.importorskip("playwright.sync_api", reason="needs the extra `test`")

BROWSERS = ("chromium", "chromium-headless-shell", "google-chrome", "chromium-browser")
CHROMIUM = next((found for name in BROWSERS if (found := shutil.which(name))), None)
pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason="needs Chromium: apt-get install chromium-headless-shell"
)
SLOW = ("Mixer.slow_<part>", "/x/ours.py", 3)
STACKS = [
    ([*PLAN_STACK, SLOW], 2e-3),
    (LAUNCH_STACK, 1e-3),
    (COMMIT_STACK, 1e-3),
    (WAIT_STACK, 3e-3),
]


@contextmanager
def opened(file: Path, *, width: int = 1200, scheme: str = "light") -> Iterator[Page]:
    """The page; whatever it complains about fails the test."""
    said: list[str] = []
    with api.sync_playwright() as driver:
        # As root, Chromium's own sandbox cannot start.
        browser = driver.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox"] if os.geteuid() == 0 else []
        )
        context = browser.new_context(
            viewport={"width": width, "height": 800}, color_scheme=scheme, offline=True
        )
        page = context.new_page()
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("requestfailed", lambda request: said.append(request.url))
        page.goto(file.as_uri())
        yield page
        browser.close()
    assert said == []


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Recording:
    return recording(
        tmp_path_factory.mktemp("recordings") / "after",
        stacks=STACKS * 100,
        records=steps(100, idle_s=2e-3),
        facts={"model": names.resolve("demo").path},
    )


@pytest.fixture(scope="module")
def report(made: Recording) -> Path:
    return write_report(made, gpu="H100-SXM")


def test_the_verdict_stands_on_top_and_every_part_is_there(report: Path) -> None:
    with opened(report) as page:
        assert page.locator("#verdict").inner_text().startswith("bubbles: YES")
        assert "Mixer.slow_<part>" in page.locator("#verdict").inner_text()
        assert page.locator("#phases tr").count() >= 6
        assert page.locator("#lanes div").count() > 150
        assert page.locator("#roofline svg circle, #roofline svg .measured").count() >= 1
        assert "perturbation" in page.locator("#facts").inner_text()
        top = page.locator("#verdict").bounding_box()
        assert top is not None
        assert top["y"] < 150


def test_search_highlights_and_says_how_much(report: Path) -> None:
    with opened(report) as page:
        page.fill("#search", "slow_<PART>")
        assert page.locator("#flame button.hit").count() == 1
        assert page.locator("#found").inner_text().startswith("1 boxes, 28.6 %")
        page.fill("#search", "no such function")
        assert page.locator("#flame button.hit").count() == 0
        assert page.locator("#found").inner_text().startswith("0 boxes, 0.0 %")


def test_a_click_zooms_and_back(report: Path) -> None:
    with opened(report) as page:
        box = page.locator("#flame button", has_text="slow_")
        before = box.bounding_box()
        box.click()
        after = page.locator("#flame button", has_text="slow_").bounding_box()
        whole = page.locator("#flame").bounding_box()
        assert before is not None
        assert after is not None
        assert whole is not None
        assert before["width"] < whole["width"] * 0.35
        assert after["width"] == pytest.approx(whole["width"], abs=2)
        page.click("#reset")
        again = page.locator("#flame button", has_text="slow_").bounding_box()
        assert again is not None
        assert again["width"] == pytest.approx(before["width"], abs=2)


def test_the_keyboard_is_enough(report: Path) -> None:
    with opened(report) as page:
        page.keyboard.press("/")
        assert page.evaluate("document.activeElement.id") == "search"
        page.keyboard.type("commit")
        assert page.locator("#flame button.hit").count() >= 1
        page.keyboard.press("Escape")
        assert page.locator("#flame button.hit").count() == 0
        name = "document.activeElement.textContent"
        assert page.evaluate(name) == "scheduler"
        page.keyboard.press("ArrowDown")
        assert page.evaluate(name).startswith("<module>")
        page.keyboard.press("ArrowDown")
        page.keyboard.press("ArrowDown")
        inner = page.evaluate(name)
        page.keyboard.press("Enter")
        assert page.evaluate(name) == inner
        assert inner in page.locator("#told").inner_text()
        page.keyboard.press("ArrowUp")
        assert page.evaluate(name) != inner


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1200])
def test_it_can_be_read(report: Path, width: int, scheme: str) -> None:
    with opened(report, width=width, scheme=scheme) as page:
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        for selector in ("#verdict", "#about", "#phases", "#facts", "#steps-note"):
            assert contrast(page, selector) >= 4.5, selector
        size = page.evaluate("parseFloat(getComputedStyle(document.body).fontSize)")
        assert size >= 14


def contrast(page: Page, selector: str) -> float:
    """The ratio of WCAG between an element's text and what is behind it."""
    colours = page.evaluate(
        """selector => {
          const element = document.querySelector(selector);
          let behind = element;
          const back = e => getComputedStyle(e).backgroundColor;
          while (behind && back(behind) === "rgba(0, 0, 0, 0)") behind = behind.parentElement;
          return [getComputedStyle(element).color, back(behind || document.body)];
        }""",
        selector,
    )
    light, dark = sorted((luminance(colour) for colour in colours), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def luminance(colour: str) -> float:
    parts = [int(part) / 255 for part in colour[colour.index("(") + 1 : -1].split(",")[:3]]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_before_and_after_in_one_page(made: Recording, tmp_path: Path) -> None:
    before = recording(
        tmp_path / "before",
        stacks=[*STACKS, (PLAN_STACK, 9e-3)] * 99,
        records=steps(100, idle_s=9e-3),
    )
    file = write_report(made, before=before, file=tmp_path / "both.html")
    with opened(file) as page:
        assert page.locator(".bar.before").count() >= 6
        page.locator("#flame button").nth(3).focus()
        assert "before" in page.locator("#told").inner_text()


def test_a_recording_without_anything_still_has_a_page(tmp_path: Path) -> None:
    file = write_report(recording(tmp_path / "empty"))
    with opened(file) as page:
        assert page.locator("#verdict").inner_text().startswith("bubbles: cannot tell")
        assert page.locator("#flame").inner_text() == "No stacks were recorded."
        assert "keeps no step records" in page.locator("#steps-note").inner_text()
