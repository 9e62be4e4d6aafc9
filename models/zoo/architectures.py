"""The architectures of the zoo, and where each is built. No TensorFlow here: configurations are checked without it."""

ARCHITECTURES = {
    "deepfm": "models.zoo.deepfm:build",
    "dlrm": "models.zoo.dlrm:build",
    "dcn": "models.zoo.dcn:build",
    "wide_deep": "models.zoo.wide_deep:build",
    "mmoe": "models.zoo.mmoe:build",
    "esmm": "models.zoo.esmm:build",
    "two_tower": "models.zoo.two_tower:build",
}
"""By name, "module:function" of a models.zoo.arch.Builder. The modules import TensorFlow when a network is built."""
