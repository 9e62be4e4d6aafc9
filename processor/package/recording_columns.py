"""Columns of recorded requests beside the features: serving.telemetry.request_recorder writes, models.joining reads
them."""

METADATA = b"freshet"
REQUEST, ROW, TIME, GENERATION, OUTPUT, INPUT = (
    "freshet.request", "freshet.row", "freshet.time", "freshet.generation", "freshet.output.", "freshet.input.",
)  # fmt: skip
