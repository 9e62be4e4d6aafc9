"""Pages of figures; without hosts and paths, as reports are to be shared.

report        the figures of a run
live_page     the page of a load test, one HTML file
svg_chart     its charts
figures_page  docs/reference/figures.md: the ten that matter most
"""

__all__ = ["live_page", "report"]
