"""The HTTP port: TensorFlow Serving REST, KServe v2, DeepRec's messages, health and metrics.

port          one listening port, or the connections of one
connection    one connection: bytes become requests, within bounds
http_head     the head of a request
chunked_body  a body in chunks
body_buffer   a body that comes in pieces, put together
connection_draining  how connections end
tls_transport  TLS under a connection
deadline_timer  how long a connection is waited for
protocol      predict requests below ASGI
guarded_protocol  the same, where keys are asked for
app           everything that the port answers, as one ASGI application
dialects      how each form of a predict request is read, and how it is answered
paths         which path asks for what
head_cache    heads of predict requests, known by their bytes
asgi          reading and writing on the raw ASGI interface
openapi       the routes for people and their tools
pages         what a port says of itself to people
origin_checks  which requests a browser sends for another site's page
schemas       what the routes take and give
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
