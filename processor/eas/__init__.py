"""DeepRec's messages, as PAI-EAS's callers send them.

codec             PredictRequest and PredictResponse to columns and back
predict_messages  predict.proto, compiled by `make protos`
"""

__all__ = ["codec"]
