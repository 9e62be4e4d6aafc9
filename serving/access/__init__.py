"""Access: who may ask a server what, and how often. Off, unless keys or certificates are given to it.

scopes        which scope each route and each gRPC method asks for
key_file      keys at rest: their file, as it is read and written
rate_limiter  how much each key and address has asked, over all processes
access_guard  lets a request in, or says why not
certificates  what a port that speaks TLS shows, and whom it believes
credentials   files of keys and certificates, watched, and handed to all processes
"""

__all__ = ["access_guard", "certificates", "credentials", "key_file", "rate_limiter", "scopes"]
