"""The sample of `freshet serve --sample`: a small model with recorded deltas, for a first look.

replay  lays the sample out as a repository, and adds its deltas one after another

Its data, made by `python -m generators.sample`:

sample.zip    the version's files, and those of its deltas
request.json  a request, and its scores by the full version and by the last delta
"""

__all__ = ["replay"]
