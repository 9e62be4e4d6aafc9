"""Builders of the foreign models, one module a family: a function a model, that gets an empty folder.

They run in environments of their own (`catalogue`) and import nothing of ours but `built`.

rows             rows of inputs, and columns that two families have
torch_export     what the builders with PyTorch share
tf_rows          what the builders with TensorFlow share
deepctr_torch    deepctr-torch
torch_sequences  histories of items in PyTorch
torch_lengths    histories of free length in PyTorch, by both exporters
torch_bags       EmbeddingBag, DLRM, TorchRec
onnx_by_hand     ONNX, node by node
sklearn          scikit-learn
boosted_trees    LightGBM, XGBoost, CatBoost
deepctr          DeepCTR
tf1              TensorFlow 1
tfrs             TensorFlow Recommenders
keras2           tf_keras
keras3           Keras 3 and keras-rs
zoo              torch-rechub, torchfm and pytorch-widedeep
"""

__all__: list[str] = []
