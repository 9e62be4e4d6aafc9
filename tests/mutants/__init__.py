"""Small changes of the code, one at a time: does a test notice? `make mutants`; loadtest/results/mutants.md."""
