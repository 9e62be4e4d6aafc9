"""The gRPC port: TensorFlow Serving's services, KServe's, health and reflection.

protos        what the services and their messages are; descriptors: the same, compiled by `make protos`
messages      classes of the messages, in a descriptor pool of their own
server        the port; desk: how a handler answers
tensorflow, inference, health, reflection: the services
"""
