"""The device `laggard`: what punishes every missing wait. `laggard.cpp` says what it guarantees.

laggard.load()                       in each process that uses it; torch.device("laggard:0") and "laggard:1" then
laggard.built()                      why it cannot be had here, for `pytest.skip`; builds it, once for all processes
"""

from __future__ import annotations

import fcntl
import functools
import hashlib
import importlib.machinery
import importlib.util
import os
import shutil
import subprocess
import sysconfig
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch.utils import cpp_extension

SOURCES = [Path(__file__).with_name(name) for name in ("laggard.cpp", "device.h")]
NAME = "laggard"


class NoCompiler(Exception):
    """There is nothing here to build it with."""


def _path() -> Path:
    """Of what is built: another source, torch or Python is another file."""
    what = f"{torch.__version__} {sysconfig.get_config_var('SOABI')}".encode()
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return (
        cache
        / "outpace-tests"
        / f"{NAME}-{hashlib.sha256(b''.join([what, *(source.read_bytes() for source in SOURCES)])).hexdigest()[:16]}.so"
    )


def build() -> Path:
    """The extension, built if it was not yet. Raises `NoCompiler`. Whoever comes meanwhile waits for it."""
    path = _path()
    if path.exists():
        return path
    compiler = os.environ.get("CXX") or shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
    if not compiler or not shutil.which(compiler) or not Path(sysconfig.get_paths()["include"], "Python.h").exists():
        raise NoCompiler("no compiler")
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.exists():
            with tempfile.TemporaryDirectory(dir=path.parent) as directory:
                made = Path(directory, "made.so")
                subprocess.run([compiler, *_options(), str(SOURCES[0]), "-o", str(made), *_libraries()], check=True)
                made.rename(path)
    return path


def _options() -> list[str]:
    includes = [*cpp_extension.include_paths(), sysconfig.get_paths()["include"]]
    abi = f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}"
    names = [f"-DTORCH_EXTENSION_NAME={NAME}", abi]
    return ["-O1", "-w", "-std=c++20", "-shared", "-fPIC", *names, *(f"-isystem{path}" for path in includes)]


def _libraries() -> list[str]:
    return [*(f"-L{path}" for path in cpp_extension.library_paths()), "-lc10", "-ltorch_cpu"]


class Cudart:
    """As much of CUDA's runtime as registers host memory. `load().refuse` tells it to refuse."""

    def __init__(self, native: Any) -> None:
        self._native = native

    def cudaHostRegister(self, pointer: int, size: int, flags: int) -> int:  # noqa: N802 - CUDA's name
        return self._native.register_host(pointer, size)

    def cudaHostUnregister(self, pointer: int) -> int:  # noqa: N802
        return self._native.unregister_host(pointer)


class _Current:
    """As `torch.cuda.device`."""

    def __init__(self, device: Any) -> None:
        self._index = torch.device(device).index if not isinstance(device, int) else device

    def __enter__(self) -> None:
        self._before = torch.accelerator.current_device_index()
        torch.accelerator.set_device_index(self._before if self._index is None else self._index)

    def __exit__(self, *_: object) -> None:
        torch.accelerator.set_device_index(self._before)


@functools.cache
def load() -> Any:
    """Makes the device known to torch, in this process. Returns what it can be told and asked."""
    spec = importlib.util.spec_from_loader(NAME, importlib.machinery.ExtensionFileLoader(NAME, str(build())))
    assert spec is not None
    assert spec.loader is not None
    native = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(native)
    torch.utils.rename_privateuse1_backend(NAME)
    torch._register_device_module(NAME, _module(native))
    torch.utils.generate_methods_for_privateuse1_backend(for_tensor=True, for_module=True, for_storage=True)
    return native


def _module(native: Any) -> ModuleType:
    """What `torch.laggard` is."""
    module: Any = ModuleType(f"torch.{NAME}")
    module.is_available = lambda: True
    module.is_initialized = lambda: True
    module.device_count = lambda: 2
    module.current_device = torch.accelerator.current_device_index
    module.set_device = torch.accelerator.set_device_index
    module._is_in_bad_fork = lambda: False
    module.manual_seed_all = lambda seed: None
    module.device = _Current
    module.get_amp_supported_dtype = lambda: [torch.bfloat16, torch.float16]
    module.cudart = functools.cache(lambda: Cudart(native))
    return module
