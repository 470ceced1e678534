"""What these figures were measured on, in general terms: never a name of a host or a path."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
from typing import Any

import torch

from outpace.job.machine import processor


def machine() -> dict[str, Any]:
    """Processor, cores and versions."""
    return {
        "cpu": processor(),
        "cores": os.cpu_count() or 1,
        "memory_gb": round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30),
        "system": platform.system(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "open_mpi": open_mpi_version(),
    }


def open_mpi_version() -> str | None:
    """None where it is not installed."""
    mpirun = shutil.which("mpirun")
    if mpirun is None:
        return None
    said = subprocess.run([mpirun, "--version"], capture_output=True, text=True).stdout
    found = re.search(r"\d+\.\d+\.\d+", said)
    return found.group() if found else "unknown"
