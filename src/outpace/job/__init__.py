"""The job this process belongs to: which rank it is, what its machine offers, and how the ranks find each other."""
