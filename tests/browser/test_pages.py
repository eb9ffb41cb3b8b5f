"""Every page in a real browser: quiet, alone, whole, readable, and safe, on a desk and on a phone, by day and by night."""

import base64
import json
import time
from pathlib import Path

import pytest
from conftest import SCREENSHOTS
from made import SHOWN

pytestmark = pytest.mark.browser

NAMES = ("churn", "failed", "simulation", "compare", "traces-links", "traces-availability", "docs")
CHECKS = (Path(__file__).parent / "checks.js").read_text()
DRAW_ALL = """
const done = arguments[0];
(async () => {
  for (const box of document.querySelectorAll(".plot")) {
    box.scrollIntoView();
    for (let i = 0; i < 400 && !box.drawnWidth; i++) await new Promise(r => setTimeout(r, 10));
  }
  await new Promise(r => setTimeout(r, 100));
  scrollTo(0, 0);
  done(document.querySelectorAll(".plot").length);
})();
"""
IN_VIEW = "const r = document.activeElement.getBoundingClientRect(); return r.bottom > 0 && r.top < innerHeight"
FOCUSABLE = (
    "[...document.querySelectorAll('a[href], summary, button, [tabindex=\"0\"]')].filter(e => e.checkVisibility())"
)


def opened(driver, page, width, theme):
    """Open a page of a width in a theme, draw all its figures; how many there are."""
    media = {"features": [{"name": "prefers-color-scheme", "value": theme}]}
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    driver.get_log("browser"), driver.get_log("performance")  # of the page before
    driver.get(page.as_uri())
    return driver.execute_async_script(DRAW_ALL)


def picture(driver, name):
    shot = driver.execute_cdp_cmd("Page.captureScreenshot", {"captureBeyondViewport": True, "format": "png"})
    (SCREENSHOTS / f"{name}.png").write_bytes(base64.b64decode(shot["data"]))


def requests(driver):
    """Addresses that the page asked for, but for files and what stands in itself."""
    messages = [json.loads(entry["message"])["message"] for entry in driver.get_log("performance")]
    asked = [m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"]
    return [url for url in asked if not url.startswith(("file:", "data:", "blob:"))]


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("name", NAMES)
def test_a_page_is_whole_and_readable(chromium, pages, name, width, theme):
    if name not in pages:
        pytest.skip("the documentation is not built (make docs)")
    opened(chromium, pages[name], width, theme)
    picture(chromium, f"{name}-{width}-{theme}")
    wrong = chromium.execute_script(CHECKS)
    assert not wrong, "\n".join(wrong[:20])
    assert chromium.get_log("browser") == []
    assert requests(chromium) == []


@pytest.mark.parametrize("name", ["churn", "failed", "compare", "traces-links"])
def test_the_tab_key_goes_through_a_page_in_reading_order(chromium, pages, name):
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys

    opened(chromium, pages[name], 1280, "light")
    count = chromium.execute_script(f"return {FOCUSABLE}.length")
    for expected in range(min(count, 40)):
        chromium.switch_to.active_element.send_keys(Keys.TAB)
        at = chromium.execute_script(f"return {FOCUSABLE}.indexOf(document.activeElement)")
        assert at == expected, chromium.switch_to.active_element.get_attribute("outerHTML")[:200]
        _until(lambda: chromium.execute_script(IN_VIEW))  # it scrolls smoothly
    assert count >= len(chromium.find_elements(By.CSS_SELECTOR, "nav a"))


def test_the_documentation_is_searched_from_the_disk(chromium, pages):
    from selenium.webdriver.common.by import By

    if "docs" not in pages:
        pytest.skip("the documentation is not built (make docs)")
    opened(chromium, pages["docs"], 1280, "dark")
    assert chromium.find_element(By.TAG_NAME, "body").get_attribute("data-md-color-scheme") == "slate"
    field = chromium.find_element(By.CSS_SELECTOR, "input.md-search__input")
    chromium.execute_script("arguments[0].focus()", field)
    field.send_keys("goodput")
    _until(lambda: chromium.find_elements(By.CSS_SELECTOR, ".md-search-result__item"))
    assert chromium.get_log("browser") == []
    assert requests(chromium) == []


def test_hostile_texts_are_shown_as_they_are(chromium, pages):
    seen = {}
    for name in ("churn", "failed", "traces-links"):
        opened(chromium, pages[name], 1280, "light")
        seen[name] = chromium.execute_script("return document.body.textContent")
        assert chromium.execute_script("return window.hostile") is None
        assert chromium.execute_script("return document.querySelectorAll('main img').length") == 0
    for text in SHOWN:
        assert text in seen["churn"]
        assert text in seen["failed"]
    assert SHOWN[0] in seen["traces-links"]


def test_figures_follow_the_theme_and_the_width(chromium, pages):
    opened(chromium, pages["churn"], 1280, "light")
    colour = "return getComputedStyle(document.querySelector('.plot svg text')).fill"
    light = chromium.execute_script(colour)
    media = {"features": [{"name": "prefers-color-scheme", "value": "dark"}]}
    chromium.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
    _until(lambda: chromium.execute_script(colour) != light)
    size = {"width": 390, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    chromium.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    _until(lambda: chromium.execute_script("return document.querySelector('.plot svg').clientWidth") < 390)
    assert not chromium.execute_script(CHECKS)


def _until(condition, seconds=10.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_the_checks_see_what_is_wrong(chromium, pages):
    """Each fault, one after the other, made on purpose in a page that had none."""
    faults = {
        "cut:": "document.querySelector('.plot .xtitle').setAttribute('x', -3)",
        '" over "': "document.querySelectorAll('.plot text').forEach(t => { t.setAttribute('x', 90); t.setAttribute('y', 90) })",
        "contrast": "document.querySelector('main h1').style.color = '#fafafa'",
        "px wide": "document.querySelector('main h2').style.width = '3000px'",
        "not drawn": "document.querySelector('.plot .drawing').remove()",
        "alternative": "document.querySelector('.plot').removeAttribute('aria-label')",
        "was run": "window.hostile = 1",
        "element": "document.querySelector('main').append(new Image())",
    }
    opened(chromium, pages["failed"], 1280, "light")
    for sentence, fault in faults.items():
        assert not any(sentence in w for w in chromium.execute_script(CHECKS)), sentence
        chromium.execute_script(fault)
        assert any(sentence in w for w in chromium.execute_script(CHECKS)), sentence
    chromium.execute_script("console.error('x'); fetch('http://127.0.0.1:9/').catch(() => 0)")
    _until(lambda: chromium.get_log("browser"))
    assert requests(chromium) == ["http://127.0.0.1:9/"]


def test_a_thousand_homes_and_steps_open_soon(chromium, large):
    assert large.stat().st_size <= 20e6
    opened(chromium, Path("/dev/null"), 1280, "light")
    start = time.monotonic()
    chromium.get(large.as_uri())
    visible = "const b = document.querySelector('.plot'); return b.drawnWidth && !!b.querySelector('svg .trace')"
    _until(lambda: chromium.execute_script(f"document.querySelector('.plot').scrollIntoView(); {visible}"))
    took = time.monotonic() - start
    print(f"{large.stat().st_size / 1e6:.1f} MB, {took:.2f} s")
    opened(chromium, large, 1280, "light")
    picture(chromium, "large-1280-light")
    assert not chromium.execute_script(CHECKS)
    assert took <= 3
