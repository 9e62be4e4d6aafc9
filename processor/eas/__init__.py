"""DeepRec's messages, as PAI-EAS's callers send them.

codec             PredictRequest and PredictResponse to columns and back
message_tree      how much a message would make of its bytes, told before it is parsed
predict_messages  predict.proto, compiled by `make -C loadtest protos`
"""

__all__ = ["codec", "message_tree"]
