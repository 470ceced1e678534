"""`python -m bench.learning`: whether training learns as well as if all had waited, and how soon; see `--help`.

tasks    what is trained: workloads under an optimizer of the measure's own, and the imbalances that are added here
cells    which combinations are measured, at which learning rates
runs     one simulated training, and where it is kept
verdict  what runs say of a strategy
page     docs/learning.md and the terminal
tune     allreduce's best learning rate
"""
