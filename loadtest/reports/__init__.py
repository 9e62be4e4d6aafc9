"""Pages and pictures of figures; without hosts and paths, as reports are to be shared.

report        the figures of a run
live_page     the page of a load test, one HTML file
svg_chart     its charts
charts        pictures of comparisons
figures_page  loadtest/results/figures.md: all figures of the reports
summary_page  docs/reference/figures.md: the ten that matter most
figure_sources  reads figures from the reports
training_figures  those of training and of lookups
learning_figures  those of streams, guards, joins and several processes
store_figures  those of object stores
"""

__all__ = ["charts", "live_page", "report", "training_figures"]
