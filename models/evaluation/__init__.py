"""Evaluation: scored rows in, metrics out; by training of what it held out, by `freshet evaluate` of any generation.

tally              labelled scores counted by key and score, in bounded memory
quality            AUC, log-loss, and what to do about a poor one
calibration        predicted against observed, by decile
slices             metrics by the value of a column, AUC within groups
evaluation_metrics  all of it, for each label
extra_columns      columns of the data that are no features
generation_scorer  one generation, opened to score as a server answers
evaluate           a generation on a table
item_vectors       an output of a generation for every item of a table
"""

__all__ = ["evaluate", "evaluation_metrics", "extra_columns", "generation_scorer", "item_vectors", "quality", "slices"]
