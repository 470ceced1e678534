"""The checkpoint of a whole run. Owns which of it is common to all ranks, and which is each rank's own.

`torch.distributed.checkpoint` writes a key that several ranks have only once. That is right for weights and optimizer
state, which all replicas share, but would lose each rank's position; so that has a key of its own.
"""

from __future__ import annotations

import io
from typing import Any

import torch

from outpace import randomness
from outpace.errors import OutpaceError
from outpace.optimizer import DistributedOptimizer


class TrainingState:
    """A model, its `DistributedOptimizer` and everything else a run resumes from, saved and loaded as one.

    A `Stateful` for torch.distributed.checkpoint. All ranks must make its calls:

        state = outpace.TrainingState(model, optimizer, scheduler=scheduler, progress=progress)
        dcp.save({"training": state}, checkpoint_id="run/step-100")
        dcp.load({"training": state}, checkpoint_id="run/step-100")

    own: each rank's own state besides these: schedulers, scalers, loaders and samplers with `state_dict()` and
        `load_state_dict()`, or plain dicts. Python's, numpy's and torch's random generators are always included.

    >>> model, progress = torch.nn.Linear(2, 1), {"batch": 3}
    >>> optimizer = DistributedOptimizer(torch.optim.AdamW(model.parameters()), "allreduce", model)
    >>> state = TrainingState(model, optimizer, progress=progress)
    >>> saved = state.state_dict()
    >>> progress["batch"] = 4
    >>> state.load_state_dict(saved)
    >>> progress
    {'batch': 3}
    >>> optimizer.finish()
    """

    def __init__(self, model: torch.nn.Module, optimizer: DistributedOptimizer, **own: Any) -> None:
        self._model, self._optimizer, self._own = model, optimizer, own
        self._key = f"rank {optimizer.stats.rank}"

    def state_dict(self) -> dict[str, Any]:
        """Synchronises, so that all ranks save one version. Waits for every rank that has not finished.

        The tensors are the model's and the optimizer's own: copy or write them before the next step.
        """
        from torch.distributed.checkpoint.state_dict import get_state_dict  # takes a second to import

        self._optimizer.synchronize()
        self._optimizer.synchronize()  # nobody steps on before all have that version, so no rank misses it
        inner = self._optimizer.inner
        own = {
            "optimizer": self._optimizer.state_dict()["outpace"] | {"life": ""},  # loading it always synchronises
            "groups": inner.state_dict()["param_groups"],  # each rank's schedule is its own
            "is_fresh": not inner.state,
            "random": randomness.global_state(),
            "own": {name: _state_of(thing) for name, thing in self._own.items()},
        }
        weights, shared = get_state_dict(self._model, inner)
        if own["is_fresh"]:
            inner.state.clear()  # torch made it, as a place to load into, by a step with zero gradients
        return {"model": weights, "optimizer": shared, self._key: _packed(own)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Resumes from what was saved. Waits for all ranks, and ends with equal replicas."""
        from torch.distributed.checkpoint.state_dict import set_state_dict

        inner = self._optimizer.inner
        if self._key not in state_dict:
            raise OutpaceError(
                f"this state has nothing of {self._key}: it was made by another rank's state_dict(), and each rank has "
                "a part of its own. Save and load it with torch.distributed.checkpoint on all ranks; for one file that "
                "rank 0 writes, save model.state_dict(), optimizer.state_dict() and the sampler's after synchronize()"
            )
        # A scheduler's state can have any type, and torch.distributed.checkpoint itself unpickles these bytes.
        own = torch.load(io.BytesIO(state_dict[self._key]), weights_only=False)
        weights, shared = state_dict["model"], state_dict["optimizer"]
        set_state_dict(self._model, inner, model_state_dict=weights, optim_state_dict=shared)
        state = {} if own["is_fresh"] else inner.state_dict()["state"]
        self._optimizer.load_state_dict({"state": state, "param_groups": own["groups"], "outpace": own["optimizer"]})
        for name, thing in self._own.items():
            _load(thing, own["own"][name])
        randomness.restore_global_state(own["random"])


def _state_of(thing: Any) -> Any:
    return dict(thing) if isinstance(thing, dict) else thing.state_dict()


def _load(thing: Any, state: Any) -> None:
    if isinstance(thing, dict):
        thing.clear()
        thing.update(state)
    else:
        thing.load_state_dict(state)


def _packed(own: dict[str, Any]) -> bytes:
    """As one value: of a dict, torch.distributed.checkpoint would load only the keys that already exist here."""
    buffer = io.BytesIO()
    torch.save(own, buffer)
    return buffer.getvalue()
