"""Explanations of scores: what one row of a request has read, and what it would score under another generation.

explanation       the report: one row, under one generation or two
feature_values    what each feature reads of a bound request
spare_executable  executables of one bucket, opened apart from those that answer requests
scoring_process   the same in a process of its own, for a supervisor
movers            which feature, or the dense weights, moved a score
"""

__all__ = ["explanation", "scoring_process"]
