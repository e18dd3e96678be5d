"""The papers' own claims about which method beats which in their tables."""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

from dpjax.papers.printed_numbers import Cell

__all__ = ["CLAIMS", "PaperClaim"]


@dataclass(frozen=True)
class PaperClaim:
    """A claim that one method beats another.

    Attributes:
        table: the table's name, such as "dc-sgd/IV".
        winner: the better method, as printed.
        loser: the other method, as printed.
        where: the section of the paper, with a quotation.
        data: the data sets the claim is about; empty for all of the table.
        epsilons: the budgets the claim is about; empty for all of the table.
        or_equal: whether a tie also satisfies the claim.
    """

    table: str
    winner: str
    loser: str
    where: str
    data: tuple[str, ...] = ()
    epsilons: tuple[float, ...] = ()
    or_equal: bool = False

    @property
    def text(self) -> str:
        """The claim in short form."""
        return f"{self.winner} {'≥' if self.or_equal else '>'} {self.loser}"

    def is_about(self, cell: Cell) -> bool:
        """Returns whether the claim covers a cell's table, data set and budget."""
        return (
            cell.table_name == self.table
            and (not self.data or cell.data in self.data)
            and (not self.epsilons or cell.epsilon in self.epsilons)
        )


def _beats(
    table: str,
    winners: Iterable[str],
    losers: Iterable[str],
    where: str,
    data: tuple[str, ...] = (),
    epsilons: tuple[float, ...] = (),
    or_equal: bool = False,
) -> list[PaperClaim]:
    """Returns a claim for each winner and each loser."""
    losers = tuple(losers)
    return [
        PaperClaim(table, winner, loser, where, data, epsilons, or_equal)
        for winner in winners
        for loser in losers
        if winner != loser
    ]


def _ranked(table: str, methods: Iterable[str], where: str) -> list[PaperClaim]:
    """Returns the claims of a ranking, the best first: each beats the next."""
    return [PaperClaim(table, better, worse, where) for better, worse in pairwise(methods)]


_TUNED = ("DP-SGD", "Andrew", "Du")
_DC_SGD_TABLES = ("DP-SGD", "DC-SGD-P", "DC-SGD-E", "Andrew", "Du")
_DC_SGD = [
    *_beats(
        "dc-sgd/II",
        ["DC-SGD-E"],
        ["DP-SGD", "DC-SGD-P", "Andrew", "Du"],
        'section VI-B: "DC-SGD-E performs well across various scenarios, especially [...] with a '
        'small privacy budget"',
        epsilons=(2.0, 4.0),
    ),
    *_beats(
        "dc-sgd/II",
        ["DC-SGD-P"],
        _TUNED,
        'section VI-B: "DC-SGD-P achieves comparable or superior performance compared to other '
        'methods"',
        or_equal=True,
    ),
    *_beats(
        "dc-sgd/III",
        ["DC-SGD-E"],
        ["DP-SGD", "DC-SGD-P", "Andrew", "Du"],
        'section VI-B: "DC-SGD-E continues to exhibit the best performance" (on MNIST its own '
        "table says otherwise)",
    ),
    *_ranked(
        "dc-sgd/III",
        ["DC-SGD-P", "DP-SGD", "Andrew", "Du"],
        'section VI-B: "the ranking in terms of performance is DC-SGD-P < DP-SGD < Andrew < Du", '
        "read as from best to worst",
    ),
    *(
        claim
        for table in ("dc-sgd/IV", "dc-sgd/V")
        for claim in (
            *_beats(
                table,
                ["DP-SGD", "DC-SGD-P", "Andrew", "Du"],
                ["DC-SGD-E"],
                'section VI-B: "DC-SGD-E does not perform as well on MNIST"',
                ("mnist",),
            ),
            *_beats(
                table,
                ["Du"],
                _DC_SGD_TABLES,
                'section VI-B: "Du et al. can achieve the best performance under most settings"',
                or_equal=True,
            ),
        )
    ),
    *_beats(
        "dc-sgd/VIII",
        ["AutoClip"],
        ["DP-SGD", "DC-SGD-P", "DC-SGD-E"],
        'supplement: AutoClip "performs excellent on QNLI and MNIST"',
        ("mnist", "qnli"),
    ),
    *_beats(
        "dc-sgd/VIII",
        ["DP-SGD", "DC-SGD-P", "DC-SGD-E"],
        ["AutoClip"],
        'supplement: AutoClip is "imperfect on NAMES, and the difference is very significant"',
        ("names",),
    ),
]

