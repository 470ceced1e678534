"""What a rank may find out about gradients, and do to its own, before an optimizer steps; and how it steps alike."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager

import torch
from torch.optim import SGD, Adam, AdamW, Optimizer
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks


def clip_if_finite(parameters: list[torch.nn.Parameter], max_norm: float | None) -> bool:
    """Whether all gradients are finite. If they are, clips them to a norm of all together; else leaves them alone."""
    gradients = [p.grad for p in parameters if p.grad is not None]
    if not gradients:
        return True
    norms = [_norm(norm, gradient) for norm, gradient in zip(torch._foreach_norm(gradients), gradients, strict=True)]
    if not all(bool(norm.isfinite()) for norm in norms):
        return False
    if max_norm is not None:
        total = torch.linalg.vector_norm(torch.stack([norm.to(norms[0].device) for norm in norms]))
        torch.nn.utils.clip_grads_with_norm_(parameters, max_norm, total)
    return True


def _norm(norm: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
    """In a type that holds it: squares of finite numbers, and the norm of float16, may overflow their own."""
    if not bool(norm.isfinite()) and bool(gradient.isfinite().all()):
        norm = torch.linalg.vector_norm(gradient, dtype=torch.float64)
    return norm if norm.dtype == torch.float64 else norm.float()


def only_reads_gradients(optimizer: Optimizer) -> bool:
    """Whether `step()` leaves `.grad` untouched, so that it may point at memory all ranks share.

    Known for these classes only: SGD with Nesterov and foreach, for one, adds into the gradient.
    """
    hooks = (*optimizer._optimizer_step_pre_hooks, *optimizer._optimizer_step_post_hooks)
    if hooks or _global_optimizer_pre_hooks or _global_optimizer_post_hooks:
        return False  # a hook may do anything
    if type(optimizer) is SGD:
        return not any(group.get("nesterov") or group.get("fused") for group in optimizer.param_groups)
    return type(optimizer) in (Adam, AdamW) and not any(g.get("fused") for g in optimizer.param_groups)


@contextmanager
def same_bits_with_any_threads(dtypes: Collection[torch.dtype]) -> Iterator[None]:
    """Optimizer steps on such tensors in here do not depend on how many threads this process has.

    Threads share a tensor out at places that are no multiples of a vector register. The few numbers left over on each
    side are computed one by one, and where half types are concerned torch rounds those after every operation instead
    of once. So a step on half types is taken by one thread, over whole tensors. Wider types give the same bits anyhow.
    """
    threads = torch.get_num_threads()
    if threads == 1 or all(dtype.itemsize >= 4 for dtype in dtypes):
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
