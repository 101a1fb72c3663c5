"""The records: pure data, no torch modes, no IPython, no browser."""
