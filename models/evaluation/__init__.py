"""Measure scored rows: held-out rows during training, and any generation with `freshet evaluate`.

tally              labelled scores counted by key and score in bounded memory
quality            AUC, log-loss, and advice about a poor AUC
calibration        predicted against observed, by decile
ranking            hit rate and NDCG of each group's first rows
catalogue_ranking  hit rate and NDCG of the next item among all items
slices             metrics by the value of a column, AUC within groups
evaluation_metrics  all metrics of each label
extra_columns      columns of the data that are not features
generation_scorer  one generation, opened to score as a server does
evaluate           evaluation of a generation on a table
next_item_evaluation  the same of a generation, on an event log
item_vectors       an output of a generation for every item of a table
"""

__all__ = [
    "catalogue_ranking",
    "evaluate",
    "evaluation_metrics",
    "extra_columns",
    "generation_scorer",
    "item_vectors",
    "next_item_evaluation",
    "quality",
    "slices",
]
