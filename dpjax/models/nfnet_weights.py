"""The published weights of NFNets, from timm's or DeepMind's files, under our paths."""

import pickle
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import chex
import numpy as np

__all__ = ["nfnet_from_haiku", "nfnet_from_timm", "read_nfnet"]

_ARRAY_CLASSES = {
    ("numpy", "dtype"),
    ("numpy", "ndarray"),
    ("numpy.core.multiarray", "_reconstruct"),
    ("numpy._core.multiarray", "_reconstruct"),
    ("_codecs", "encode"),  # bytes, in old protocols
    ("collections", "OrderedDict"),
}


def read_nfnet(path: str | Path, head: bool = False) -> dict[str, np.ndarray]:
    """Reads the published weights of an NFNet-F0 or F1, under our paths.

    The result can be saved with ``numpy.savez`` and given to `dpjax train` as ``model.weights``.

    Args:
        path: timm's ``model.safetensors`` of ``dm_nfnet_f0`` or ``dm_nfnet_f1``, or DeepMind's
            ``F0_haiku.npz`` or ``F1_haiku.npz``, which is a pickle despite its name. Only
            dictionaries and arrays are read from a pickle; anything else is refused before it runs.
        head: whether to keep the classifier; without it, a new one is trained.

    Raises:
        ValueError: if the file is damaged, holds something else, or is not of an NFNet.
        ImportError: if the extra ``dpjax[pretrained]`` is not installed, for safetensors.
    """
    path = Path(path)
    if path.suffix == ".safetensors":
        return nfnet_from_timm(_read_safetensors(path), head)
    return nfnet_from_haiku(_read_pickle(path), head)


def _read_safetensors(path: Path) -> dict[str, np.ndarray]:
    try:
        from safetensors import SafetensorError  # noqa: PLC0415  an optional extra
        from safetensors.numpy import load_file  # noqa: PLC0415
    except ImportError as error:
        raise ImportError("safetensors is missing: pip install 'dpjax[pretrained]'") from error
    try:
        return dict(load_file(str(path)))
    except SafetensorError as error:
        raise ValueError(f"{path}: expected safetensors: {error}") from error


def _read_pickle(path: Path) -> dict[str, dict[str, np.ndarray]]:
    with path.open("rb") as file:
        try:
            params = _ArrayUnpickler(file).load()
        except (pickle.UnpicklingError, EOFError, AttributeError, IndexError, TypeError) as error:
            raise ValueError(f"{path}: expected a pickle of arrays: {error}") from error
    modules = params.values() if isinstance(params, dict) else (params,)
    if not all(isinstance(leaves, dict) for leaves in modules):
        raise ValueError(f"{path}: expected a dictionary of arrays for each Haiku module")
    return dict(params)


class _ArrayUnpickler(pickle.Unpickler):
    """Reads dictionaries of NumPy arrays; refuses, without calling it, anything else."""

    def find_class(self, module: str, name: str) -> Any:
        """Returns what a pickle names if arrays need it, and raises otherwise."""
        if (module, name) not in _ARRAY_CLASSES:
            raise pickle.UnpicklingError(f"{module}.{name} is not an array or dictionary")
        return super().find_class(module, name)


def nfnet_from_timm(tensors: Mapping[str, np.ndarray], head: bool = False) -> dict[str, np.ndarray]:
    """Returns the tensors of timm's ``dm_nfnet_f0`` or ``dm_nfnet_f1`` under our paths.

    `read_nfnet` reads them from a file. Kernels are transposed from (outputs, inputs, height,
    width) to (height, width, inputs, outputs).

    Args:
        tensors: timm's tensors, by name.
        head: whether to keep the classifier; without it, a new one is trained.

    Raises:
        ValueError: if a tensor is not one of an NFNet.

    Example:
        >>> tensors = {"stages.0.0.conv2b.weight": np.zeros((8, 4, 3, 3))}
        >>> {name: x.shape for name, x in nfnet_from_timm(tensors).items()}
        {'blocks/0/conv2b/kernel': (3, 3, 4, 8)}
    """
    depths = _stage_depths(tensors)
    found = {}
    for name, tensor in tensors.items():
        path = _timm_path(name, depths)
        if path.startswith("dense/") and not head:
            continue
        found[path] = _ours(path, np.asarray(tensor))
    return found


