"""Explanations of scores: what one row of a request has read, and its score under another generation.

explanation       explains one row, under one generation or two
feature_values    finds what each feature reads of a bound request
spare_executable  executables of one bucket, opened separately from those that answer requests
scoring_process   runs spare executables in a process of their own, for a supervisor
movers            attributes a change of score to features, histories and dense weights
event_effects     attributes a score to the events of a history
"""

from freshet_serving.processor.ports import Extension

__all__ = ["explanation", "scoring_process"]

REQUIRES = ()
EXTENSION = Extension()
