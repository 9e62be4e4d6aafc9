"""Programs about the product as a whole, and about the tests: what `make -C loadtest NAME` runs of tests."""
