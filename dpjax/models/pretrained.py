"""Pre-trained networks from Hugging Face's directories, and back into one."""

import inspect
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np

from dpjax import _checks
from dpjax.models.bert import BERT
from dpjax.models.distilbert import DISTILBERT
from dpjax.models.gpt2 import GPT2
from dpjax.models.hugging_face import Family
from dpjax.models.lora import merge_lora
from dpjax.models.network import MODELS, Network, build
from dpjax.models.parameters import flat, nested
from dpjax.models.roberta import ROBERTA
from dpjax.models.tokenizer import Tokenizer

__all__ = ["FAMILIES", "TASKS", "Pretrained", "from_pretrained", "save_pretrained"]

FAMILIES: dict[str, Family] = {family.name: family for family in (BERT, DISTILBERT, GPT2, ROBERTA)}
"""The families that can be read, by `model_type` in config.json; MiniLM is a BERT."""

TASKS = ("classification", "language_modelling")
"""What a network is read for."""

DTYPES = ("float32", "float16", "bfloat16")
"""The precisions in which weights are written."""

_WEIGHTS = "model.safetensors"
_INDEX = "model.safetensors.index.json"
_PICKLE = "pytorch_model.bin"
_OLD_NAMES = {".gamma": ".weight", ".beta": ".bias"}


@dataclass(frozen=True, eq=False)
class Pretrained:
    """A network with pre-trained parameters and its tokenizer.

    Attributes:
        network: pure functions of the parameters.
        params: the parameters, float32.
        tokenizer: the network's own; None if the directory has none.
        config: the directory's config.json.
        new: the parameters that the files do not hold, by path; they start at random.
        unused: the files' tensors that the network has no place for, by name.
    """

    network: Network
    params: Any = field(repr=False)
    tokenizer: Tokenizer | None
    config: Mapping[str, Any] = field(repr=False)
    new: tuple[str, ...]
    unused: tuple[str, ...]


def from_pretrained(
    directory: str | Path,
    task: str | None = None,
    *,
    classes: int | None = None,
    length: int = 128,
    key: chex.PRNGKey | None = None,
    **options: Any,
) -> Pretrained:
    """Reads a network from a Hugging Face directory: config.json, safetensors and a tokenizer.

    Weights are read by name from model.safetensors or from its shards, in float16, bfloat16 or
    float32, and become float32. Every tensor is used or named in `Pretrained.unused`.

    Args:
        directory: the folder.
        task: "classification" or "language_modelling"; None for what the family is for.
        classes: how many classes there are; None takes the number that config.json has.
        length: how many tokens an example has.
        key: starts the parameters that are not in the files, such as a new classifier; None for
            ``jax.random.key(0)``.
        **options: the constructor's own that config.json does not hold, such as
            ``pooling="mean"``.

    Returns:
        The network, its parameters and its tokenizer.

    Raises:
        FileNotFoundError: the directory, config.json or the weights are missing.
        ValueError: the family is unknown, a tensor is missing or has another shape, `length` is
            more than the network has positions for, or the tokenizer is another model's.
        ImportError: the extra ``dpjax[pretrained]`` is not installed.

    Example:
        ``model = dpjax.models.from_pretrained("bert-base-uncased", classes=2, length=128)``;
        ``tokens = model.tokenizer.rows(sentences, length=128)``;
        ``logits = jax.vmap(model.network.apply, (None, 0))(model.params, tokens)``.
    """
    directory = Path(directory)
    config = _read_config(directory)
    family = _family(directory, config)
    _check_task(family, task)
    chosen = {**family.constructor_options(config, directory / "config.json"), **options}
    tokenizer = _tokenizer(directory, family, chosen)
    if family is BERT and "separator" not in options:
        if tokenizer is None:
            raise FileNotFoundError(
                f"{directory}: no tokenizer; expected one, or the separator's number as `separator`"
            )
        chosen["separator"] = tokenizer.separator
    longest = chosen["positions"]
    if _checks.integer("length", length, at_least=1) > longest:
        raise ValueError(f"length = {length}: expected at most {longest}, the network's positions")
    network = build(family.name, (length,), _classes(classes, config), **chosen)
    tensors, origin = _read_tensors(directory)
    params, new, unused = _fitted(
        family, network, tensors, origin, jax.random.key(0) if key is None else key
    )
    return Pretrained(network, params, tokenizer, config, new, unused)


