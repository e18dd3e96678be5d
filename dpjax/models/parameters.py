"""Which parameters are trained and which are frozen."""

import fnmatch
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import chex
from flax import traverse_util

from dpjax import _checks

__all__ = ["Parameters", "Params", "flat", "nested", "split"]

Params = Mapping[str, Any]
"""Nested dicts with arrays as leaves. The depth differs between networks, so type checkers accept
any path, such as ``params["blocks"]["0"]["query"]["kernel"]``."""


class Parameters(NamedTuple):
    """Parameters as two nested dicts, trainable and frozen.

    Attributes:
        trainable: the parameters that get gradients.
        frozen: the others.

    Example:
        >>> Parameters({"head": {"bias": 1.0}}, {"body": {"bias": 0.0}}).merged()
        {'head': {'bias': 1.0}, 'body': {'bias': 0.0}}
    """

    trainable: chex.ArrayTree
    frozen: chex.ArrayTree

    def merged(self) -> Params:
        """Returns all parameters, as the network takes them."""
        return nested({**flat(self.trainable), **flat(self.frozen)})


def split(params: chex.ArrayTree, trainable: Sequence[str]) -> Parameters:
    """Splits parameters by their paths; without any pattern, all are trainable.

    Args:
        params: nested dicts.
        trainable: patterns, each the beginning of a path (``"classifier"``, ``"blocks/11"``), a
            path counted from the end (``"blocks/-1"``, the last block), or a pattern with ``*`` for
            any characters (``"*/bias"``).

    Returns:
        The trainable and the frozen parameters, as nested dicts.

    Raises:
        ValueError: if a pattern matches no parameter; names it.

    Example:
        >>> params = {"body": {"kernel": 1.0}, "head": {"kernel": 2.0, "bias": 3.0}}
        >>> split(params, ["head"]).frozen
        {'body': {'kernel': 1.0}}
        >>> split(params, ["*/bias"]).trainable
        {'head': {'bias': 3.0}}
    """
    if not trainable:
        return Parameters(params, {})
    leaves = flat(params)
    chosen: set[str] = set()
    for pattern in trainable:
        found = _matching(pattern, list(leaves))
        if not found:
            hint = _checks.nearest(pattern, {path.split("/")[0] for path in leaves})
            raise ValueError(f"model.trainable = {pattern!r}: no such parameter; {hint}")
        chosen |= found
    parts = (
        {path: leaf for path, leaf in leaves.items() if (path in chosen) == wanted}
        for wanted in (True, False)
    )
    return Parameters(*map(nested, parts))


def flat(params: chex.ArrayTree) -> dict[str, Any]:
    """Returns the leaves of nested dicts by their paths, the keys joined by "/"."""
    return traverse_util.flatten_dict(params, sep="/")


def nested(leaves: Params) -> Params:
    """The inverse of `flat`."""
    return traverse_util.unflatten_dict(dict(leaves), sep="/")


def _matching(pattern: str, paths: Sequence[str]) -> set[str]:
    if "*" in pattern:
        return {path for path in paths if fnmatch.fnmatchcase(path, pattern)}
    prefix = _counted(pattern, paths)
    return {path for path in paths if path == prefix or path.startswith(prefix + "/")}


def _counted(pattern: str, paths: Sequence[str]) -> str:
    """Replaces a negative number in a path by the number it stands for.

    >>> _counted("blocks/-1", ["blocks/9/bias", "blocks/10/bias"])
    'blocks/10'
    """
    steps: list[str] = []
    for step in pattern.split("/"):
        if step.startswith("-") and step[1:].isdigit():
            depth = len(steps)
            under = [path.split("/") for path in paths]
            numbers = {
                int(path[depth])
                for path in under
                if path[:depth] == steps and len(path) > depth and path[depth].isdigit()
            }
            place = int(step)
            if -len(numbers) <= place < 0:
                steps.append(str(sorted(numbers)[place]))
                continue
        steps.append(step)
    return "/".join(steps)
