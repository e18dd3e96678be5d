"""Experiments that are shipped with the package: `--config NAME` finds them."""
