"""What is loaded when: a script pays for what it uses."""

from __future__ import annotations

import subprocess
import sys

HEAVY = {"jinja2", "lightning", "matplotlib", "networkx", "pandas", "plotly", "rich", "scipy", "sklearn", "tensorboard"}

STEP = """
import torch
parameter = torch.nn.Parameter(torch.zeros(2))
optimizer = outpace.DistributedOptimizer(torch.optim.SGD([parameter], lr=0.1), strategy={strategy!r})
parameter.sum().backward()
optimizer.step()
optimizer.finish()
"""


def loaded_by(program: str) -> set[str]:
    listing = f"import sys, outpace\n{program}\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", listing], capture_output=True, text=True, timeout=120, check=True)
    return set(done.stdout.split())


def test_importing_outpace_loads_neither_torch_nor_any_of_its_own_layers() -> None:
    loaded = loaded_by("")
    assert {name for name in loaded if name.startswith("outpace")} == {"outpace", "outpace.errors", "outpace.version"}
    assert not loaded & {"torch", "numpy", *HEAVY}


def test_a_step_loads_no_library_of_plots_graphs_or_optimisation() -> None:
    loaded = loaded_by(STEP.format(strategy="eager-majority"))
    assert not loaded & HEAVY


def test_a_strategy_on_a_graph_does_load_what_it_needs() -> None:
    """Or the test above would see nothing."""
    assert "networkx" in loaded_by(STEP.format(strategy="matcha"))