def save_pretrained(
    model: Pretrained,
    directory: str | Path,
    params: chex.ArrayTree | None = None,
    *,
    dtype: str = "float32",
    labels: Sequence[str] | None = None,
    card: str | None = None,
) -> list[Path]:
    """Writes a Hugging Face directory that `from_pretrained` and `transformers` read.

    Updates of LoRA are added to their kernels first.

    Args:
        model: where the network and its tokenizer come from.
        directory: a folder that does not exist yet, or is empty.
        params: the trained parameters; None for the model's own.
        dtype: "float32", "float16" or "bfloat16".
        labels: the names of the classes.
        card: the text of README.md, such as a privacy statement; None for none.

    Returns:
        The files.
    """
    out = Path(directory)
    _checks.choice("dtype", dtype, DTYPES)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ValueError(f"{out}: expected a folder that does not exist yet, or is empty")
    network, family = (
        model.network,
        FAMILIES[_checks.choice("network", model.network.name, FAMILIES)],
    )
    if "start" in network.options or "stop" in network.options:
        raise ValueError("network: expected a whole one, not a part that was cut at a block")
    params = model.params if params is None else params
    if network.lora is not None:
        params = merge_lora(params, network.lora)
    tensors = {}
    for path, leaf in flat(params).items():
        array = np.asarray(jax.device_get(leaf), np.float32)
        name = family.tensor_name(path)
        tensors[name] = array.T if path.endswith("/kernel") else array
    tensors = dict(family.packed(tensors))
    heads = tuple(family.head.values())
    named = {
        name if name.startswith(heads) and heads else family.prefix + name: array
        for name, array in tensors.items()
    }
    signature = inspect.signature(MODELS[network.name]).parameters.values()
    defaults = {p.name: p.default for p in signature if p.default is not inspect.Parameter.empty}
    config = {**model.config, **family.config({**defaults, **network.options})}
    config["architectures"] = [family.language_model or family.classifier]
    config["dtype"] = dtype
    config.pop("torch_dtype", None)
    if family.classifier is not None:
        names = list(labels or (f"LABEL_{i}" for i in range(network.classes)))
        if len(names) != network.classes:
            raise ValueError(f"labels = {names}: expected {network.classes} names")
        config["id2label"] = {str(i): name for i, name in enumerate(names)}
        config["label2id"] = {name: i for i, name in enumerate(names)}
    out.mkdir(parents=True, exist_ok=True)
    files = [out / _WEIGHTS, out / "config.json"]
    _safetensors().flax.save_file(
        {name: jnp.asarray(array, dtype) for name, array in named.items()},
        str(files[0]),
        {"format": "pt"},
    )
    files[1].write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    if model.tokenizer is not None:
        model.tokenizer.save(out)
        files.append(out / "tokenizer.json")
    if card is not None:
        files.append(out / "README.md")
        files[-1].write_text(card, encoding="utf-8")
    return files


def _read_config(directory: Path) -> Mapping[str, Any]:
    file = directory / "config.json"
    if not file.is_file():
        what = "no such folder" if not directory.is_dir() else "no config.json"
        raise FileNotFoundError(f"{directory}: {what}; expected a Hugging Face directory")
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{file}: expected JSON: {error}") from error
    if not isinstance(config, dict):
        raise ValueError(f"{file}: expected a table")
    return config


def _family(directory: Path, config: Mapping[str, Any]) -> Family:
    kind = config.get("model_type")
    if kind not in FAMILIES:
        raise ValueError(
            f"{directory / 'config.json'}: model_type = {kind!r}: expected one of "
            f"{', '.join(sorted(FAMILIES))}"
        )
    return FAMILIES[kind]


def _check_task(family: Family, task: str | None) -> None:
    own = TASKS[0] if family.classifier is not None else TASKS[1]
    if task is not None and _checks.choice("task", task, TASKS) != own:
        raise ValueError(f"task = {task!r}: expected {own!r}, which is what {family.name} is for")


def _tokenizer(directory: Path, family: Family, options: Mapping[str, Any]) -> Tokenizer | None:
    try:
        tokenizer = Tokenizer.from_directory(directory, family.name)
    except FileNotFoundError:
        return None
    if tokenizer.vocabulary > options["vocabulary"]:
        raise ValueError(
            f"{directory}: the tokenizer has {tokenizer.vocabulary} tokens: expected at most "
            f"{options['vocabulary']}, the network's; this is another model's"
        )
    if "padding" in options and tokenizer.padding != options["padding"]:
        raise ValueError(
            f"{directory}: the tokenizer's padding is {tokenizer.padding}: expected "
            f"{options['padding']}, as config.json says; this is another model's"
        )
    return tokenizer


