"""What users of a framework see first when something is wrong is what docs/trainers.md says they see."""

import json

import pytest

pytest.importorskip("lightning", reason="skipped: lightning is not installed")
pytest.importorskip("accelerate", reason="skipped: accelerate is not installed")

from tests.support.processes import ROOT
from tests.trainers.launching import finished, launch

SEEN = {
    "name not imported": "invalid strategy name: `strategy='outpace'`",
    "other strategy": "invalid strategy name: `strategy=<outpace.fabric.OutpaceStrategy",
    "misspelt": "no strategy is called",
    "two optimizers": "multiple optimizers is only supported with manual optimization",
    "LBFGS": "LBFGS calls its closure several times per step",
    "wrapped twice": "wrap a torch.optim.Optimizer, not a DistributedOptimizer",
    "DDP as well": "belong to a model in torch's DistributedDataParallel",
    "sharded": "FSDP spreads one model over several ranks",
}


def test_first_errors_are_those_that_the_page_explains():
    said = json.loads(finished(launch("python", "first_errors")).splitlines()[-1])
    page = (ROOT / "docs" / "trainers.md").read_text()
    assert list(said) == list(SEEN)
    for name, words in SEEN.items():
        assert words in said[name]
        assert words in page, f"{name} is not explained"
