"""A c10d backend that registers itself when imported, as a plug-in's would. It is Gloo, and notes its use."""

import os

import torch.distributed as dist


def create(store, rank, size, timeout):
    with open(os.environ["OWN_BACKEND_USED"], "a") as file:
        file.write(f"{rank}/{size}\n")
    return dist.ProcessGroupGloo(store, rank, size, timeout)


dist.Backend.register_backend("own", create, devices=["cpu"])
