"""The admin port: deltas, rollback, versions, labels, status and the console.

api            the routes
explain_route  what a score was made of
validation     JSON bodies, strict
authorization  who may talk to the port
"""

__all__ = ["api", "authorization", "explain_route"]
