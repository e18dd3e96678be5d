"""Pre-trained networks, read from and written to Hugging Face directories."""

import hashlib
import inspect
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np

from dpjax import _checks
from dpjax._toml import Table
from dpjax.models.bert import BERT
from dpjax.models.distilbert import DISTILBERT
from dpjax.models.gpt2 import GPT2
from dpjax.models.hugging_face import Family
from dpjax.models.lora import merge_lora
from dpjax.models.network import MODELS, Network, build
from dpjax.models.parameters import Params, flat, nested
from dpjax.models.roberta import ROBERTA
from dpjax.models.tokenizer import Tokenizer

__all__ = [
    "FAMILIES",
    "TASKS",
    "Pretrained",
    "from_pretrained",
    "pretrained_hash",
    "pretrained_network",
    "pretrained_tokenizer",
    "pretrained_weights",
    "save_pretrained",
]

FAMILIES: dict[str, Family] = {family.name: family for family in (BERT, DISTILBERT, GPT2, ROBERTA)}
"""The families that can be read, by `model_type` in config.json; MiniLM is a BERT."""

TASKS = ("classification", "language_modelling")
"""The tasks that a network can be loaded for."""

DTYPES = ("float32", "float16", "bfloat16")
"""The dtypes in which weights can be written."""

_WEIGHTS = "model.safetensors"
_INDEX = "model.safetensors.index.json"
_PICKLE = "pytorch_model.bin"
# Parameters that dpjax adds to those of the family.
_ADDED = ("lora_a", "lora_b", "prefix_key", "prefix_value")
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
        unused: the names of tensors in the files that the network does not use.
    """

    network: Network
    params: Params = field(repr=False)
    tokenizer: Tokenizer | None
    config: Table = field(repr=False)
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
        task: "classification" or "language_modelling"; None for the family's own task.
        classes: the number of classes; None for the number in config.json.
        length: the number of tokens in an example.
        key: initialises the parameters that are not in the files, such as a new classifier; None
            for ``jax.random.key(0)``.
        **options: constructor arguments that are not in config.json, such as ``pooling="mean"``.

    Returns:
        The network, its parameters and its tokenizer.

    Raises:
        FileNotFoundError: if the directory, config.json or the weights are missing.
        ValueError: if the family is unknown, a tensor is missing or has another shape, `length`
            exceeds the network's positions, or the tokenizer belongs to another model.
        ImportError: if the extra ``dpjax[pretrained]`` is not installed.

    Example:
        >>> model = from_pretrained("bert-base-uncased", classes=2)  # doctest: +SKIP
        >>> tokens = model.tokenizer.rows(["A good film."], length=128)  # doctest: +SKIP
        >>> logits = model.network.apply(model.params, tokens[0])  # doctest: +SKIP
    """
    config = _read_config(Path(directory))
    _check_task(_family(Path(directory), config), task)
    network, tokenizer = pretrained_network(directory, classes, length, **options)
    found, unused = _held(Path(directory), network)
    started = jax.random.key(0) if key is None else key
    expected = flat(jax.eval_shape(network.init, started))
    new = tuple(path for path in expected if path not in found)
    if new:
        # Under jit, only the parameters that are used are computed.
        made = jax.jit(lambda key: {path: flat(network.init(key))[path] for path in new})(started)
        found |= jax.device_get(made)
    params = nested({path: jnp.asarray(found[path]) for path in expected})
    return Pretrained(network, params, tokenizer, config, new, unused)


