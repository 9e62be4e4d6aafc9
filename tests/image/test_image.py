"""The stage `serve` of the Dockerfile, built and run where buildah and debootstrap are."""

import shutil

import pytest

from freshet_serving.processor.kernels.code_store import BUNDLES
from loadtest.bench.cold_start import checkout
from tests.image.builder import Builder, missing
from tests.image.trial import NOBODY, Way, try_start

pytestmark = [pytest.mark.long, pytest.mark.skipif(bool(missing()), reason=missing() or "it can be built")]


def test_container_of_a_random_user_answers_where_nothing_can_be_written(tmp_path):
    tmp_path.chmod(0o755)
    builder = Builder(tmp_path)
    try:
        builder.prepare_base()
        tree = checkout("HEAD", tmp_path / "tree")
        # Of this checkout: to compile them anew costs a minute, and `make image-check` does.
        shutil.copytree(BUNDLES, tree / "processor" / "kernels" / "compiled", dirs_exist_ok=True)
        builder.build("serve", tree)
        assert try_start(builder, "serve", Way("a random uid, read-only", NOBODY, read_only=True)).complaint == ""
    finally:
        builder.close()
