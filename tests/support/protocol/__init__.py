"""Logs of events, the ranks that write them, and what holds of them."""
