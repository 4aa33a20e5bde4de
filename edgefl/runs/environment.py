"""Software versions and hardware of a run.  Paths, host names and user names are left out on purpose."""

from __future__ import annotations

import os
import platform
from pathlib import Path

import psutil

from edgefl import RUN_FORMAT, registry
from edgefl.memo import library_version
from edgefl.records.record import UNSET
from edgefl.records.run import Environment, PlugInFileRecord

PACKAGES = (
    "torch", "numpy", "simpy", "safetensors", "tokenizers", "pydantic", "pandas", "pillow", "matplotlib",
    "dp-accounting",
)  # fmt: skip


def environment() -> Environment:
    """Versions of Python, edgefl and the packages that results depend on; processor, memory in bytes, GPU or None.

    ``plug_ins`` has name and SHA-256 of the files that registered parts; it is left out if there are none.
    """
    import torch

    import edgefl

    cuda = torch.cuda.is_available()
    files = [PlugInFileRecord(file=name, sha256=sha256) for name, sha256 in sorted(registry.plug_in_files().items())]
    return Environment(
        run_format=RUN_FORMAT,
        plug_ins=files or UNSET,
        edgefl=edgefl.__version__,
        python=platform.python_version(),
        packages={name: _version(name) for name in PACKAGES},
        system=platform.system(),
        machine=platform.machine(),
        cpu=_cpu(),
        cpu_cores=os.cpu_count(),
        ram_bytes=psutil.virtual_memory().total,
        gpu=torch.cuda.get_device_name(0) if cuda else None,
        cuda=torch.version.cuda if cuda else None,
    )


def _version(package: str) -> str | None:
    if package == "torch":
        import torch

        return str(torch.__version__)  # includes the build: "2.13.0+cpu"
    return library_version(package)


def _cpu() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
