"""The structure of the code base in figures, and a proof that moves and renames change nothing else.

`python -m tests.structure` counts the working tree; `python -m tests.structure.same` compares two commits.
"""
