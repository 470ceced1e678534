"""Benchmarks: `python -m bench` measures everything side by side and writes docs/benchmarks.md; see `--help`.

One file for each section of the page, with `measure(run) -> dict` of plain figures, and a template of the same name.
Imports nothing here, because the processes of Open MPI import this package without torch.
"""
