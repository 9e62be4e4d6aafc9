"""Names of the zoo's architectures and their builders. No TensorFlow here: configurations are checked without it."""

ARCHITECTURES = {
    "deepfm": "freshet_serving.models.zoo.deepfm:build",
    "dlrm": "freshet_serving.models.zoo.dlrm:build",
    "dcn": "freshet_serving.models.zoo.dcn:build",
    "wide_deep": "freshet_serving.models.zoo.wide_deep:build",
    "mmoe": "freshet_serving.models.zoo.mmoe:build",
    "esmm": "freshet_serving.models.zoo.esmm:build",
    "din": "freshet_serving.models.zoo.din:build",
    "stca": "freshet_serving.models.zoo.stca:build",
    "sasrec": "freshet_serving.models.zoo.sasrec:build",
    "hstu": "freshet_serving.models.zoo.hstu:build",
    "bst": "freshet_serving.models.zoo.bst:build",
    "sasrec_next": "freshet_serving.models.zoo.sasrec:build_next",
    "hstu_next": "freshet_serving.models.zoo.hstu:build_next",
    "two_tower": "freshet_serving.models.zoo.two_tower:build",
}
"""By name, "module:function" of a models.zoo.arch.Builder. The modules import TensorFlow when a network is built."""
DEFAULT_ARCH = "deepfm"
"""What a file gets that names no network."""
NEXT_ITEM = ("sasrec_next", "hstu_next")
"""Networks that learn which item comes next in a history; the others learn labels of rows."""
RETRIEVAL = "two_tower"
"""The network that learns which item goes with a user, unless its file asks for a loss of labels."""
WITHOUT_HISTORIES = ("deepfm", "dlrm", "dcn", "wide_deep", "mmoe", "esmm", "two_tower")
"""Networks that read features alone, perhaps of histories."""
UNTIMED = ("din", "stca", "sasrec", "bst", "sasrec_next")
"""Networks over histories that do not read the times of events."""
