"""Analysis of embedding tables: their contents, estimated savings of admission and eviction, and the most changed rows.

Rows are read in pieces, from files as they are mapped.
row_layers      a table as layers, newest first: iterates over its rows, and finds rows by id
table_summary   histograms and estimated savings of a table
changed_rows    compares two generations of a table
analysis_files  both as Parquet
analysis_page   both as one self-contained HTML page
"""

__all__ = ["analysis_files", "analysis_page", "changed_rows", "row_layers", "table_summary"]
