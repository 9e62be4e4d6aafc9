"""Replies of imported models, from an engine that is started for them."""

from freshet_serving.processor.engine import PredictRequest, Processor, ProcessorConfig
from freshet_serving.serving.codecs.tensor_types import as_declared


def started(repository):
    """An engine that serves every model of a repository."""
    return Processor.initialize(ProcessorConfig(repository=str(repository), sessions=1))


def replies(repository, model, inputs, **options):
    """All outputs of a model for a request, as of its newest generation."""
    with started(repository) as processor:
        return processor.process(PredictRequest(model, inputs, **options)).outputs


def declared_replies(repository, model, inputs):
    """The same in the types that the model declares, labels as strings."""
    with started(repository) as processor:
        manifest = processor.predictor.manifest(model)[0]
        return as_declared(processor.process(PredictRequest(model, inputs)).outputs, manifest)
