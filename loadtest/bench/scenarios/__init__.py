"""The scenarios of `make bench`, one a module: run(bench) measures and returns a Result."""