def _stage_depths(tensors: Mapping[str, np.ndarray]) -> list[int]:
    places = [re.match(r"stages\.(\d+)\.(\d+)\.", name) for name in tensors]
    pairs = {(int(match[1]), int(match[2])) for match in places if match}
    return [
        sum(stage == own for own, _ in pairs) for stage in range(1 + max(pairs, default=(0,))[0])
    ]


_TIMM_LEAVES = {"weight": "kernel", "gain": "gain", "bias": "bias"}
_TIMM_LAYERS = {
    "downsample.conv": "shortcut",
    "attn_last.fc1": "excite/reduce",
    "attn_last.fc2": "excite/expand",
    **{name: name for name in ("conv1", "conv2", "conv2b", "conv3")},
}


def _timm_path(name: str, depths: Sequence[int]) -> str:
    layer, _, leaf = name.rpartition(".")
    own = _TIMM_LEAVES.get(leaf, "")
    if match := re.fullmatch(r"stem\.conv([1-4])", layer):
        return f"stem/{int(match[1]) - 1}/{own}"
    if match := re.match(r"stages\.(\d+)\.(\d+)", layer):
        block = f"blocks/{sum(depths[: int(match[1])]) + int(match[2])}"
        rest = layer[match.end() + 1 :]
        if not rest and leaf == "skipinit_gain":
            return f"{block}/gain"
        if rest in _TIMM_LAYERS and own:
            return f"{block}/{_TIMM_LAYERS[rest]}/{own}"
    if layer in ("final_conv", "head.fc") and own:
        return f"{'final' if layer == 'final_conv' else 'dense'}/{own}"
    raise ValueError(f"{name}: expected a tensor of timm's dm_nfnet_f0 or dm_nfnet_f1")


def _ours(path: str, tensor: np.ndarray) -> np.ndarray:
    if "/excite/" in path and tensor.ndim == 4:  # timm has 1x1 convolutions there
        tensor = tensor[:, :, 0, 0]
    if path.endswith("kernel"):
        return tensor.transpose(2, 3, 1, 0) if tensor.ndim == 4 else tensor.T
    return tensor.reshape(-1) if tensor.ndim > 1 else tensor


def nfnet_from_haiku(
    params: Mapping[str, Mapping[str, chex.Array]], head: bool = False
) -> dict[str, np.ndarray]:
    """Returns the parameters of DeepMind's NFNets in Haiku under our paths.

    `read_nfnet` reads them from a file.

    Args:
        params: Haiku's parameters, a dictionary of arrays for each module.
        head: whether to keep the classifier; without it, a new one is trained.

    Raises:
        ValueError: if a module is not one of an NFNet.

    Example:
        >>> params = {"NFNet/~/nf_block_2/~/conv1b": {"gain": np.ones(8)}}
        >>> list(nfnet_from_haiku(params))
        ['blocks/2/conv2b/gain']
    """
    return {
        path: np.asarray(array)
        for path, array in _haiku_leaves(params)
        if head or not path.startswith("dense/")
    }


_HAIKU_LAYERS = {
    "conv0": "conv1",
    "conv1": "conv2",
    "conv1b": "conv2b",
    "conv2": "conv3",
    "conv_shortcut": "shortcut",
    "squeeze_excite/~/linear": "excite/reduce",
    "squeeze_excite/~/linear_1": "excite/expand",
}
_HAIKU_LEAVES = {"w": "kernel", "b": "bias", "gain": "gain", "bias": "bias", "skip_gain": "gain"}


def _haiku_leaves(
    params: Mapping[str, Mapping[str, chex.Array]],
) -> Iterator[tuple[str, chex.Array]]:
    for module, leaves in params.items():
        layer = _haiku_layer(module)
        for name, array in leaves.items():
            if name not in _HAIKU_LEAVES:
                raise ValueError(f"{module}/{name}: expected a parameter of an NFNet")
            yield f"{layer}/{_HAIKU_LEAVES[name]}", array


def _haiku_layer(module: str) -> str:
    own = module.partition("/~/")[2]
    if match := re.fullmatch(r"stem_conv([0-3])", own):
        return f"stem/{match[1]}"
    if own in ("final_conv", "linear"):
        return "final" if own == "final_conv" else "dense"
    match = re.fullmatch(r"nf_block(?:_(\d+))?(?:/~/(.+))?", own)
    if match and (match[2] is None or match[2] in _HAIKU_LAYERS):
        block = f"blocks/{match[1] or 0}"
        return block if match[2] is None else f"{block}/{_HAIKU_LAYERS[match[2]]}"
    raise ValueError(f"{module}: expected a module of an NFNet")
