"""Where figures come from: versions, machine and settings, without which they say little."""

from __future__ import annotations

import os
import platform
import re
import sys
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from .. import __version__

_PACKAGES = ("torch", "transformers", "numpy", "openvino", "openvino-genai", "llama-cpp-python")


def environment(models: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Collect all that timings depend on, as far as it can be found out, as JSON takes it.

    No user, host or path is named, except models and prompts that were given as paths. `models`
    says what decodes (target, draft, device, dtype), and `settings` what was asked for.
    """
    packages = {}
    for name in _PACKAGES:
        with suppress(PackageNotFoundError):
            packages[name] = version(name)
    cpuinfo = Path("/proc/cpuinfo")
    named = re.search(r"model name\s*: (.+)", cpuinfo.read_text() if cpuinfo.exists() else "")
    machine = {
        "system": f"{platform.system()} {platform.machine()}",
        "cpu": named[1] if named else platform.processor() or platform.machine(),
        # Not every system says which cores a process may use.
        "cores": len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count(),
    }
    device = str(models.get("device"))
    if device.startswith("cuda"):
        machine["gpu"] = torch.cuda.get_device_name(torch.device(device))
    return {
        **models,
        "threads": torch.get_num_threads(),
        "outrider": __version__,
        "python": platform.python_version(),
        **packages,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine,
        "settings": dict(settings),
    }
