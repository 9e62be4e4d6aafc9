"""The admin port: deltas, rollback, versions, labels, status and the console.

api               the routes of changes, and the port put together
admin_bodies      bodies read within bounds, and replies
audit_trail       what was changed through the port lately
authorization     who may talk to the port
console_files     the page's files (console/), by fixed names
live_stream       what the server does now, as server-sent events
model_views       what people ask of one model
example_requests  a request to begin with, recorded or made up
explain_route     what a score was made of
validation        JSON bodies, strict
try_call          one request handed to the data port
"""

__all__ = ["api", "authorization", "explain_route", "validation"]
