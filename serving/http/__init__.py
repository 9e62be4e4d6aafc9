"""Serve the HTTP port: TensorFlow Serving REST, KServe v2, DeepRec's messages, health and metrics.

port          one listening port, or only the connections of one
connection    one connection: turns bytes into requests, within bounds
http_head     parser of a request's head, and cache of parsed ones
request_body  body of a request: its buffer, and decoder of chunks
connection_draining  closing of connections without losing requests or replies
tls_transport  TLS below a connection
protocol      predict requests below ASGI
guarded_protocol  the same with API keys
app           all routes of the port as one ASGI application
dialects      how each form of a predict request is decoded, and its reply encoded
paths         the route of each path
asgi          reading and writing on the raw ASGI interface
openapi       the routes as an OpenAPI document
pages         a port's root document and its page for the OpenAPI document
origin_checks  refusal of cross-site requests from browsers
schemas       JSON schemas of requests and replies
"""

__all__ = [
    "app",
    "asgi",
    "connection",
    "connection_draining",
    "guarded_protocol",
    "origin_checks",
    "pages",
    "port",
    "protocol",
]
