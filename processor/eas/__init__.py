"""DeepRec's predict messages, as clients of PAI-EAS send them.

codec             converts PredictRequest and PredictResponse to columns and back
message_tree      counts the values of a message before it is parsed
predict_messages  predict.proto, compiled by `make -C loadtest protos`
"""

__all__ = ["codec", "message_tree"]
