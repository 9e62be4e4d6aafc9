import importlib.util
import sys
import threading

import pytest

from tests.structure.recorder import Recorder

TEXT = "from dataclasses import dataclass\n\n\ndef f():\n    return 1\n\n\n@dataclass\nclass A:\n    x: int\n"


@pytest.fixture
def tree(tmp_path, monkeypatch):
    """load(path): a module of that path of a tree of its own."""

    def load(name):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(TEXT)
        spec = importlib.util.spec_from_file_location(f"traced_{path.stem}", path)
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, spec.name, module)
        spec.loader.exec_module(module)
        return module

    return tmp_path, load


def in_thread(act, name=None):
    thread = threading.Thread(target=act, name=name)
    thread.start()
    thread.join()


def test_files_of_top_folders_are_recorded_in_every_thread(tree):
    root, load = tree
    a, b, c, other = load("processor/a.py"), load("serving/b.py"), load("models/c.py"), load("tests/d.py")
    with Recorder(root) as recorder:
        a.f()
        with recorder.recording() as seen:
            b.f()
            other.f()
            in_thread(c.f)
            in_thread(a.f, "freshet-guard")
    assert seen == {"serving/b.py", "models/c.py"}


def test_generated_methods_belong_to_the_file_of_their_class(tree):
    root, load = tree
    a = load("processor/a.py")
    with Recorder(root) as recorder, recorder.recording() as seen:
        a.A(1)
    assert seen == {"processor/a.py"}


def test_file_seen_in_less_than_half_the_runs_is_omitted(tree):
    root, load = tree
    a, b = load("processor/a.py"), load("serving/b.py")
    with Recorder(root) as recorder:
        found = recorder.files_of(lambda number: (a.f(), number == 1 and b.f()), 3)
    assert found == ["processor/a.py"]


def test_linked_file_counts_at_its_real_location(tree):
    root, load = tree
    load("processor/a.py")
    (root / "freshet_serving").mkdir()
    (root / "freshet_serving" / "processor").symlink_to("../processor")
    linked = load("freshet_serving/processor/a.py")
    with Recorder(root) as recorder, recorder.recording() as seen:
        linked.f()
    assert seen == {"processor/a.py"}
