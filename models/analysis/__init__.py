"""Analysis of embedding tables: what lies in them, what sparing rows would save and cost, and which have moved most.

Rows are read in pieces, from files as they are mapped.

row_layers      a table as layers, the newest first: pieces of its rows, and rows by id
table_summary   what a table's rows come to
changed_rows    two generations of a table side by side
analysis_files  both as Parquet
analysis_page   both as a page of HTML that needs nothing else
"""

__all__ = ["analysis_files", "analysis_page", "changed_rows", "row_layers", "table_summary"]
