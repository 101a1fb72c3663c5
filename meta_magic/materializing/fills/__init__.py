"""One file for each way to fill the tensors of a module."""
