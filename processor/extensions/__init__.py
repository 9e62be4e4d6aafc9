"""All that a predict and a delta do not need: a folder each, found by name (processor.ports). The core imports none."""