_LIN_OTHERS = ("Abadi", "Papernot", "Yu", "Pichapati", "Andrew", "Du")
_LIN_FIRST = (2.93, 2.7, 7.53, 130.5)  # the budgets of section 5.2.1
_LIN = [
    *(
        claim
        for table in ("lin/2", "lin/3")
        for claim in _beats(
            table,
            ["Transfer", "Decay"],
            _LIN_OTHERS,
            'section 5.2.2: "our two strategies consistently outperformed the baselines and the '
            'other adaptive clipping methods"',
        )
    ),
    *_beats(
        "lin/2",
        ["Papernot"],
        ["Abadi", "Yu", "Andrew", "Du"],
        'section 5.2.1: Yu, Andrew and Du are "generally worse than Papernot et al. [...] but '
        '[...] better than the original DP-SGD"',
        epsilons=_LIN_FIRST,
    ),
    *_beats(
        "lin/2",
        ["Yu", "Andrew", "Du"],
        ["Abadi"],
        'section 5.2.1: Yu, Andrew and Du are "generally worse than Papernot et al. [...] but '
        '[...] better than the original DP-SGD"',
        epsilons=_LIN_FIRST,
    ),
    *_beats(
        "lin/2",
        ["Abadi", "Papernot", "Yu", "Andrew", "Du"],
        ["Pichapati"],
        'section 5.2.1: "the performance of Pichapati et al. is much worse than all other methods"',
    ),
    *_beats(
        "lin/1",
        ["Decay a=0.5"],
        ["Decay a=0.3", "Decay a=0.4", "Decay a=0.6"],
        'section 4.3: "we use a = 0.5 based on our experience"; table 1 has it best everywhere',
    ),
]

_PSASC = [
    *_beats(
        "psasc/III",
        ["DP-PSASC"],
        ["DP-SGD", "Auto-S", "DP-PSAC"],
        'section V-B: "DP-PSASC achieves higher test accuracy compared with DP-SGD, Auto-S/NSGD, '
        'and DP-PSAC"',
    ),
    *_beats(
        "psasc/III",
        ["DP-PSASC*"],
        ["DP-PSASC"],
        'section V-B: DP-PSASC* "demonstrates superior performance compared to its non-momentum '
        'counterpart"',
    ),
    *_ranked("psasc/III", ["DP-PSAC", "Auto-S", "DP-SGD"], "as the table has it, in every row"),
]

_AUTO_CLIP = [
    *_beats(
        "auto-clip/1",
        ["AUTO-S"],
        ["Abadi"],
        'section 6.1: "AUTO-S clipping outperforms existing clipping in all datasets with '
        'statistical significance"',
    ),
    *(
        claim
        for table in ("auto-clip/2", "auto-clip/3")
        for claim in _beats(
            table,
            ["AUTO-S"],
            ["full"],
            'section 6.2: "AUTO-S outperforms or at least matches SOTA on all tasks"',
            or_equal=True,
        )
    ),
]

_AUTO_DP = [
    *(
        claim
        for table in ("auto-dp/2", "auto-dp/3", "auto-dp/4", "auto-dp/5")
        for claim in _beats(
            table,
            ["Auto DP-S"],
            # Table 5 has no row of Du.
            ["DP-SGD", "Adaptive (Zhang)", *(["Dynamic (Du)"] if table != "auto-dp/5" else [])],
            'section 5: "Auto DP-S outperforms current state-of-the-art (SOTA) DP-SGD methods on '
            'most of the benchmark datasets"',
        )
    ),
    *_beats(
        "auto-dp/2",
        ["Dynamic (Du)"],
        ["DP-SGD"],
        'section 5: Dynamic DP "shows better performance in Table 2" than DP-SGD',
    ),
    *(
        claim
        for table in ("auto-dp/14", "auto-dp/17")
        for claim in _ranked(
            table,
            ["Auto DP-E", "Auto DP-S", "Auto DP-T", "Auto DP-L"],
            'appendices B.3 and D: "the noise decay scheduler with a higher decay rate gives '
            'greater accuracy"',
        )
    ),
]

CLAIMS: tuple[PaperClaim, ...] = (*_DC_SGD, *_LIN, *_AUTO_DP, *_PSASC, *_AUTO_CLIP)
"""The five papers' claims about their own tables; a claim is one pair of methods."""
