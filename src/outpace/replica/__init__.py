"""One rank's model and optimizer: everything that touches user tensors. Decides nothing about rounds."""
