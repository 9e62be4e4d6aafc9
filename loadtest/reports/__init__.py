"""Pages and pictures of figures; without hosts and paths, as reports are to be shared.

report  the figures of a run, and the page that shows them
plots   a load test's two pictures
charts  pictures of comparisons
"""

__all__ = ["charts", "plots", "report"]
