"""A browser on the console: Debian's Chromium under Playwright, where both are there."""

from __future__ import annotations

import contextlib
import shutil

SIZES = {"desktop": (1440, 900), "phone": (390, 844)}
VIEWS = ("overview", "timeline", "traffic", "tables", "try", "explain")
BROWSERS = ("chromium", "chromium-browser", "google-chrome")


def missing():
    """Why there is no browser to drive, "" where there is one."""
    try:
        import playwright.sync_api  # noqa: F401
    except ImportError:
        return "Playwright is not installed: pip install playwright"
    return "" if executable() else "no Chromium: apt-get install chromium"


def executable():
    return next((path for name in BROWSERS if (path := shutil.which(name))), None)


@contextlib.contextmanager
def browser():
    """A browser without a window."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=executable(), args=["--no-sandbox", "--disable-gpu"])
        try:
            yield opened
        finally:
            opened.close()


@contextlib.contextmanager
def page_of(opened, address, size="desktop", scheme="light", **options):
    """A page of the console; what it says on its own console as an error, or loads from elsewhere, is in `troubles`."""
    width, height = SIZES[size]
    context = opened.new_context(
        viewport={"width": width, "height": height}, color_scheme=scheme, reduced_motion="reduce",
        is_mobile=size == "phone", **options,
    )  # fmt: skip
    page = context.new_page()
    page.troubles = []
    page.on("pageerror", lambda error: page.troubles.append(str(error)))
    page.on("console", lambda said: page.troubles.append(said.text) if said.type == "error" else None)
    page.on("request", lambda asked: page.troubles.append(asked.url) if not _ours(asked.url, address) else None)
    page.address = address
    try:
        page.goto(f"{address}/#/")
        yield page
    finally:
        # A handler that still runs when its page closes finds its response gone, and the browser does not close.
        page.unroute_all(behavior="wait")
        context.close()


def show(page, view):
    """Goes to a view, and waits until it shows something."""
    page.goto(f"{page.address}/#/" if view == "overview" else f"{page.address}/#/models/ctr/{view}")
    page.wait_for_selector(MARKS[view])
    page.wait_for_load_state("load")


MARKS = {
    "overview": ".card .spark",
    "timeline": ".timeline li",
    "traffic": "table.stack tbody tr",
    "tables": "table.stack tbody tr",
    "try": "textarea",
    "explain": ".fields button",
}


def overflowing(page):
    """What is wider than the window: elements by their tag and class, with how far they go."""
    return page.evaluate(OVERFLOWING)


OVERFLOWING = """() => {
    const wide = document.documentElement.clientWidth, found = [];
    if (document.documentElement.scrollWidth > wide) found.push(`page ${document.documentElement.scrollWidth}`);
    for (const e of document.querySelectorAll("body *")) {
        const box = e.getBoundingClientRect(), name = `${e.tagName}.${e.className}`;
        if (e.closest(".hidden, .skip, svg, thead") || !box.width) continue;
        if (box.right > wide + 0.5 || box.left < -0.5) found.push(`${name} ${box.left}..${box.right}`);
        const scrolls = ["auto", "scroll"].includes(getComputedStyle(e).overflowX);
        if (scrolls && e.scrollWidth > e.clientWidth + 1) found.push(`${name} scrolls`);
    }
    return found;
}"""


def _ours(url, address):
    return url.startswith((address, "data:", "blob:"))
