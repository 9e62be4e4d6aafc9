"""Refuse a model that needs samples, in a module of its own: an importer is chosen before TensorFlow is imported."""

from freshet_serving.processor.errors import BadInput


class SamplesRequired(BadInput):
    """Raised for a model that accepts no generated inputs, and may be imported with some that are given."""
