"""Ctrl-C for commands that tests start."""

import signal


def hear_ctrl_c():
    """A shell has its background jobs ignore SIGINT, and with them everything they start: these tests among it."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
