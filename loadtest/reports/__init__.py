"""Pages and pictures of figures; without hosts and paths, as reports are to be shared.

report        the figures of a run
live_page     the page of a load test, one HTML file
svg_chart     its charts
charts        pictures of comparisons
figures_page  docs/figures.md, of all reports
training_figures  its figures of training and of lookups
"""

__all__ = ["charts", "live_page", "report"]
