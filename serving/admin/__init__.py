"""The admin port: deltas, rollback, versions, labels, status and the console.

api            the routes
authorization  who may talk to the port
"""

__all__ = ["api", "authorization"]
