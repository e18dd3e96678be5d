"""Groups of parameters: which leaves share one norm."""

import numbers
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, TypeAlias

import chex
import jax

from dpjax import _checks
from dpjax._record import Record

__all__ = ["GroupIndex", "Groups", "group_index", "labels", "leaf_paths", "normalised_groups"]


class GroupIndex(NamedTuple):
    """The group of every leaf.

    Attributes:
        of_leaf: the index of the group, from 0, of each leaf in ``jax.tree.leaves(params)``.
        names: the groups' names.
    """

    of_leaf: tuple[int, ...]
    names: tuple[str, ...]


class _GroupRecord(Record):
    role: ClassVar[str] = "grouping"


@dataclass(frozen=True)
class labels(_GroupRecord):
    """A label for every parameter, by the beginning of its path.

    Args:
        prefixes: pairs (path, label); a path is the keys from the root, joined by "/", and ""
            is the root itself. A parameter gets the label of the longest path that it lies under.

    Example:
        >>> import jax.numpy as jnp
        >>> params = {"body": {"kernel": jnp.ones(2), "bias": jnp.ones(1)}, "head": jnp.ones(3)}
        >>> group_index(labels((("body", "a"), ("head", "b"))), params)
        GroupIndex(of_leaf=(0, 0, 1), names=('a', 'b'))
    """

    prefixes: tuple[tuple[str, str], ...]

    def __post_init__(self) -> None:
        """Checks that `prefixes` holds pairs of strings and each path once."""
        given = self.prefixes
        if not isinstance(given, list | tuple) or not all(
            isinstance(p, list | tuple) for p in given
        ):
            raise TypeError(f"groups = {given!r}: expected pairs (path, label) of strings")
        pairs = tuple(tuple(pair) for pair in given)
        if not pairs or any(len(p) != 2 or not all(isinstance(s, str) for s in p) for p in pairs):
            raise ValueError(f"groups = {self.prefixes!r}: expected pairs (path, label) of strings")
        if len({path for path, _ in pairs}) != len(pairs):
            raise ValueError(f"groups = {self.prefixes!r}: expected each path once")
        self._set(prefixes=pairs)

    @property
    def count(self) -> int:
        """The number of different labels."""
        return len({label for _, label in self.prefixes})


Groups: TypeAlias = str | labels | chex.ArrayTree | None
"""None for one norm per example, "per_leaf", or a params-prefix pytree of labels."""


def normalised_groups(groups: Groups) -> str | labels | None:
    """Returns None, "per_leaf" or a params-prefix pytree of labels in a comparable form.

    >>> normalised_groups({"body": "a", "head": {"kernel": "b", "bias": "a"}})
    labels(prefixes=(('body', 'a'), ('head/bias', 'a'), ('head/kernel', 'b')))
    """
    if groups is None or isinstance(groups, labels):
        return groups
    if isinstance(groups, str):
        if groups != "per_leaf":
            expected = "expected None, 'per_leaf' or a pytree of labels"
            raise ValueError(f"groups = {groups!r}: {expected}")
        return groups
    found = jax.tree_util.tree_leaves_with_path(groups)
    for path, label in found:
        if isinstance(label, bool) or not isinstance(label, str | numbers.Integral):
            where = _joined(path) or "groups"
            raise TypeError(f"groups[{where!r}] = {label!r}: expected a label (a string or an int)")
    return labels(tuple((_joined(path), str(label)) for path, label in found))


def group_index(groups: Groups, params: chex.ArrayTree) -> GroupIndex:
    """Returns the group of every leaf of `params`; groups are numbered as they first appear.

    Args:
        groups: None (one group), "per_leaf", or a pytree of labels that is a prefix of `params`.
        params: the pytree of parameters.

    Returns:
        The index of each leaf's group, and the groups' names.

    Raises:
        ValueError: if `params` has no leaves, a parameter has no label, or a label no parameter.

    Example:
        >>> group_index("per_leaf", {"bias": 0.0, "kernel": 0.0})
        GroupIndex(of_leaf=(0, 1), names=('bias', 'kernel'))
    """
    paths = leaf_paths(params)
    if not paths:
        raise ValueError("params has no leaves: expected at least one parameter")
    groups = normalised_groups(groups)
    if groups is None:
        return GroupIndex((0,) * len(paths), ("all",))
    if isinstance(groups, str):
        return GroupIndex(tuple(range(len(paths))), tuple(paths))
    label_of_leaf = [_label(path, groups.prefixes) for path in paths]
    _refuse_unused(groups.prefixes, paths)
    names = tuple(dict.fromkeys(label_of_leaf))
    return GroupIndex(tuple(names.index(label) for label in label_of_leaf), names)


def leaf_paths(tree: chex.ArrayTree) -> list[str]:
    """Returns the path of every leaf, its keys joined by "/"."""
    return [_joined(path) for path, _ in jax.tree_util.tree_leaves_with_path(tree)]


def _joined(path: Sequence[Hashable]) -> str:
    return jax.tree_util.keystr(tuple(path), simple=True, separator="/")


def _under(path: str, prefix: str) -> bool:
    return prefix in ("", path) or path.startswith(prefix + "/")


def _label(path: str, prefixes: Sequence[tuple[str, str]]) -> str:
    found = [(len(prefix), label) for prefix, label in prefixes if _under(path, prefix)]
    if not found:
        raise ValueError(f"groups: parameter {path!r} has no label: expected one")
    return max(found)[1]


def _refuse_unused(prefixes: Sequence[tuple[str, str]], paths: Sequence[str]) -> None:
    for prefix, _ in prefixes:
        if not any(_under(path, prefix) for path in paths):
            hint = _checks.nearest(prefix, {path.split("/")[0] for path in paths})
            raise ValueError(f"groups: no parameter lies under {prefix!r}; {hint}")
