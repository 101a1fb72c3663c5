"""A recorded program, or a slice of it, to real tensors."""
