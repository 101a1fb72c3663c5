"""A module on meta to a real one."""
