"""Converts the Markdown of reports to static HTML; supports only what they use."""

import html
import re
from collections.abc import Iterator, Sequence

__all__ = ["html_page"]

_PAGE = """\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
:root {{ color-scheme: light dark; }}
body {{ font: 16px/1.5 system-ui, sans-serif; margin: 0 auto; max-width: 72rem; padding: 1rem; }}
table {{ border-collapse: collapse; display: block; overflow-x: auto; font-size: 0.85rem; }}
th, td {{ border-bottom: 1px solid #8886; padding: 0.25rem 0.6rem; text-align: left; }}
th {{ position: sticky; top: 0; background: Canvas; }}
td {{ font-variant-numeric: tabular-nums; vertical-align: top; }}
img {{ max-width: 100%; background: white; }}
pre {{ background: #8882; padding: 0.6rem; overflow-x: auto; }}
code {{ background: #8882; padding: 0 0.2rem; }}
pre code {{ background: none; padding: 0; }}
nav a {{ margin-right: 1rem; }}
</style>
</head>
<body>
<nav>{nav}</nav>
{body}
</body>
</html>
"""


def html_page(text: str, links: Sequence[tuple[str, str]] = ()) -> str:
    """Returns a page of HTML from Markdown.

    It supports headings, paragraphs, bulleted and numbered lists, tables, indented code, links,
    images, bold, italics, code and line breaks; everything else is text.

    Args:
        text: the Markdown.
        links: titles and addresses for the top of the page.

    Example:
        >>> page = html_page("# A title\\n\\nSome **bold** words.")
        >>> "<h1>A title</h1>\\n<p>Some <strong>bold</strong> words.</p>" in page
        True
    """
    title = next((line[2:] for line in text.splitlines() if line.startswith("# ")), "")
    nav = "".join(f'<a href="{html.escape(to)}">{html.escape(name)}</a>' for name, to in links)
    body = "\n".join(_block(block) for block in _blocks(text))
    return _PAGE.format(title=html.escape(title), nav=nav, body=body)


def _blocks(text: str) -> Iterator[list[str]]:
    own: list[str] = []
    for line in [*text.splitlines(), ""]:
        if line.strip():
            own.append(line)
        elif own:
            yield own
            own = []


def _block(lines: Sequence[str]) -> str:
    first = lines[0]
    if match := re.match(r"(#{1,6}) (.*)", first):
        level = len(match[1])
        return f"<h{level}>{_inline(match[2])}</h{level}>"
    if first.startswith("|") and len(lines) > 1:
        return _table(lines)
    if first.startswith("    "):
        code = "\n".join(line[4:] for line in lines)
        return f"<pre><code>{html.escape(code)}</code></pre>"
    if match := re.match(r"(- )|1\. ", first):
        mark, kind = ("- ", "ul") if match[1] else (r"\d+\. ", "ol")
        items = re.split(rf"(?:^|\n){mark}", "\n".join(lines))[1:]
        listed = "".join(f"<li>{_inline(' '.join(item.split()))}</li>" for item in items)
        return f"<{kind}>{listed}</{kind}>"
    return f"<p>{_inline(' '.join(lines))}</p>"


def _table(lines: Sequence[str]) -> str:
    rows = [[cell.strip() for cell in line.strip().strip("|").split("|")] for line in lines]
    header = "".join(f"<th>{_inline(cell)}</th>" for cell in rows[0])
    body = "\n".join(
        "<tr>" + "".join(f"<td>{_inline(cell)}</td>" for cell in row) + "</tr>" for row in rows[2:]
    )
    return f"<table>\n<thead><tr>{header}</tr></thead>\n<tbody>\n{body}\n</tbody>\n</table>"


def _inline(text: str) -> str:
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(
        f"<code>{html.escape(part[1:-1])}</code>" if part.startswith("`") else _words(part)
        for part in parts
    )


def _words(text: str) -> str:
    text = html.escape(text, quote=False).replace("&lt;br&gt;", "<br>")
    text = re.sub(r"!\[([^\]]*)\]\(([^)\s]+)\)", r'<img alt="\1" src="\2">', text)
    text = re.sub(r"\[([^\]]+)\]\(([^)\s]+)\)", _link, text)
    text = re.sub(r"\*\*(.+?)\*\*", r"<strong>\1</strong>", text)
    return re.sub(r"(?<![\w*])\*([^*\s][^*]*?)\*(?![\w*])", r"<em>\1</em>", text)


def _link(match: re.Match[str]) -> str:
    address = re.sub(r"\.md$", ".html", match[2])
    return f'<a href="{address}">{match[1]}</a>'
