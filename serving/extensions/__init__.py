"""All that answering predictions does not need: a folder each, found by name (serving.ports). The core imports none."""
