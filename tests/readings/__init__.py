"""Readings with fresh eyes: what a reader learns from the texts alone, graded by a script.

questions.toml   42 questions: (a) ARCHITECTURE.md, (b) docstrings of twenty modules, (c) README.md and docs/
key.toml         what a right answer names, checked against the code, for the texts before the plain-English rewrite
                 (commit 7d208561, "old") and after it ("new")
answers-*.toml   what readers answered who saw those texts and nothing else: 42 of 42 right, before and after

    python tests/readings/grade.py tests/readings/answers-2026-11-26.toml new
"""
