"""Hold deltas of more than MOST_ROWS rows, and every third version."""

from freshet_serving.processor.versions.judges import DeltaJudge, Judge
from freshet_serving.processor.watching import Figure, Finding, Verdict

MOST_ROWS = 3


class FewRows(Judge):
    """The toy's judge of one model."""

    def of_version(self):
        return FewRowsOfDeltas()

    def check(self, before, after):
        return "" if after.manifest.version % 3 else "a third version"


class FewRowsOfDeltas(DeltaJudge):
    """Its judge of one version's deltas."""

    judges = True

    def examine(self, version, delta, change, asked):
        figures = (Figure("toy_rows", "", delta.rows),)
        verdict = Verdict("toy_rows", f"{delta.rows} rows, limit {MOST_ROWS}") if delta.rows > MOST_ROWS else None
        return Finding(figures, verdict)
