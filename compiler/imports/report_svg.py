"""Draw the report of an import: inputs, tables and stage on the left, the dense graph on the right."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any

ROW, PAD, WIDTH = 34, 16, 980
SENDER, WIRE, DENSE = (20, 330), (350, 600), (620, 960)
COLOURS = {"table": "#dbe9f6", "the stage": "#fbe3cf", "the request": "#e7efdd"}
MAX_PAIRS = 200
MAX_OPS = 24


def svg(report: Mapping[str, Any]) -> str:
    """Return an SVG with a box for each tensor that is handed over, coloured by sender, and a line to its columns."""
    pairs = report["boundary"][:MAX_PAIRS]
    dense = list(report["sides"]["dense"].items())[:MAX_OPS]
    stage = list(report["sides"]["stage"].items())[:MAX_OPS]
    rows = max(len(pairs), (len(dense) + 1) // 2 + 3, 3)
    height = rows * ROW + 150 + 18 * ((len(stage) + 3) // 4)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
        _text(20, 28, f"{report['source']}, signature {report['signature']}", 15),
        _text(20, 50, "sent by the sparse side, on the CPU"),
        _text(DENSE[0], 50, "the dense graph"),
    ]
    top = 64
    middle = top + rows * ROW / 2
    parts.append(_box(DENSE[0], top, DENSE[1] - DENSE[0], rows * ROW - 8, "#efe9f7"))
    for i, (op, count) in enumerate(dense):
        x, y = DENSE[0] + PAD + (i % 2) * 160, top + 24 + (i // 2) * 20
        parts.append(_text(x, y, f"{op} {count}" if count > 1 else op))
    parts.append(_text(DENSE[0] + PAD, top + rows * ROW - 20, f"{report['flops']:,} FLOPs a row"))
    for i, pair in enumerate(pairs):
        y = top + i * ROW
        kind = "table" if pair["sender"].startswith("table") else pair["sender"]
        parts.append(_box(SENDER[0], y, SENDER[1] - SENDER[0], ROW - 8, COLOURS[kind]))
        parts.append(_text(SENDER[0] + 8, y + 17, _short(f"{pair['input']}: {pair['sender']}", 46)))
        first, last = pair["columns"]
        shape = ", ".join("n" if d == -1 else str(d) for d in pair["shape"])
        parts.append(
            f'<path d="M{SENDER[1]} {y + 13} C{WIRE[1]} {y + 13} {WIRE[0]} {middle:.0f} {DENSE[0]} {middle:.0f}" '
            'fill="none" stroke="#9a9a9a"/>'
        )
        parts.append(_text(WIRE[0], y + 9, f"{pair['dtype']} [{shape}] -> {first}:{last}", 10))
    bottom = top + rows * ROW + 20
    if stage:
        parts.append(_text(20, bottom, "the stage (TensorFlow)"))
        for i, (op, count) in enumerate(stage):
            parts.append(_text(20 + (i % 4) * 230, bottom + 20 + (i // 4) * 18, f"{op} {count}" if count > 1 else op))
    for i, note in enumerate(report["notes"][:2]):
        parts.append(_text(20, height - 34 + 16 * i, _short(note, 150)))
    return "\n".join([*parts, "</svg>\n"])


def _box(x: float, y: float, width: float, height: float, colour: str) -> str:
    return f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="4" fill="{colour}" stroke="#777"/>'


def _text(x: float, y: float, text: str, size: int = 12) -> str:
    return f'<text x="{x}" y="{y}" font-size="{size}">{escape(text)}</text>'


def _short(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"
