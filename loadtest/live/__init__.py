"""`make loadtest`: one checked run, from an empty folder to a report.

run          the whole of it: repository, server, load, prober, figures
locustfile   the users
questions    what users ask
prober       when a generation is first served
usage        processor time and memory of the server, by second
delta_files  a folder of deltas, and the two ways to publish one
score_plan   fixed requests, and the scores that each generation must give them
reference    those scores, computed anew in numpy
"""

__all__ = ["run"]
