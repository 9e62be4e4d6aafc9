"""Control access: API keys with scopes, rate limits and TLS. Off unless the server is given keys or certificates.

scopes        the scope that each route and each gRPC method requires
key_file      the file of API keys: reading and writing
rate_limiter  rate limits of keys and addresses, over all processes
access_guard  admits a request or refuses it with the reason
certificates  TLS certificates of a port, and the CA of its clients
credentials   files of keys and certificates: watched, and sent to all processes
"""

__all__ = ["access_guard", "certificates", "credentials", "key_file", "rate_limiter", "scopes"]
