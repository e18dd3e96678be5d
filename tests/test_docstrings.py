"""Every public function and record says what it takes, returns, refuses and costs."""

import inspect
import re

import pytest

import dpjax
import dpjax.data
import dpjax.models
import dpjax.nnx
import dpjax.train
from dpjax.accounting.queries import Query
from dpjax.accounting.tuning import Tuning
from dpjax.hooks import Hook
from dpjax.rules import Rule
from dpjax.thresholds import Threshold

CORE = (
    dpjax,
    dpjax.accounting,
    dpjax.accounting.tuning,
    dpjax.adaclip,
    dpjax.audit,
    dpjax.gradients,
    dpjax.methods,
    dpjax.momentum,
    dpjax.nnx,
    dpjax.noise,
    dpjax.rules,
    dpjax.sampling,
    dpjax.schedules,
    dpjax.testing,
    dpjax.thresholds,
)

# Records that users are handed and never make: their attributes say what is in them.
HANDED = {
    "AdaClipState",
    "BatchSums",
    "BudgetExceededError",
    "ClippedSum",
    "ContractViolation",
    "Drawn",
    "Event",
    "Explanation",
    "Finding",
    "FitState",
    "Fitted",
    "Found",
    "GroupIndex",
    "Guarantee",
    "InnerOuterState",
    "Packed",
    "Planted",
    "PrivatizeState",
    "Released",
    "Row",
    "StoredState",
    "ThresholdContext",
    "Together",
}
# Bases and protocols, which a subclass makes concrete; and what trains a model when it is called.
WITHOUT_EXAMPLE = HANDED | {"Auditable", "Sampling", "ThresholdState", "audit_training"}


def public() -> dict[str, object]:
    """Returns the functions and classes of the core, by the first name they are found under."""
    found: dict[str, object] = {}
    for module in CORE:
        for name in module.__all__:
            member = getattr(module, name)
            if (inspect.isclass(member) or inspect.isfunction(member)) and not any(
                member is other for other in found.values()
            ):
                found[f"{module.__name__}.{name}"] = member
    return found


PUBLIC = public()
everything = pytest.mark.parametrize("name", PUBLIC)


def text_of(member: object) -> str:
    return inspect.getdoc(member) or ""


def section(text: str, name: str) -> str:
    """Returns a section without its heading, "" if there is none."""
    found = re.search(rf"^{name}:(.*?)(?=^\S|\Z)", text, re.MULTILINE | re.DOTALL)
    return found[1] if found else ""


def arguments(member: object) -> list[str]:
    if inspect.isclass(member) and issubclass(member, Exception | float):
        return []
    if getattr(member, "_is_protocol", False):
        return []
    parameters = inspect.signature(member).parameters.values()
    return [p.name for p in parameters if p.name not in ("args", "kwargs")]


def test_the_walk_sees_the_whole_surface():
    """Else the tests below would pass on nothing."""
    assert len(PUBLIC) > 120
    assert {"dpjax.privatize", "dpjax.rules.abadi", "dpjax.methods.dp_sgd"} <= PUBLIC.keys()


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


@everything
def test_what_is_returned_and_refused_is_said(name):
    member = PUBLIC[name]
    if not inspect.isfunction(member):
        return
    text = text_of(member)
    returned = inspect.signature(member).return_annotation
    if returned not in (None, "None"):
        assert section(text, "Returns") or text.startswith(("Returns ", "Says ")), "Returns"
    if re.search(r"^ +raise ", inspect.getsource(member), re.MULTILINE):
        assert section(text, "Raises"), "Raises"


@everything
def test_there_is_an_example_that_runs(name):
    if name.rpartition(".")[2] not in WITHOUT_EXAMPLE:
        assert ">>>" in section(text_of(PUBLIC[name]), "Example")


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
        reference = text_of(mechanisms()[name]).partition("\nReference:")[2]
        assert "https://" in reference


@pytest.mark.parametrize("room", ["data", "models", "train"])
def test_the_other_rooms_are_documented(room):
    module = getattr(dpjax, room)
    for name in module.__all__:
        assert getattr(module, name).__doc__, name
