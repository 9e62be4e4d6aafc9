"""What is said of a package that was trained here, whose manifest has no report of an import."""

from freshet_serving.compiler.imports.report_text import lines, report_of
from freshet_serving.processor.package import FLOPS
from freshet_serving.processor.repository.version import VersionReader
from tests.corpus.entry import FROZEN, read_entry


def test_report_of_a_package_counts_the_flops_of_its_graph(tmp_path):
    entry = read_entry(FROZEN / "histories-timed")
    entry.lay_out(tmp_path, entry.moments[0])
    source = tmp_path / entry.model / "1"
    notes = VersionReader(source).manifest.notes
    assert any(line.endswith(" 80 FLOPs a row fewer") for line in notes["passes"])
    report = report_of(source, "")
    assert report["flops"] == notes[FLOPS]["whole"] + 80
    assert list(lines(report))[-1].startswith(f"  {report['flops']:,} FLOPs a row; ")
