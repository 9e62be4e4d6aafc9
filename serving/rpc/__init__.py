"""Serve the gRPC port: TensorFlow Serving's services, KServe's, health and reflection.

rpc_port    the port, on the HTTP port's event loop
port_sockets  access to the port's sockets, which gRPC does not expose: GOAWAY to all clients before the server stops
idle_reaper  closes idle connections when connections run short
handlers    shared parts of the handlers: messages, errors as statuses, deadlines, metrics
tfs         PredictionService and ModelService of TensorFlow Serving
inference   KServe's GRPCInferenceService, and Triton's extensions of it
standard_services  grpc.health.v1 and grpc.reflection
"""

__all__ = ["rpc_port"]
