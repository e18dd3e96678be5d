"""Every public function and record says what it takes, returns, refuses and costs."""

import inspect
import re

import pytest

import dpjax
import dpjax.data
import dpjax.models
import dpjax.nnx
import dpjax.papers
import dpjax.train
from dpjax import accounting, audit
from dpjax.accounting import gdp, pld, pld_compose, pld_step, rdp, tcdp
from dpjax.accounting.queries import Query
from dpjax.accounting.tuning import Tuning
from dpjax.audit import bounds
from dpjax.hooks import Hook
from dpjax.rules import Rule
from dpjax.thresholds import Threshold

ROOMS = (
    dpjax,
    dpjax.accounting,
    dpjax.accounting.tuning,
    dpjax.adaclip,
    dpjax.audit,
    dpjax.data,
    dpjax.gradients,
    dpjax.methods,
    dpjax.models,
    dpjax.momentum,
    dpjax.nnx,
    dpjax.noise,
    dpjax.papers,
    dpjax.rules,
    dpjax.sampling,
    dpjax.schedules,
    dpjax.testing,
    dpjax.thresholds,
    dpjax.train,
)

# Records that users are handed and never make: their attributes say what is in them.
HANDED = {
    "AdaClipState",
    "Archive",
    "BatchSums",
    "BudgetExceededError",
    "CachedStates",
    "Cell",
    "CheckpointError",
    "ClippedSum",
    "ContractViolation",
    "CurvePoint",
    "Drawn",
    "Event",
    "Explanation",
    "File",
    "Finding",
    "Findings",
    "FitState",
    "Fitted",
    "Folder",
    "Found",
    "GroupIndex",
    "Guarantee",
    "Halves",
    "InnerOuterState",
    "LostProcessError",
    "Network",
    "Outcome",
    "Packed",
    "Plan",
    "Planted",
    "Preempted",
    "Pretrained",
    "PrivatizeState",
    "Program",
    "Recipe",
    "Released",
    "Result",
    "Row",
    "Run",
    "RunRecord",
    "SeededRun",
    "Source",
    "Status",
    "StoredState",
    "ThresholdContext",
    "Thresholds",
    "Together",
    "TrainState",
    "TunedNoise",
}
# Bases and protocols, which a subclass makes concrete; and what trains a model when it is called.
WITHOUT_EXAMPLE = HANDED | {"Auditable", "RandomAccess", "Sampling", "ThresholdState"}
WITHOUT_EXAMPLE |= {"audit_training"}
# What trains a model, or reads one from the hub: the example is shown, but not run.
SHOWN = {"export", "from_pretrained", "greedy_search", "plateau_search", "pretrained_weights"}
SHOWN |= {"run_all", "train"}


def public() -> dict[str, object]:
    """Returns the functions and classes of the library, by the first name they are found under."""
    found: dict[str, object] = {}
    for module in ROOMS:
        for name in module.__all__:
            member = getattr(module, name)
            if (inspect.isclass(member) or inspect.isfunction(member)) and not any(
                member is other for other in found.values()
            ):
                found[f"{module.__name__}.{name}"] = member
    return found


PUBLIC = public()
everything = pytest.mark.parametrize("name", PUBLIC)

# The books of a run and of a plan, which the loop keeps; users read their files.
BOOKS = {"Plan", "Run", "RunFolder", "Store"}


def methods() -> dict[str, tuple[type, str]]:
    """Returns the public methods of the public classes, each with its class and name."""
    found = {}
    for name, member in PUBLIC.items():
        if inspect.isclass(member) and name.rpartition(".")[2] not in BOOKS:
            for own, value in vars(member).items():
                function = getattr(value, "__func__", value)  # of a class method
                ours = getattr(function, "__module__", "").startswith("dpjax")
                if inspect.isfunction(function) and ours and not own.startswith("_"):
                    found[f"{name}.{own}"] = (member, own)
    return found


METHODS = methods()


def text_of(member: object) -> str:
    return inspect.getdoc(member) or ""


def section(text: str, name: str) -> str:
    """Returns a section without its heading, "" if there is none."""
    found = re.search(rf"^{name}:(.*?)(?=^\S|\Z)", text, re.MULTILINE | re.DOTALL)
    return found[1] if found else ""


def reference(member: object) -> str:
    return text_of(member).partition("\nReference:")[2]


def arguments(member: object) -> list[str]:
    if inspect.isclass(member) and issubclass(member, Exception | float):
        return []
    if getattr(member, "_is_protocol", False):
        return []
    parameters = inspect.signature(member).parameters.values()
    hidden = ("args", "kwargs", "self", "cls")
    return [p.name for p in parameters if p.name not in hidden and not p.name.startswith("_")]


def documented(name: str, *sections: str) -> str:
    """Returns sections of a method's docstring, or of what it overrides where it has none."""
    cls, own = METHODS[name]
    texts = [
        text_of(vars(base)[own])
        for base in cls.__mro__
        if own in vars(base) and base.__module__.startswith("dpjax")
    ]
    return "".join(next(filter(None, (section(t, s) for t in texts)), "") for s in sections)


