"""README's commands, pasted in order, but for the demo, for which `make` installs."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.servers import free_port

pytestmark = [pytest.mark.e2e, pytest.mark.tensorflow, pytest.mark.long]

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_the_commands_train_serve_and_answer_as_shown(tmp_path):
    pasted = [text for text in re.findall(r"```bash\n(.*?)```", README, re.S) if ".venv/bin/freshet" in text]
    shown = re.search(r"```text\n(HTTP/1.1 200 OK.*?)```", README, re.S)[1]
    (asked,) = re.findall(r"```python\n(.*?)```", README, re.S)
    http, grpc = free_port(), free_port()

    def here(text):
        """For a checkout that is not installed, and ports that nobody has."""
        text = text.replace(".venv/bin/freshet", f"{shlex.quote(sys.executable)} -m freshet_serving")
        return text.replace("localhost:8501", f"localhost:{http}").replace("localhost:8500", f"localhost:{grpc}")

    (tmp_path / "examples").symlink_to(ROOT / "examples")
    (tmp_path / "ask.py").write_text(here(asked) + "print(scores.shape)\n")
    script = ["set -e", "trap 'kill %1; wait %1' EXIT", *map(here, pasted), f"{shlex.quote(sys.executable)} ask.py"]
    ports = {"FRESHET_HTTP_PORT": http, "FRESHET_GRPC_PORT": grpc, "FRESHET_ADMIN_PORT": free_port()}
    done = subprocess.run(
        ["bash", "-c", "\n".join(script)],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)} | {name: str(port) for name, port in ports.items()},
        capture_output=True,
        text=True,
        timeout=300,
    )

    assert done.returncode == 0, done.stderr + done.stdout
    assert "held out: AUC" in done.stdout
    reply = done.stdout[done.stdout.index("HTTP/1.1") :].replace("\r", "")
    for line in shown.splitlines():
        if line and not line.startswith("{"):
            assert line in reply
    assert re.search(r'^\{"outputs":\[\[0\.\d+\],\[0\.\d+\]\]\}', reply, re.M)
    assert "(2,)" in reply
