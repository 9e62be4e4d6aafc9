"""The gRPC port: TensorFlow Serving's services, KServe's, health and reflection.

rpc_port    the port, on the event loop that the HTTP port has
port_sockets  its sockets, which gRPC keeps to itself
idle_reaper  idle connections leave where they run short
goaway      its clients are told to leave before it stops
handlers    what its handlers share: messages, errors as statuses, deadlines, metrics
tfs         PredictionService and ModelService of TensorFlow Serving
inference   KServe's GRPCInferenceService, and Triton's extensions of it
health      grpc.health.v1
reflection  grpc.reflection
"""

__all__ = ["rpc_port"]
