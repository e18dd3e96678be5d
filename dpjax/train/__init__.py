"""Training: the loop, its configuration, its checkpoints."""
