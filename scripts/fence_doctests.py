"""A Griffe extension for mkdocs.yml that turns doctests under any heading into code blocks.

Griffe recognises doctests only under "Examples:"; elsewhere, Markdown reads ``>>>`` as a quotation
and ``[1.0, 0.5]`` as a link.
"""

import re
from typing import Any

import griffe

_DOCTEST = re.compile(r"^( *)>>> .*(?:\n\1(?! *$).*)*", re.MULTILINE)


class FenceDoctests(griffe.Extension):
    """Fences the doctests of every docstring."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Rewrites the docstring of one module, class, function or attribute."""
        if obj.docstring is not None:
            obj.docstring.value = fenced(obj.docstring.value)


def fenced(text: str) -> str:
    """Returns a docstring with its doctests fenced."""
    return _DOCTEST.sub(lambda found: f"{found[1]}```pycon\n{found[0]}\n{found[1]}```", text)
