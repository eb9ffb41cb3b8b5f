"""Chromium without a window, and the pages that it opens. Pictures are kept in build/browser."""

import shutil
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "unit"))  # the made-up runs

SCREENSHOTS = Path("build/browser")
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--force-device-scale-factor=1", "--hide-scrollbars",
)  # fmt: skip


@pytest.fixture(scope="session")
def chromium(tmp_path_factory):
    """A browser with a profile of its own, whose console and requests are kept."""
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed (make setup)")
    for program in ("chromium", "chromedriver"):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed (apt-get install chromium chromium-driver)")
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium")
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(shutil.which("chromedriver")))
    driver.set_script_timeout(60)
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    yield driver
    driver.quit()


@pytest.fixture(scope="session")
def pages(tmp_path_factory):
    """Name -> page."""
    import made

    return made.pages(tmp_path_factory.mktemp("pages"))


@pytest.fixture(scope="session")
def large(tmp_path_factory):
    import made

    return made.large(tmp_path_factory.mktemp("large"))