def test_the_walk_sees_the_whole_surface():
    """Else the tests below would pass on nothing."""
    assert len(PUBLIC) > 230
    assert {"dpjax.privatize", "dpjax.rules.abadi", "dpjax.methods.dp_sgd"} <= PUBLIC.keys()
    assert len(METHODS) > 120
    assert {"dpjax.Mechanism.sigma", "dpjax.sampling.Sampling.draw"} <= METHODS.keys()
    assert {"dpjax.data.load", "dpjax.models.build", "dpjax.train.train"} <= PUBLIC.keys()


@everything
def test_the_summary_is_one_sentence(name):
    summary = text_of(PUBLIC[name]).split("\n\n")[0]
    assert summary
    assert "\n" not in summary, summary
    assert summary.endswith("."), summary


@everything
def test_every_argument_is_described(name):
    member = PUBLIC[name]
    text = text_of(member)
    described = section(text, "Args") + section(text, "Attributes")
    for argument in arguments(member):
        assert re.search(rf"^ +\**{argument}: \S", described, re.MULTILINE), argument


def says_what_it_returns(function: object, text: str, returned: str) -> bool:
    if inspect.signature(function).return_annotation in (None, "None"):
        return True
    return bool(returned) or text.startswith(("Returns ", "Says "))


def refuses(function: object) -> bool:
    source = inspect.getsource(function)
    return bool(re.search(r"^ +raise (?!NotImplementedError)", source, re.MULTILINE))


@pytest.mark.parametrize("name", PUBLIC)
def test_what_is_returned_and_refused_is_said(name):
    member = PUBLIC[name]
    if not inspect.isfunction(member):
        return
    text = text_of(member)
    assert says_what_it_returns(member, text, section(text, "Returns")), "Returns"
    if refuses(member):
        assert section(text, "Raises"), "Raises"


@pytest.mark.parametrize("name", METHODS)
def test_methods_say_what_they_take_return_and_refuse(name):
    cls, own = METHODS[name]
    function = getattr(vars(cls)[own], "__func__", vars(cls)[own])
    described = documented(name, "Args")
    for argument in arguments(function):
        assert re.search(rf"^ +\**{argument}: \S", described, re.MULTILINE), argument
    text = text_of(function)
    assert text
    assert says_what_it_returns(function, text, documented(name, "Returns")), "Returns"
    if refuses(function):
        assert documented(name, "Raises"), "Raises"


@everything
def test_there_is_an_example_that_runs(name):
    own = name.rpartition(".")[2]
    if own not in WITHOUT_EXAMPLE:
        example = section(text_of(PUBLIC[name]), "Example")
        assert ">>>" in example
        assert ("+SKIP" in example) == (own in SHOWN)


FAMILIES = (Rule, Threshold, Tuning, Query, Hook, dpjax.sampling.Sampling)


def mechanisms() -> dict[str, object]:
    """Returns what runs on private data: all methods, and the members of each family."""
    found = {name: member for name, member in PUBLIC.items() if name.startswith("dpjax.methods.")}
    for name, member in PUBLIC.items():
        if inspect.isclass(member) and issubclass(member, FAMILIES) and member not in FAMILIES:
            found[name] = member
    for name in ("Mechanism", "PerExampleGrads", "clipped_sum", "fit", "privatize"):
        found[f"dpjax.{name}"] = getattr(dpjax, name)
    return found


@pytest.mark.parametrize("name", mechanisms())
def test_mechanisms_say_what_they_protect(name):
    assert section(text_of(mechanisms()[name]), "Privacy")


PUBLISHED = ("dpjax.rules", "dpjax.thresholds", "dpjax.methods", "dpjax.momentum", "dpjax.adaclip")
PUBLISHED += ("dpjax.accounting.tuning",)


@pytest.mark.parametrize("name", mechanisms())
def test_what_was_published_links_its_paper(name):
    if name.rpartition(".")[0] in PUBLISHED:
        assert "https://" in reference(mechanisms()[name])


BOUNDS = (
    *(accounting.epsilon, accounting.delta, accounting.calibrate, accounting.published_together),
    *(pld.pld_bracket, pld_step.release_pmfs, pld_compose.composed),
    *(rdp.rdp, rdp.rdp_epsilon, rdp.rdp_poisson, rdp.rdp_fixed_size, rdp.truncation_mass),
    *(gdp.gdp_mu, tcdp.tcdp),
    *(audit.audit_step, audit.audit_release, audit.audit_training),
    *(audit.claimed_tradeoff, audit.measured_tradeoff),
    *(bounds.bound_of_draws, bounds.bound_of_one_run),
)


@pytest.mark.parametrize("bound", BOUNDS, ids=lambda bound: bound.__name__)
def test_what_bounds_a_loss_links_its_paper(bound):
    assert "https://" in reference(bound)
