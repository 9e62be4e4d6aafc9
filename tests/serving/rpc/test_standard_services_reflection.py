from freshet_serving.serving.codecs.messages import message
from tests.serving.rpc.live import WAIT_S, Live


def test_reflection_names_the_services_and_gives_their_files():
    from google.protobuf.descriptor_pb2 import FileDescriptorProto

    with Live() as live:
        for version in ("v1", "v1alpha"):
            kind = f"grpc.reflection.{version}.ServerReflectionRe"
            asked = message(f"{kind}quest")
            made = [
                asked(list_services=""),
                asked(file_containing_symbol="inference.GRPCInferenceService"),
                asked(file_by_filename="tensorflow_serving.proto"),
                asked(file_containing_symbol="no.such"),
                asked(all_extension_numbers_of_type="x"),
            ]
            ask = live.channel.stream_stream(
                f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo",
                lambda m: m.SerializeToString(),
                message(f"{kind}sponse").FromString,
            )
            replies = list(ask(iter(made), timeout=WAIT_S))
            names = {s.name for s in replies[0].list_services_response.service}
            assert {"grpc.health.v1.Health", "tensorflow.serving.PredictionService"} < names
            first = replies[1].file_descriptor_response.file_descriptor_proto[0]
            assert FileDescriptorProto.FromString(first).package == "inference"
            assert len(replies[2].file_descriptor_response.file_descriptor_proto) == 5
            assert [r.error_response.error_code for r in replies[3:]] == [5, 12]
