"""Engines carry contributions and results. One `engine`, given a `log` and a `memory` of its kind."""
