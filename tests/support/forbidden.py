"""What containers forbid."""

from __future__ import annotations

import ctypes
import os
import struct

MEMFD_CREATE = {"x86_64": 319, "aarch64": 279}.get(os.uname().machine)  #: its number; None: not known here


def forbid_memfd() -> None:
    """As a seccomp profile does, for this process and its children until they end."""
    load, jump_if_equal, give = (
        0x20,
        0x15,
        0x06,
    )  # of classic BPF: read a word, pass one over unless equal, decide
    forbidden, allowed = 0x00050000 | 1, 0x7FFF0000  # EPERM
    steps = [(load, 0, 0, 0), (jump_if_equal, 0, 1, MEMFD_CREATE), (give, 0, 0, forbidden), (give, 0, 0, allowed)]
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in steps))
    program = ctypes.create_string_buffer(struct.pack("HxxxxxxQ", len(steps), ctypes.addressof(code)))
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    assert prctl(38, 1, 0, 0, 0) == 0  # PR_SET_NO_NEW_PRIVS
    assert prctl(22, 2, program, 0, 0) == 0, os.strerror(ctypes.get_errno())  # PR_SET_SECCOMP, with a filter
