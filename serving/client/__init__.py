"""A client of Freshet's predictions, over binary HTTP or gRPC, synchronous or with asyncio.

    from freshet_serving import Client

    with Client("http://localhost:8501") as client:
        scores = client.rank("ctr", user={"user": 7}, candidates={"item": [12, 13, 14]}, timeout_s=0.05)

It speaks KServe v2 alone. HTTP needs httpx, gRPC (grpc://localhost:8500) needs grpcio;
freshet-client brings both, freshet-serving[client] too.

client          Client and AsyncClient
prediction      one prediction as it is asked for and got, whatever carries it
client_credentials  what a client shows a server, and whom it believes
retry           when a prediction is tried again
arrays          a request's values as tensors
http_transport  KServe v2 over binary HTTP
grpc_transport  KServe v2 over gRPC
"""

__all__ = ["client", "client_credentials", "prediction", "retry"]