def pretrained_network(
    directory: str | Path, classes: int | None = None, length: int = 128, **options: Any
) -> tuple[Network, Tokenizer | None]:
    """Returns the network that a directory's config.json describes, and its tokenizer, if any.

    No weights are read.

    Args:
        directory: the folder.
        classes: the number of classes; None for the number in config.json.
        length: the number of tokens in an example.
        **options: constructor arguments that are not in config.json, such as ``pooling="mean"``.

    Raises:
        FileNotFoundError: if the directory or config.json is missing, or the tokenizer of a BERT,
            whose separator the network needs.
        ValueError: if the family is unknown, `length` exceeds the network's positions, or the
            tokenizer belongs to another model.

    Example:
        >>> import tempfile
        >>> config = {"model_type": "gpt2", "vocab_size": 11, "n_positions": 8, "n_embd": 4,
        ...           "n_layer": 1, "n_head": 2, "n_inner": 8}
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = Path(folder, "config.json").write_text(json.dumps(config))
        ...     network, tokenizer = pretrained_network(folder, length=8)
        >>> network.name, network.shape, tokenizer
        ('gpt2', (8,), None)
    """
    directory = Path(directory)
    config = _read_config(directory)
    family = _family(directory, config)
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
    return build(family.name, (length,), _classes(classes, config), **chosen), tokenizer


def pretrained_tokenizer(directory: str | Path) -> Tokenizer:
    """Returns a directory's tokenizer.

    Args:
        directory: a Hugging Face directory.

    Raises:
        FileNotFoundError: if the directory has none.

    Example:
        >>> import tempfile
        >>> words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = Path(folder, "config.json").write_text('{"model_type": "bert"}')
        ...     _ = Path(folder, "vocab.txt").write_text("\\n".join(words))
        ...     pretrained_tokenizer(folder).vocabulary
        4
    """
    directory = Path(directory)
    return Tokenizer.from_directory(directory, _family(directory, _read_config(directory)).name)


def pretrained_weights(directory: str | Path, network: Network) -> dict[str, np.ndarray]:
    """Returns the parameters that a directory holds for a network or a part of one, by path.

    A new classifier and LoRA updates are not among them; they are initialised at random.

    Args:
        directory: a Hugging Face directory.
        network: the network, from `pretrained_network`, or a part of it, from `cut`.

    Raises:
        FileNotFoundError: if the directory, config.json or the weights are missing.
        ValueError: if a tensor is missing or has another shape.

    Example:
        >>> network, _ = pretrained_network("bert-base-uncased", classes=2)  # doctest: +SKIP
        >>> weights = pretrained_weights("bert-base-uncased", network)  # doctest: +SKIP
        >>> weights["embeddings/tokens"].shape  # doctest: +SKIP
        (30522, 768)
    """
    return _held(Path(directory), network)[0]


def pretrained_hash(directory: str | Path) -> str:
    """Returns a sha256 of config.json and the weights, by which a run recognises them.

    Args:
        directory: a Hugging Face directory.

    Raises:
        FileNotFoundError: if the directory, config.json or the weights are missing.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = Path(folder, "config.json").write_text("{}")
        ...     _ = Path(folder, "model.safetensors").write_bytes(b"weights")
        ...     pretrained_hash(folder)[:8]
        'b16c7e6f'
    """
    directory = Path(directory)
    _read_config(directory)
    digest = hashlib.sha256()
    for file in (directory / "config.json", *_weight_files(directory)[1]):
        digest.update(f"{file.name} {file.stat().st_size} ".encode())
        with file.open("rb") as content:
            digest.update(hashlib.file_digest(content, "sha256").digest())
    return digest.hexdigest()


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

    LoRA updates are added to their kernels first.

    Args:
        model: the network and its tokenizer.
        directory: a folder that does not exist yet, or is empty.
        params: the trained parameters; None for the model's own.
        dtype: "float32", "float16" or "bfloat16".
        labels: the names of the classes.
        card: the text of README.md, such as a privacy statement; None for none.

    Returns:
        The files.

    Raises:
        ValueError: if the folder is not empty, the network is a part or has a prefix, or there is
            not one label for each class.
        ImportError: if the extra ``dpjax[pretrained]`` is not installed.

    Example:
        >>> import tempfile
        >>> sizes = {"layers": 1, "width": 4, "heads": 2, "hidden": 8, "positions": 8}
        >>> network = build("gpt2", (8,), 1, 11, **sizes)
        >>> params = network.init(jax.random.key(0))
        >>> model = Pretrained(network, params, tokenizer=None, config={}, new=(), unused=())
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     files = save_pretrained(model, folder, card="epsilon = 2")
        ...     again = from_pretrained(folder, length=8)
        >>> [file.name for file in files]
        ['model.safetensors', 'config.json', 'README.md']
        >>> again.new, again.unused  # every parameter was read, and every tensor used
        ((), ())
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
    if network.options.get("prefix"):
        raise ValueError(
            f"network: prefix = {network.options['prefix']}: expected 0; the files have no place "
            "for a prefix, so keep its parameters apart"
        )
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


