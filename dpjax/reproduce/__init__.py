"""The papers' tables as runs: every printed number has its experiment, and a place for ours."""

from dpjax.reproduce.book import recipe_of
from dpjax.reproduce.findings import Findings
from dpjax.reproduce.greedy import GreedySearch, Thresholds, greedy_search
from dpjax.reproduce.outcome import Outcome, outcome_of
from dpjax.reproduce.printed import PAPERS, Cell, cell_named, cells, select, tables
from dpjax.reproduce.recipe import SEARCH_SEED, SEEDS, Recipe, Run
from dpjax.reproduce.record import Point, Record
from dpjax.reproduce.running import run_all
from dpjax.reproduce.store import Store
from dpjax.reproduce.tuned import TunedNoise

__all__ = [
    "PAPERS",
    "SEARCH_SEED",
    "SEEDS",
    "Cell",
    "Findings",
    "GreedySearch",
    "Outcome",
    "Point",
    "Recipe",
    "Record",
    "Run",
    "Store",
    "Thresholds",
    "TunedNoise",
    "cell_named",
    "cells",
    "greedy_search",
    "outcome_of",
    "recipe_of",
    "run_all",
    "select",
    "tables",
]
