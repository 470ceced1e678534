"""Knocks at a port, from whatever namespace it is started in: `probe.py ADDRESS PORT TIMEOUT_S < BYTES`.

Prints "accepted" or "refused", both of which say that the host was reached, or "lost". Bytes of standard input are sent
to whoever accepts.
"""

from __future__ import annotations

import socket
import sys


def knock(address: str, port: int, timeout_s: float, data: bytes) -> str:
    try:
        with socket.create_connection((address, port), timeout=timeout_s) as connection:
            try:
                connection.sendall(data)
            except TimeoutError:
                return "lost"
            except OSError:
                pass  # the other side has had enough of it, as it may
            return "accepted"
    except ConnectionRefusedError:
        return "refused"
    except OSError:  # no answer in time, or none to the question where the address is
        return "lost"


if __name__ == "__main__":
    print(knock(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), sys.stdin.buffer.read()))
