"""The admin port: deltas, rollback, versions, labels, status and the console.

api            the routes
explanations   what a score was made of
validation     JSON bodies, strict
authorization  who may talk to the port
"""

__all__ = ["api", "authorization", "explanations"]
