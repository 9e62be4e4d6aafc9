"""Recompile a version that is already in a repository (`freshet compile`).

recompile         backends, buckets, calibration, and a manifest with the choice
calibration_rows  calibration sets, from the version's tables or labelled data
compile_report    costs and errors by backend and bucket, as lines of text
"""

__all__ = ["compile_report", "recompile"]
