"""Measure scored rows, held out in training or of any generation (`freshet evaluate`), and analyse embedding tables.

tally              labelled scores counted by key and score in bounded memory
quality            AUC, log-loss, and advice about a poor AUC
calibration        predicted against observed, by decile
ranking            hit rate and NDCG of each group's first rows
catalogue_ranking  hit rate and NDCG of the next item among all items
slices             metrics by the value of a column, AUC within groups
evaluation_metrics  all metrics of each label
counting_baselines  counts that a network has to beat
extra_columns      columns of the data that are not features
generation_scorer  one generation, opened to score as a server does
evaluate           evaluation of a generation on a table
next_item_baselines  counts that a next-item network has to beat
next_item_evaluation  evaluation of a next-item network on an event log
retrieval_ranking  recall and NDCG of chosen items among a catalogue
retrieval_evaluation  evaluation of two towers that learn to retrieve
item_vectors       an output of a generation for every item of a table
row_layers         an embedding table as layers, newest first: iterates over its rows, and finds rows by id
table_summary      histograms of a table, and estimated savings of admission and eviction
changed_rows       compares two generations of a table
analysis_files     summaries and changes of tables as Parquet
analysis_page      both as one self-contained HTML page
"""

__all__ = [
    "analysis_files",
    "analysis_page",
    "catalogue_ranking",
    "changed_rows",
    "counting_baselines",
    "evaluate",
    "evaluation_metrics",
    "extra_columns",
    "generation_scorer",
    "item_vectors",
    "next_item_baselines",
    "next_item_evaluation",
    "quality",
    "retrieval_evaluation",
    "retrieval_ranking",
    "row_layers",
    "slices",
    "table_summary",
]
