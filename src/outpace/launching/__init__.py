"""Starting ranks on this machine, and watching over them: what `outpace.spawn` and `outpace run` are made of."""
