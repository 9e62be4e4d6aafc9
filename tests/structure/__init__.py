"""The structure of the code base in figures: `python -m tests.structure` counts the working tree."""
