"""Client library for predictions by KServe v2, over binary HTTP or gRPC, synchronous or with asyncio.

    from freshet_serving import Client

    with Client("http://localhost:8501") as client: scores = client.rank("ctr", user={"user": 7}, candidates={"item":
    [12, 13, 14]}, timeout_s=0.05)

HTTP requires httpx, gRPC (grpc://localhost:8500) requires grpcio; freshet-client and freshet-serving[client] install
both.

client          Client and AsyncClient
prediction      a prediction's request and reply, independent of the transport
client_credentials  API key and TLS files of a client
user_session    one user whose inputs the server keeps
retry           retry policy
arrays          a request's values as tensors
http_transport  KServe v2 over binary HTTP
grpc_transport  KServe v2 over gRPC
"""

__all__ = ["client", "client_credentials", "prediction", "retry"]
