"""The gradient engines beside their peers: one run, all variants taking turns."""
