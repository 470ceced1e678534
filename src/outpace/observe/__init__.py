"""What can be seen of a run, without any collective: every rank has the ledger of all."""
