"""The optimizer of a work: learning rates by part and by round, and the updates it makes."""
