"""Running code to a trace."""