def _classes(classes: int | None, config: Mapping[str, Any]) -> int:
    if classes is not None:
        return classes
    named = config.get("id2label")
    return len(named) if named else int(config.get("num_labels", 2))


def _safetensors() -> Any:
    try:
        import safetensors.flax  # noqa: PLC0415  an optional extra
    except ImportError as error:
        raise ImportError("safetensors is missing: pip install 'dpjax[pretrained]'") from error
    return safetensors


def _read_tensors(directory: Path) -> tuple[dict[str, np.ndarray], Path]:
    """Returns all tensors in float32, and the file they are from."""
    index = directory / _INDEX
    if (directory / _WEIGHTS).is_file():
        origin, files = directory / _WEIGHTS, [_WEIGHTS]
    elif index.is_file():
        origin = index
        files = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
    elif (directory / _PICKLE).exists() or list(directory.glob("pytorch_model-*.bin")):
        raise ValueError(
            f"{directory / _PICKLE}: expected {_WEIGHTS}; a pickle can run code when it is read. "
            "Convert it where you trust it: transformers' save_pretrained writes safetensors"
        )
    else:
        raise FileNotFoundError(f"{directory}: no weights; expected {_WEIGHTS} or {_INDEX}")
    tensors: dict[str, np.ndarray] = {}
    for name in files:
        path = directory / name
        if path.parent != directory:
            raise ValueError(f"{origin}: names {name!r}: expected a file beside it")
        if not path.is_file():
            raise FileNotFoundError(f"{path}: missing; {origin.name} names it")
        try:
            loaded = _safetensors().flax.load_file(str(path))
        except Exception as error:  # the library raises its own, and plain ones
            raise ValueError(f"{path}: expected safetensors: {error}") from error
        for key, array in loaded.items():
            tensors[key] = np.asarray(array, np.float32) if _is_float(array) else np.asarray(array)
    return tensors, origin


def _is_float(array: Any) -> bool:
    return bool(jnp.issubdtype(array.dtype, jnp.floating))


def _fitted(
    family: Family,
    network: Network,
    tensors: Mapping[str, np.ndarray],
    origin: Path,
    key: chex.PRNGKey,
) -> tuple[Any, tuple[str, ...], tuple[str, ...]]:
    """Returns the network's parameters, those that are new, and the tensors left over."""
    named = {_plain_name(name, family): array for name, array in tensors.items()}
    held = family.unpacked(named)
    expected = flat(jax.eval_shape(network.init, key))
    found: dict[str, Any] = {}
    used, missing = set(), []
    for path, leaf in expected.items():
        name = family.tensor_name(path)
        array = held.get(name)
        if array is not None and path.endswith("/kernel"):
            array = array.T
        if array is not None and array.shape == leaf.shape:
            found[path] = jnp.asarray(array, leaf.dtype)
            used.add(name)
        elif array is not None and not family.in_head(path):
            raise ValueError(
                f"{origin}: {name} has shape {array.shape}: expected {leaf.shape}, as config.json "
                "says"
            )
        else:
            missing.append((path, name))
    new = tuple(path for path, _ in missing)
    lost = [name for path, name in missing if not _may_be_new(family, path)]
    if lost:
        raise ValueError(f"{origin}: {lost[0]}: missing; expected it of a {family.name}")
    if new:
        # Under jit, what is not asked for is not computed.
        found |= jax.jit(lambda key: {path: flat(network.init(key))[path] for path in new})(key)
    _check_tied(family, held, origin)
    unused = tuple(sorted(set(held) - used))
    return nested({path: found[path] for path in expected}), new, unused


def _plain_name(name: str, family: Family) -> str:
    for old, current in _OLD_NAMES.items():
        if name.endswith(old):
            name = name.removesuffix(old) + current
    return name.removeprefix(family.prefix)


def _may_be_new(family: Family, path: str) -> bool:
    return family.in_head(path) or path.startswith("pooler/")


def _check_tied(family: Family, held: Mapping[str, np.ndarray], origin: Path) -> None:
    own = held.get("lm_head.weight") if family.language_model else None
    if own is not None and not np.array_equal(own, held[family.tensor_name("embeddings/tokens")]):
        raise ValueError(
            f"{origin}: lm_head.weight differs from the table of tokens: expected them tied"
        )
