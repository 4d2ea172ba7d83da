"""Where figures come from: versions, machine and settings, without which they say little."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from .. import __version__

_PACKAGES = ("torch", "transformers", "numpy", "numba", "llama-cpp-python")


def provenance(models: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """All that timings depend on, as far as it can be found out, as JSON takes it.

    No user, host or path is named, but for those of models that were given as paths.

    Args:
        models: what decodes: target, draft, device, dtype.
        settings: what was asked for.
    """
    return {
        **models,
        "threads": torch.get_num_threads(),
        "outrider": __version__,
        "commit": commit(),
        "python": platform.python_version(),
        **{name: _version(name) for name in _PACKAGES},
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine(str(models.get("device", "cpu"))),
        "settings": dict(settings),
    }


def commit() -> str | None:
    """The git commit of the source, "-dirty" added if it was changed since; None if unknown."""
    root = Path(__file__).resolve().parents[3]
    if not (root / ".git").exists():
        return None
    command = ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        found = subprocess.run(
            command, cwd=root, capture_output=True, text=True, timeout=10, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return found.stdout.strip() or None


def machine(device: str) -> dict[str, Any]:
    """The machine: its system, processor and cores, and the accelerator if one decodes."""
    cpus = os.cpu_count()
    try:
        usable: int | None = len(os.sched_getaffinity(0))
    except AttributeError:
        # Not every system says which cores a process may use.
        usable = cpus
    found: dict[str, Any] = {
        "system": f"{platform.system()} {platform.machine()}",
        "cpu": _processor(),
        "cpus": cpus,
        "usable_cpus": usable,
    }
    if device.startswith("cuda"):
        found["gpu"] = torch.cuda.get_device_name(torch.device(device))
    return found


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
