"""A data set that loader workers make. Imports no more than they need, for some are started from nothing."""

import torch
from torch.utils.data import Dataset


class Rows(Dataset):
    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((12,), index / self.count)
