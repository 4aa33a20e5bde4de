"""A SuperLink and SuperNodes as processes of this machine, in an environment of their own, over TLS."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import time
import venv
from contextlib import suppress
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def make_environment(folder: Path, app: Path) -> tuple[Path | None, str]:
    """An environment with the built wheel and flwr, as the app's constraints say, or why there is none.

    What the wheel needs beside them, such as torch, is that of the tests' own environment, which comes after its own.
    """
    if shutil.which("openssl") is None:
        return None, "there is no openssl to make a certificate with"
    venv.create(folder, with_pip=False)
    python = folder / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "-q"]
    constraints, wheels = app / "constraints.txt", folder / "wheels"
    for command in (
        [*pip, "wheel", "--no-deps", "-w", str(wheels), str(ROOT)],
        [*pip, "--python", str(python), "install", "-c", str(constraints), "flwr"],
    ):
        done = subprocess.run(command, capture_output=True, text=True, timeout=600)
        if done.returncode:
            return None, f"flwr can't be installed: {done.stderr.strip().splitlines()[-1:]}"
    wheel = next(wheels.glob("edgefl_sim-*.whl"))
    subprocess.run([*pip, "--python", str(python), "install", "--no-deps", str(wheel)], check=True, timeout=600)
    [packages] = folder.glob("lib/python*/site-packages")
    (packages / "zz_tests.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return folder, ""


class Federation:
    """A SuperLink and its SuperNodes; a context manager that ends them with all that they have started."""

    def __init__(self, environment: Path, folder: Path):
        self.folder, self._bin, self._processes = folder, environment / "bin", dict[str, subprocess.Popen[bytes]]()
        self._port, home = free_port(), folder / "home"
        home.mkdir(parents=True)
        self._certificate = folder / "cert.pem"
        subprocess.run(
            ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=edgefl", "-addext",
             "subjectAltName=IP:127.0.0.1", "-keyout", str(folder / "key.pem"), "-out", str(self._certificate)],
            check=True, capture_output=True,
        )  # fmt: skip
        (home / "config.toml").write_text(
            f'[superlink]\ndefault = "mine"\n\n[superlink.mine]\naddress = "127.0.0.1:{self._port}"\n'
            f'root-certificates = "{self._certificate}"\n'
        )
        path = f"{self._bin}{os.pathsep}{os.environ['PATH']}"
        self.environment = os.environ | {"FLWR_HOME": str(home), "FLWR_TELEMETRY_ENABLED": "0", "PATH": path}
        self.environment.pop("PYTHONPATH", None)  # the wheel is tested

    def __enter__(self) -> Federation:
        files = (f"--ssl-{name}={path}" for name, path in (
            ("certfile", self._certificate), ("keyfile", self.folder / "key.pem"), ("ca-certfile", self._certificate)
        ))  # fmt: skip
        self._start("flower-superlink", "link", f"--port={self._port}", *files,
                    "--disable-runtime-dependency-installation")  # fmt: skip
        until = time.monotonic() + 60
        while time.monotonic() < until and not self._answers():
            time.sleep(0.2)
        return self

    def __exit__(self, *_: object) -> None:
        for name in [*self._processes]:
            self.kill(name)

    def node(self, name: str, config: str, **environment: str) -> None:
        """Start a SuperNode."""
        self._start(
            "flower-supernode", name, f"--root-certificates={self._certificate}", f"--superlink=127.0.0.1:{self._port}",
            f"--port={free_port()}", f"--node-config={config}", **environment,
        )  # fmt: skip

    def kill(self, name: str) -> None:
        """End a process with all that it has started."""
        process = self._processes.pop(name)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def run(self, app: Path, **config: str | float) -> subprocess.Popen[str]:
        """Begin the run of an app; its output is the ServerApp's log."""
        given = " ".join(
            f'{name}="{value}"' if isinstance(value, str) else f"{name}={value}" for name, value in config.items()
        )
        return subprocess.Popen(
            [str(self._bin / "flwr"), "run", str(app), "mine", "--stream", "--run-config", given],
            env=self.environment, cwd=self.folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip

    def _start(self, program: str, name: str, *arguments: str, **environment: str) -> None:
        with open(self.folder / f"{name}.log", "wb") as log:
            self._processes[name] = subprocess.Popen(
                [str(self._bin / program), *arguments], env=self.environment | environment, cwd=self.folder, stdout=log,
                stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip

    def _answers(self) -> bool:
        with suppress(OSError), socket.create_connection(("127.0.0.1", self._port), 1.0):
            return True
        return False


def free_port() -> int:
    """A port that nobody uses now."""
    with socket.socket() as any_port:
        any_port.bind(("127.0.0.1", 0))
        port: int = any_port.getsockname()[1]
        return port


def with_version(environment: Path, version: str, folder: Path) -> dict[str, str]:
    """What makes a node run edgefl with another version number."""
    [package] = environment.glob("lib/python*/site-packages/edgefl")
    shutil.copytree(package, folder / "edgefl")
    init = folder / "edgefl" / "__init__.py"
    text = init.read_text(encoding="utf-8")
    changed = "\n".join(
        f'__version__ = "{version}"' if line.startswith("__version__") else line for line in text.split("\n")
    )
    assert changed != text
    init.write_text(changed, encoding="utf-8")
    return {"PYTHONPATH": str(folder)}
