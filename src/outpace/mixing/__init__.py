"""Who averages with whom, and with which weights. Pure mathematics of graphs, matchings, groups and schedules."""
