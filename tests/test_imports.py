"""What is loaded when: a script pays for what it uses."""

from __future__ import annotations

import subprocess
import sys

import outpace
from outpace import errors, strategies
from outpace.strategies import STRATEGIES

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


WITHOUT = """
import sys
sys.modules["scipy"] = sys.modules["scipy.optimize"] = None
{step}
"""


def test_a_strategy_that_needs_an_extra_says_how_to_install_it() -> None:
    program = WITHOUT.format(step=STEP.format(strategy="matcha").replace("import torch", "import outpace, torch"))
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert done.stderr.splitlines()[-1].endswith("scipy is not installed: pip install 'outpace[gossip]'")
    assert "NotInstalled" in done.stderr


def test_every_public_name_is_there_and_no_error_or_strategy_is_missing() -> None:
    for name in outpace.__all__:
        assert getattr(outpace, name).__doc__ or name == "__version__", name
    raised = {name for name, found in vars(errors).items() if isinstance(found, type) and issubclass(found, Exception)}
    assert raised <= set(outpace.__all__)
    makers = {maker for maker in STRATEGIES.values() if isinstance(maker, type)}
    assert makers <= set(filter(callable, (getattr(strategies, name) for name in strategies.__all__)))
