"""The five papers' printed numbers, the experiments behind them, and our results."""

from dpjax.papers.greedy_thresholds import GreedySearch, Thresholds, greedy_search
from dpjax.papers.outcome import Outcome, outcome_of
from dpjax.papers.plateaus import PlateauSearch, plateau_search
from dpjax.papers.prerequisites import Findings, TunedNoise
from dpjax.papers.printed_numbers import PAPERS, Cell, cell_named, cells, select, tables
from dpjax.papers.recipe import SEARCH_SEED, SEEDS, Recipe, SeededRun
from dpjax.papers.recipes import recipe_of
from dpjax.papers.running import run_all
from dpjax.papers.store import CurvePoint, RunRecord, Store

__all__ = [
    "PAPERS",
    "SEARCH_SEED",
    "SEEDS",
    "Cell",
    "CurvePoint",
    "Findings",
    "GreedySearch",
    "Outcome",
    "PlateauSearch",
    "Recipe",
    "RunRecord",
    "SeededRun",
    "Store",
    "Thresholds",
    "TunedNoise",
    "cell_named",
    "cells",
    "greedy_search",
    "outcome_of",
    "plateau_search",
    "recipe_of",
    "run_all",
    "select",
    "tables",
]
