"""Reasons of other libraries are told in one line, without their exceptions, code or files."""

import pytest

from freshet_serving.compiler.imports.error_reason import MAX_CHARACTERS, UNSAID, reason_of


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "Graph execution error:\n\nNode: 'x'\nindices[0] = 9 is not in [0, 4)\n\t [[{{node Gather}}]]\nstack",
            "indices[0] = 9 is not in [0, 4)",
        ),
        ("[ONNXRuntimeError] : 1 : FAIL : Load model from /a/b.onnx failed:No Op", "No Op"),
        ("[ONNXRuntimeError] : 1 : FAIL : /onnxruntime/core/a.cc:48 void f(int) No.\nReally", "No. Really"),
        ("Exception during initialization: /ort/t.h:5 size_t Nodes(long&) [with T = float] bad", "bad"),
        ("ValueError: cannot read /home/user/file.keras now", "cannot read  now"),
        ("", UNSAID),
        ("a\nb", "a b"),
    ],
)
def test_noise_of_libraries_is_left_out(text, said):
    assert reason_of(Exception(text)) == said


def test_reasons_are_short():
    assert len(reason_of(Exception("x" * 1000))) == MAX_CHARACTERS
