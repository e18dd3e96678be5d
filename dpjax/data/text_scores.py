"""BLEU, NIST and ROUGE-L of generated texts against several references."""

import math
import re
from collections import Counter
from collections.abc import Sequence

__all__ = ["bleu", "nist", "rouge_l", "score_words"]

Texts = Sequence[str]

_BETA = -math.log(0.5) / math.log(1.5) ** 2  # halves the score at two thirds of the length
_ENTITIES = {"&quot;": '"', "&amp;": "&", "&lt;": "<", "&gt;": ">"}


def score_words(text: str) -> list[str]:
    """Splits a text as NIST's mteval-v13a does, lower-cased.

    >>> score_words("It's £3.50, at the Plough.")
    ["it's", '£3.50', ',', 'at', 'the', 'plough', '.']
    """
    for entity, sign in _ENTITIES.items():
        text = text.replace(entity, sign)
    text = f" {text} "
    text = re.sub(r"([\{-\~\[-\` -\&\(-\+\:-\@\/])", r" \1 ", text)
    text = re.sub(r"([^0-9])([\.,])", r"\1 \2 ", text)
    text = re.sub(r"([\.,])([^0-9])", r" \1 \2", text)
    text = re.sub(r"([0-9])(-)", r"\1 \2 ", text)
    return text.lower().split()


def bleu(candidates: Texts, references: Sequence[Texts]) -> float:
    """Returns BLEU-4 of all candidates together, from 0 to 1.

    ``min(1, exp(1 - r / c)) (p_1 p_2 p_3 p_4)^(1/4)``, where p_n is the share of the candidates'
    n-grams that occur in a reference (each counted at most as often as there), c the candidates'
    total length, and r the total length of the references nearest in length.

    Args:
        candidates: one text each.
        references: several texts for each candidate.

    References: Papineni et al., BLEU, 2002, https://aclanthology.org/P02-1040; words and rules of
    mteval-v13a, as in the E2E NLG challenge.

    Example:
        >>> round(bleu(["the cat sat on the mat"], [["the cat sat on a mat", "a cat sat"]]), 4)
        0.5373
    """
    hits, totals = [0] * 4, [0] * 4
    length = nearest = 0
    for words, others in _split(candidates, references):
        length += len(words)
        nearest += min((abs(len(o) - len(words)), len(o)) for o in others)[1]
        for n in range(4):
            own, most = _counted(words, n + 1), _most(others, n + 1)
            hits[n] += sum(min(count, most[gram]) for gram, count in own.items())
            totals[n] += max(0, len(words) - n)
    if not all(hits):
        return 0.0
    precision = math.exp(sum(math.log(h / t) for h, t in zip(hits, totals, strict=True)) / 4)
    return min(1.0, math.exp(1 - nearest / length)) * precision


def nist(candidates: Texts, references: Sequence[Texts]) -> float:
    """Returns NIST-5 of all candidates together: n-grams are weighted by their information.

    Args:
        candidates: one text each.
        references: several texts for each candidate.

    Reference: Doddington, Automatic evaluation of machine translation quality using n-gram
    co-occurrence statistics, 2002, https://dl.acm.org/doi/10.5555/1289189.1289273.
    """
    pairs = _split(candidates, references)
    known: list[Counter[tuple[str, ...]]] = [Counter() for _ in range(6)]
    for _, others in pairs:
        for other in others:
            known[0][()] += len(other)
            for n in range(1, 6):
                known[n].update(_counted(other, n))

    def information(gram: tuple[str, ...]) -> float:
        return math.log2(known[len(gram) - 1][gram[:-1]] / known[len(gram)][gram])

    score = 0.0
    for n in range(1, 6):
        found, total = 0.0, 0
        for words, others in pairs:
            most = _most(others, n)
            own = _counted(words, n)
            found += sum(min(c, most[g]) * information(g) for g, c in own.items() if most[g])
            total += max(0, len(words) - n + 1)
        score += found / total if total else 0.0
    length = sum(len(words) for words, _ in pairs)
    usual = sum(sum(map(len, others)) / len(others) for _, others in pairs)
    ratio = length / usual if usual else 0.0
    if ratio >= 1:
        return score
    return score * math.exp(-_BETA * math.log(ratio) ** 2) if ratio > 0 else 0.0


def rouge_l(candidates: Texts, references: Sequence[Texts]) -> float:
    """Returns the mean ROUGE-L of the candidates, from 0 to 1.

    ``(1 + 1.2^2) P R / (R + 1.2^2 P)``, as for COCO's captions, where P and R are the largest
    shares of the candidate's and of a reference's words on a longest common subsequence.
    Punctuation is left out, as there. Words are those of `score_words`; COCO uses the Stanford
    tokenizer instead.

    Args:
        candidates: one text each.
        references: several texts for each candidate.

    Reference: Lin, ROUGE, 2004, https://aclanthology.org/W04-1013.

    Example:
        >>> round(rouge_l(["the cat sat"], [["the cat sat down", "a dog"]]), 4)
        0.8356
    """
    scores = []
    for words, others in _split(candidates, references):
        own = _without_signs(words)
        shares = []
        for other in map(_without_signs, others):
            common = _common(own, other)
            shares.append((common / max(1, len(own)), common / max(1, len(other))))
        precision, recall = (max(share[i] for share in shares) for i in range(2))
        bottom = recall + 1.44 * precision
        scores.append(2.44 * precision * recall / bottom if bottom else 0.0)
    return sum(scores) / len(scores)


def _split(
    candidates: Texts, references: Sequence[Texts]
) -> list[tuple[list[str], list[list[str]]]]:
    if not candidates or len(candidates) != len(references) or not all(references):
        raise ValueError(
            f"{len(candidates)} candidates, {len(references)} lists of references: expected as "
            "many, none of them empty"
        )
    return [
        (score_words(one), [score_words(text) for text in several])
        for one, several in zip(candidates, references, strict=True)
    ]


def _counted(words: Sequence[str], n: int) -> Counter[tuple[str, ...]]:
    return Counter(tuple(words[i : i + n]) for i in range(len(words) - n + 1))


def _most(texts: Sequence[Sequence[str]], n: int) -> Counter[tuple[str, ...]]:
    most: Counter[tuple[str, ...]] = Counter()
    for words in texts:
        most |= _counted(words, n)
    return most


def _without_signs(words: Sequence[str]) -> list[str]:
    return [word for word in words if any(c.isalnum() for c in word)]


def _common(one: Sequence[str], other: Sequence[str]) -> int:
    """Returns the length of a longest common subsequence."""
    before = [0] * (len(other) + 1)
    for word in one:
        now = [0]
        for place, theirs in enumerate(other, 1):
            now.append(before[place - 1] + 1 if word == theirs else max(before[place], now[-1]))
        before = now
    return before[-1]
