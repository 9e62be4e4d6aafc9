"""Serve the admin port: deltas, rollback, versions, labels, status and the console.

api               routes of changes, and the assembled port
admin_bodies      reading of bodies within bounds, and JSON replies
audit_trail       the latest changes made through the port
authorization     access control of the port
console_files     the console's files (console/), by fixed names
live_stream       live statistics as server-sent events
model_views       read-only views of one model
example_requests  an example request, recorded or generated
version_routes    decisions about full versions
try_call          forwards one request to the data port
"""

__all__ = ["admin_bodies", "api", "authorization"]