def _read_config(directory: Path) -> Table:
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


def _family(directory: Path, config: Table) -> Family:
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


def _tokenizer(directory: Path, family: Family, options: Table) -> Tokenizer | None:
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


def _classes(classes: int | None, config: Table) -> int:
    if classes is not None:
        return classes
    named = config.get("id2label")
    return len(named) if named else int(config.get("num_labels", 2))


def _safetensors() -> ModuleType:
    try:
        import safetensors.flax  # noqa: PLC0415  an optional extra
    except ImportError as error:
        raise ImportError("safetensors is missing: pip install 'dpjax[pretrained]'") from error
    return safetensors


def _weight_files(directory: Path) -> tuple[Path, list[Path]]:
    """Returns the file that names all weights, and the files that hold them."""
    index = directory / _INDEX
    if (directory / _WEIGHTS).is_file():
        return directory / _WEIGHTS, [directory / _WEIGHTS]
    if index.is_file():
        names = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
        files = [directory / name for name in names]
        for file in files:
            if file.parent != directory:
                raise ValueError(f"{index}: names {file.name!r}: expected a file next to it")
            if not file.is_file():
                raise FileNotFoundError(f"{file}: missing; {_INDEX} names it")
        return index, files
    if (directory / _PICKLE).exists() or list(directory.glob("pytorch_model-*.bin")):
        raise ValueError(
            f"{directory / _PICKLE}: expected {_WEIGHTS}; a pickle can run code when it is read. "
            "Convert it where you trust it: transformers' save_pretrained writes safetensors"
        )
    raise FileNotFoundError(f"{directory}: no weights; expected {_WEIGHTS} or {_INDEX}")


def _read_tensors(files: Sequence[Path]) -> dict[str, np.ndarray]:
    """Returns all tensors; floating-point ones as float32."""
    tensors: dict[str, np.ndarray] = {}
    for path in files:
        try:
            loaded = _safetensors().flax.load_file(str(path))
        except ImportError:
            raise
        except Exception as error:  # the library raises its own errors and plain ones
            raise ValueError(f"{path}: expected safetensors: {error}") from error
        for key, array in loaded.items():
            tensors[key] = np.asarray(array, np.float32) if _is_float(array) else np.asarray(array)
    return tensors


def _is_float(array: chex.Array) -> bool:
    return bool(jnp.issubdtype(array.dtype, jnp.floating))


def _held(directory: Path, network: Network) -> tuple[dict[str, np.ndarray], tuple[str, ...]]:
    """Returns the parameters that the files hold, by path, and the tensors left over."""
    family = _family(directory, _read_config(directory))
    origin, files = _weight_files(directory)
    named = {_plain_name(name, family): array for name, array in _read_tensors(files).items()}
    held = family.unpacked(named)
    found: dict[str, np.ndarray] = {}
    used = set()
    for path, leaf in flat(jax.eval_shape(network.init, jax.random.key(0))).items():
        if path.rpartition("/")[2] in _ADDED:
            continue
        name = family.tensor_name(path)
        array = held.get(name)
        if array is not None and path.endswith("/kernel"):
            array = array.T
        if array is not None and array.shape == leaf.shape:
            found[path] = array
            used.add(name)
        elif array is not None and not family.in_head(path):
            raise ValueError(
                f"{origin}: {name} has shape {array.shape}: expected {leaf.shape}, as config.json "
                "says"
            )
        elif not _may_be_new(family, path):
            raise ValueError(f"{origin}: {name}: missing; expected it of a {family.name}")
    _check_tied(family, held, origin)
    return found, tuple(sorted(set(held) - used))


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
