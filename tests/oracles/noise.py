"""Threefry, Box-Muller and the grid in NumPy and exact fractions, from their formulas alone."""

from fractions import Fraction

import numpy as np

ROTATIONS = (13, 15, 26, 6, 17, 29, 16, 24)


def threefry2x32(key, high, low):
    """Threefry-2x32 with 20 rounds of (high, low), each uint32 arrays (Salmon et al. 2011)."""
    mask = 0xFFFFFFFF
    key = [int(word) for word in key]
    schedule = [*key, 0x1BD11BDA ^ key[0] ^ key[1]]
    a = (np.asarray(high, np.uint64) + schedule[0]) & mask
    b = (np.asarray(low, np.uint64) + schedule[1]) & mask
    for i in range(20):
        turn = ROTATIONS[i % 8]
        a = (a + b) & mask
        b = (((b << turn) | (b >> (32 - turn))) & mask) ^ a
        if i % 4 == 3:
            s = i // 4 + 1
            a = (a + schedule[s % 3]) & mask
            b = (b + schedule[(s + 1) % 3] + s) & mask
    return a, b


def folded(key, number):
    return tuple(int(word) for word in threefry2x32(key, 0, number % 2**32))


def normal_of_words(words):
    """The normals that rows of four words stand for, in float64."""
    radius = np.array([(int(a) << 64) | (int(b) << 32) | int(c) for a, b, c, _ in words], object)
    twice = 2 * radius + 1  # u 2^97
    log = np.array(
        [
            np.log1p(-float(Fraction(int(2**97 - t), 2**97)))
            if t > 2**96
            else np.log(float(t)) - 97 * np.log(2)
            for t in twice
        ]
    )
    angle = np.array([int(w[3]) for w in words], np.float64)
    sign = np.where(angle % 2, -1.0, 1.0)
    return sign * np.sqrt(-2 * log) * np.sin(np.pi / 2 * (angle // 2 + 0.5) / 2**31)


def normals(key, leaf, indices):
    """The standard normals of a leaf at some row-major indices: a list of Python integers."""
    high = np.array([(leaf << 8) + (2 * i >> 32) for i in indices], np.uint64)
    low = np.array([2 * i % 2**32 for i in indices], np.uint64)
    first, second = threefry2x32(key, high, low), threefry2x32(key, high, low + 1)
    return normal_of_words(np.stack([*first, *second], axis=-1))


def grid_unit(std):
    """The largest power of two that is at most std / 16."""
    unit = Fraction(1)
    while unit > Fraction(std) / 16:
        unit /= 2
    while 2 * unit <= Fraction(std) / 16:
        unit *= 2
    return unit


def nearest_multiple(total, unit):
    """The multiples of `unit` nearest to an exact fraction: one, or two at a half."""
    below = total // unit
    rest = total / unit - below
    if rest == Fraction(1, 2):
        return [below * unit, (below + 1) * unit]
    return [(below + (rest > Fraction(1, 2))) * unit]
