import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from freshet_serving.processor.extras import how_to_install


def run(code):
    root = Path(__file__).parents[2]
    return subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=False)


def test_tensorflow_import_hides_only_known_chatter():
    done = run(
        "import os\n"
        "from freshet_serving.compiler.frameworks import tf; tf.constant(1.0) + 1\n"
        "from freshet_serving.compiler import frameworks\n"
        "with frameworks._without_chatter():\n"
        "    os.write(2, b'oneDNN custom operations are on\\nkept\\n')\n"
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "kept\n")


@pytest.mark.long
def test_process_without_standard_error_can_import_tensorflow():
    assert run("import os; os.close(2); from freshet_serving.compiler.frameworks import tf").returncode == 0


def test_missing_tensorflow_gives_a_one_line_error():
    done = run(
        "import sys; sys.modules['tensorflow'] = None\n"
        "try:\n    import freshet_serving.compiler.frameworks\n"
        "except Exception as error: print(type(error).__name__, error)"
    )

    subject, install = "training, importing or compiling", how_to_install("train")
    assert done.stdout == f"MissingLibrary {subject} needs tensorflow, which is not installed: {install}\n"


@pytest.mark.long
def test_keras_is_imported_with_its_first_use():
    done = run(
        "import sys\n"
        "from freshet_serving.compiler import frameworks\n"
        "print('keras' in sys.modules, hasattr(frameworks, 'other'))\n"
        "from freshet_serving.compiler.frameworks import keras\n"
        "print(keras is sys.modules['keras'], keras.backend.backend(), keras is frameworks.keras)\n"
        "model = keras.Sequential([keras.layers.Dense(1)])\n"
        "model.compile(keras.optimizers.Adam())\n"
        "print(model(frameworks.tf.zeros((2, 3))).shape, frameworks.tf.keras.layers.Dense is keras.layers.Dense)\n"
    )
    assert done.stdout.splitlines() == ["False False", "True tensorflow True", "(2, 1) True"], done.stderr


def test_imported_keras_is_the_one_that_is_used():
    keras = pytest.importorskip("keras")
    from freshet_serving.compiler import frameworks

    # Another copy of the module, as a process that has imported Keras first would load it.
    spec = importlib.util.spec_from_file_location("frameworks_after_keras", frameworks.__file__)
    late = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(late)
    assert late.keras is keras
    assert late.tf.keras.layers.Dense is keras.layers.Dense
