"""Engines carry contributions and results: one `engine`, given a `log` and a `memory` of its kind."""
