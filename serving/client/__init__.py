"""A client of Freshet's predictions, over binary HTTP or gRPC, synchronous or with asyncio.

    from serving.client import Client

    with Client("http://localhost:8501") as client:
        scores = client.rank("ctr", user={"user": 7}, candidates={"item": [12, 13, 14]}, timeout_s=0.05)

It speaks KServe v2 alone. HTTP needs httpx, gRPC (grpc://localhost:8500) needs grpcio; both come with freshet[client].
"""

from __future__ import annotations

from processor.columns import Ragged
from serving.client.client import AsyncClient, Client
from serving.client.prediction import Prediction
from serving.client.retry import Lost, Retry

__all__ = ["AsyncClient", "Client", "Lost", "Prediction", "Ragged", "Retry"]
