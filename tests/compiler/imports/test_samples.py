import pytest

pytest.importorskip("tensorflow", reason="importing needs the train extra")

from freshet_serving.compiler.frameworks import tf
from freshet_serving.compiler.imports.importing import ImportOptions, import_model
from freshet_serving.processor.errors import BadInput
from tests.compiler.imports.foreign import saved

pytestmark = pytest.mark.tensorflow

WORDS = tf.TensorSpec([None], tf.string, name="words")


def test_given_samples_replace_generated_ones_that_the_model_refuses(tmp_path):
    class Model(tf.Module):
        @tf.function(input_signature=[WORDS])
        def score(self, words):
            return {"score": tf.strings.to_number(tf.strings.regex_replace(words, "EUR", ""))}

    module = Model()
    source, repository = saved(module, tmp_path / "model", module.score), tmp_path / "repository"
    with pytest.raises(BadInput, match="the model accepts no generated inputs: give some with --samples"):
        import_model(source, repository, "prices")
    with pytest.raises(BadInput, match="expected a list of rows for input 'words'"):
        import_model(source, repository, "prices", options=ImportOptions(samples={"word": ["1"]}))

    import_model(source, repository, "prices", options=ImportOptions(samples={"words": ["1EUR", "2.5EUR"]}))
