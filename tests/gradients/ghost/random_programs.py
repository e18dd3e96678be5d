"""Random losses of one example: a few operations on parameters, data and what came of them."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import strategies as st

from tests.gradients.ghost.contract import ROWS, Case

SIZES = (2, 3)
PARAMS = ((2, 3), (3, 3), (3,), (2, 3, 2), ())
DATA = ((2, 3), (3, 2), (3,), (3, 3))
MAX_RANK, MAX_SIZE = 4, 60


@dataclass
class Draw:
    """Choices in the order in which a program asks for them, from a list of integers."""

    numbers: list[int]
    at: int = 0

    def below(self, n):
        """Returns one of 0, ..., n - 1; 0 when the list is used up."""
        number = self.numbers[self.at] if self.at < len(self.numbers) else 0
        self.at += 1
        return number % n

    def one_of(self, options):
        return options[self.below(len(options))]


def contraction(draw, a, b, _):
    """`dot_general` with random batch and contracted axes of equal sizes."""
    free, pairs = list(range(b.ndim)), {"contract": [], "batch": []}
    for axis in range(a.ndim):
        matching = [j for j in free if b.shape[j] == a.shape[axis]]
        use = draw.one_of(["contract", "batch", "free", "contract"])
        if matching and use != "free":
            other = draw.one_of(matching)
            free.remove(other)
            pairs[use].append((axis, other))
    sides = {use: tuple(zip(*found, strict=True)) or ((), ()) for use, found in pairs.items()}
    return jax.lax.dot_general(a, b, (sides["contract"], sides["batch"]))


def convolution(draw, a, b, _):
    """A convolution over one axis, in any layout; other values are repeated to make a kernel."""
    image = a if a.ndim == 2 else a.reshape(-1, 1)
    channel = draw.below(2)
    channels = image.shape[channel]
    if b.ndim != 3:
        b = jnp.resize(b, (2, channels, 2))
    sources = [axis for axis in range(3) if b.shape[axis] == channels]
    if not sources:
        return a
    source = draw.one_of(sources)
    window = draw.one_of([axis for axis in range(3) if axis != source])
    return jax.lax.conv_general_dilated(
        jnp.moveaxis(image, channel, 1)[None],
        jnp.transpose(b, (window, source, 3 - source - window)),
        (1 + draw.below(2),),
        draw.one_of([((0, 0),), ((1, 1),), ((2, 1),)]),
        lhs_dilation=(1 + draw.below(2),),
        rhs_dilation=(1 + draw.below(2),),
        dimension_numbers=("NHC", "HIO", "NHC"),
    )[0]


def arithmetic(draw, a, b, _):
    """Two values, broadcast as NumPy does where they can be."""
    try:
        jnp.broadcast_shapes(a.shape, b.shape)
    except ValueError:
        return a
    operations = [
        jnp.add,
        jnp.subtract,
        jnp.multiply,
        lambda a, b: a / (1.5 + jnp.sin(b)),
        jnp.maximum,
        lambda a, b: jnp.where(a > 0, a, b),
    ]
    return draw.one_of(operations)(a, b)


def lookup(draw, a, _, ids):
    if a.ndim == 0:
        return a
    axis, mode = draw.below(a.ndim), draw.one_of(["clip", "wrap", "fill"])
    return jnp.take(a, ids, axis=axis, mode=mode, fill_value=0.0)


def shuffle(draw, a, b, _):
    """What only moves numbers about."""
    if a.ndim == 0:
        return jnp.broadcast_to(a, (2,))
    axis = draw.below(a.ndim)
    moves = [
        lambda: jnp.moveaxis(a, axis, 0),
        lambda: a.reshape(-1),
        lambda: a.reshape(*a.shape[:axis], 1, *a.shape[axis:]),
        lambda: jnp.flip(a, axis),
        lambda: jax.lax.slice_in_dim(a, 1, None, axis=axis) if a.shape[axis] > 2 else a,
        lambda: jnp.concatenate([a, a if a.shape != b.shape else b], axis),
        lambda: jnp.broadcast_to(a[None], (2, *a.shape)),
        lambda: jnp.pad(a, [(1, 0)] * a.ndim),
    ]
    return draw.one_of(moves)()


def reduction(draw, a, *_):
    if a.ndim == 0:
        return jnp.exp(-(a**2))
    return draw.one_of([jnp.sum, jnp.mean, jnp.max, jnp.cumsum])(a, axis=draw.below(a.ndim))


def function(draw, a, *_):
    stopped = lambda x: x + jax.lax.stop_gradient(jnp.cos(x))  # noqa: E731
    return draw.one_of([jnp.tanh, jnp.sin, jax.nn.softplus, stopped, jax.jit(jnp.cos)])(a)


def loop(draw, a, b, _):
    """A recurrence over the first axis, with another value as the loop's constant."""
    if a.ndim != 2 or b.shape != (a.shape[1],) * 2:
        return a

    def step(h, x):
        h = jnp.tanh(h @ b + x)
        return h, h

    last, states = jax.lax.scan(step, jnp.zeros_like(a[0]), a, reverse=bool(draw.below(2)))
    return draw.one_of([last, states])


OPERATIONS = (
    contraction,
    convolution,
    arithmetic,
    contraction,
    lookup,
    shuffle,
    reduction,
    function,
    arithmetic,
    loop,
)


def program(numbers, steps):
    """Returns the loss that these choices spell."""

    def loss(params, example):
        *data, ids = example
        draw, values, used = Draw(numbers), [*params, *data], set()
        for _ in range(steps):
            # Late values more often than early ones, so that programs are deep.
            pick = [draw.below(len(values)), len(values) - 1 - draw.below(3)]
            first, second = draw.one_of([pick, pick[::-1]])
            found = draw.one_of(OPERATIONS)(draw, values[first], values[second], ids)
            if found.ndim <= MAX_RANK and found.size <= MAX_SIZE:
                used |= {first, second}
                values.append(found)
        ends = [v for i, v in enumerate(values) if i not in used or i == len(values) - 1]
        return sum(jnp.sum(jnp.sin(v)) for v in ends[-4:])

    return loss


def case_of(numbers, steps):
    rng = np.random.default_rng(0)
    params = [rng.standard_normal(shape) for shape in PARAMS]
    data = [rng.standard_normal((ROWS, *shape)) for shape in DATA]
    ids = rng.integers(-1, 4, (ROWS, 3))
    return Case(program(numbers, steps), params, (*data, ids))


NUMBERS = st.lists(st.integers(0, 1000), min_size=10, max_size=60)
