"""Holds the store for ranks of other hosts, until it is killed: store.py ADDRESS PORT"""

from __future__ import annotations

import signal
import sys

from torch.distributed import TCPStore  # type: ignore[attr-defined]

if __name__ == "__main__":
    store = TCPStore(sys.argv[1], int(sys.argv[2]), is_master=True, wait_for_workers=False)
    signal.pause()
