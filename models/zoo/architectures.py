"""The architectures of the zoo, and where each is built. No TensorFlow here: configurations are checked without it."""

ARCHITECTURES = {"deepfm": "models.zoo.deepfm:build", "dlrm": "models.zoo.dlrm:build"}
"""By name, "module:function" of a models.zoo.arch.Builder."""
