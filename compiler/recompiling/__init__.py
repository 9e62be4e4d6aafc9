"""`freshet compile`: a version that lies in a repository, compiled anew.

recompile         backends, buckets, calibration, and a manifest with what was chosen
calibration_rows  rows to calibrate by, from the version's tables or labelled data
compile_report    costs and errors by backend and bucket, as lines of text
"""

__all__ = ["compile_report", "recompile"]
