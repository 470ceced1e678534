"""Engines carry contributions and results. Each offers the interface in `base`; strategies know nothing else."""
