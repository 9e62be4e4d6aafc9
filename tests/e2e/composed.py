"""The services of deploy/compose/compose.yaml as plain processes: the same commands, files and environment, with hosts,
ports and folders of this machine in place of the network's and the volumes'. For machines without Docker."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import yaml

from tests.e2e.servers import free_port

ROOT = Path(__file__).parents[2]
COMPOSE = ROOT / "deploy" / "compose" / "compose.yaml"
FRESHET = [sys.executable, "-m", "freshet_serving"]
# What an image starts, and the ports that its service listens on.
IMAGES = {
    "motoserver/moto": ([str(Path(sys.executable).parent / "moto_server")], (5000,)),
    "redis": ([], (6379,)),
    "freshet-train": (FRESHET, (9108,)),
    "freshet": (FRESHET, (8501, 8500, 8502)),
    "prom/prometheus": (["prometheus"], (9090,)),
    "grafana/grafana": ([], ()),
}
PORT_NAMES = {8501: "FRESHET_HTTP_PORT", 8500: "FRESHET_GRPC_PORT", 8502: "FRESHET_ADMIN_PORT"}


class Composed:
    """A context manager; `start` starts one service, once those it waits for have ended."""

    def __init__(self, folder: Path) -> None:
        self.services = yaml.safe_load(COMPOSE.read_text())["services"]
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.ports = {
            (name, port): free_port() for name, service in self.services.items() for port in self._image(service)[1]
        }
        self._folder = folder

    def __enter__(self) -> Composed:
        return self

    def __exit__(self, *_: object) -> None:
        for process in reversed(self.processes.values()):
            process.terminate()
        for process in self.processes.values():
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def start(self, name: str) -> None:
        service = self.services[name]
        first, ports = self._image(service)
        first = [sys.executable, *service["entrypoint"][1:]] if "entrypoint" in service else first
        command = [*first, *service.get("command", ())]
        # Ports that the command names, and only whole arguments: a number may mean something else elsewhere.
        command = [str(self.ports[name, int(a)]) if a.isdigit() and int(a) in ports else a for a in command]
        if name == "prometheus":
            command.append(f"--web.listen-address=127.0.0.1:{self.ports[name, 9090]}")
            command.append(f"--storage.tsdb.path={self._folder / 'tsdb'}")
        environment = dict(service.get("environment", {}))
        environment |= {PORT_NAMES[port]: str(self.ports[name, port]) for port in ports if port in PORT_NAMES}
        work = self._mounted(name, service) / service.get("working_dir", "/").lstrip("/")
        work.mkdir(parents=True, exist_ok=True)
        with open(self.log(name), "ab") as log:
            self.processes[name] = subprocess.Popen(
                [self._here(name, argument) for argument in command],
                # This checkout's code, whatever folder the service runs in.
                env=os.environ
                | {"PYTHONPATH": str(ROOT)}
                | {key: self._here(name, value) for key, value in environment.items()},
                cwd=work,
                stdout=log,
                stderr=log,
            )

    def finish(self, name: str) -> None:
        self.start(name)
        assert self.processes.pop(name).wait(60) == 0, self.log(name).read_text()

    def log(self, name: str) -> Path:
        return self._folder / f"{name}.log"

    def url(self, name: str, port: int) -> str:
        return f"http://127.0.0.1:{self.ports[name, port]}"

    @staticmethod
    def _image(service: dict) -> tuple[list[str], tuple[int, ...]]:
        return IMAGES[service["image"].partition(":")[0]]

    def _here(self, name: str, text: str) -> str:
        for (service, port), mapped in self.ports.items():
            text = text.replace(f"{service}:{port}", f"127.0.0.1:{mapped}")
        for _, inside in self._volumes(self.services[name]):
            text = re.sub(rf"(?<![\w/.]){re.escape(inside)}(?=/|$)", str(self._root(name)) + inside, text)
        return text.replace("0.0.0.0", "127.0.0.1")

    def _root(self, name: str) -> Path:
        return self._folder / "roots" / name

    @staticmethod
    def _volumes(service: dict) -> list[tuple[str, str]]:
        return [(volume.split(":")[0], volume.split(":")[1]) for volume in service.get("volumes", ())]

    def _mounted(self, name: str, service: dict) -> Path:
        for outside, inside in self._volumes(service):
            path = self._root(name) / inside.lstrip("/")
            source = COMPOSE.parent / outside
            if not outside.startswith("."):
                path.mkdir(parents=True, exist_ok=True)
            elif source.is_dir():
                shutil.copytree(source, path, dirs_exist_ok=True)
            else:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(self._here(name, source.read_text()))
        return self._root(name)
