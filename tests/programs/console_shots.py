"""`make -C loadtest console-shots`: the console's views, light and dark, wide and narrow, into docs/extensions/admin/.

Takes the folder to write to. Colours are counted down to a palette, so that all pictures are a megabyte.
"""

from __future__ import annotations

import io
import sys
import tempfile
from pathlib import Path

from loadtest.bench import needs
from tests.support.console_pages import SIZES, VIEWS, browser, missing, page_of, show
from tests.support.console_stage import Stage, held, played

COLOURS = 112


def main(out):
    why = missing()
    if why:
        needs.refuse(f"console-shots: {why}")
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, Stage(Path(folder)) as stage, browser() as opened:
        played(stage)
        with page_of(opened, stage.address) as page:
            show(page, "overview")
            # So that the charts have something to show.
            page.wait_for_timeout(60_000)
        held(stage)
        for scheme in ("light", "dark"):
            for size in SIZES:
                with page_of(opened, stage.address, size, scheme) as page:
                    for view in VIEWS:
                        show(page, view)
                        act(page, view)
                        page.wait_for_timeout(1500)
                        shoot(page, out / f"{view}-{size}-{scheme}.png")
                    show(page, "timeline")
                    page.locator(".timeline .served summary").first.click()
                    page.locator(".timeline .served button.back").first.click()
                    shoot(page, out / f"action-{size}-{scheme}.png", whole=False)
    print(f"{sum(p.stat().st_size for p in out.glob('*.png')) / 1e6:.2f} MB in {out.name}")


def act(page, view):
    """What is done in a view before it is shown."""
    if view == "timeline":
        page.locator(".timeline .current summary").first.click()
    elif view == "try":
        page.get_by_role("button", name="Send").click()
        page.wait_for_selector(".result table, .result .problem")
    elif view == "explain":
        page.wait_for_function("document.querySelectorAll('select')[1].options.length > 8")
        page.get_by_label("Against").select_option(index=8)
        page.get_by_role("button", name="Explain", exact=True).click()
        page.wait_for_selector(".features, .problem.panel")


def shoot(page, path, whole=True):
    """A picture of the page, as far as three windows down."""
    from PIL import Image

    page.evaluate("scrollTo(0, 0)")
    width, height = page.viewport_size["width"], page.viewport_size["height"]
    tall = page.evaluate("document.documentElement.scrollHeight") if whole else height
    clip = {"x": 0, "y": 0, "width": width, "height": min(tall, 2 * height)}
    image = Image.open(io.BytesIO(page.screenshot(full_page=whole, clip=clip))).convert("RGB")
    image.quantize(COLOURS, dither=Image.Dither.NONE).save(path, optimize=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
