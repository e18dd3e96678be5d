"""`dpjax report`: one page that says what the folders of runs say, and loads nothing."""

import base64
import re
from html.parser import HTMLParser

import pytest

from dpjax.accounting.bound import rounded_up
from dpjax.cli import html, report
from tests.cli.calls import printed, refused
from tests.cli.run_folders import png_size, write_run


class Page(HTMLParser):
    """Collects headings, addresses and text, and checks that tags are closed in order."""

    def __init__(self, text):
        super().__init__()
        self.headings, self.addresses, self.words, self.open = [], [], [], []
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.addresses += [value for name, value in attrs if name in ("src", "href")]
        if tag not in ("meta", "img", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and re.fullmatch(r"h\d", self.open[-1]):
            self.headings.append(data)
        self.words.append(data)


@pytest.fixture
def no_picture(monkeypatch):
    monkeypatch.setattr(report, "picture", lambda figure, alt: f"*{alt}*")


def test_the_page_of_a_run(capsys, tmp_path):
    folder = write_run(tmp_path / "run", budget=9.0)
    folder.write_statement("# Privacy statement: digits\n\nEverything <b>is</b> private.\n")
    assert printed(capsys, ["report", str(folder.path)]) == f"{folder.path}/report.html\n"
    text = (folder.path / "report.html").read_text()
    page, last = Page(text), folder.released()[-1]
    assert page.headings[1:4] == ["What was trained", "Accuracy", "Privacy"]
    assert {"Ledger", "Configuration"} <= set(page.headings)
    words = "".join(page.words)
    assert f"{last['accuracy']:.2%}" in words
    assert f"epsilon ≤ {rounded_up(last['epsilon'])}, at delta = 0.0001 (rdp)" in words
    assert "Everything <b>is</b> private." in words  # as words, not as HTML
    assert 'name = "dp_sgd"' in words
    assert '"noise_multiplier": 1.5' in words
    for address in page.addresses:  # all pictures are inside
        assert address.startswith("data:image/png;base64,")
    picture = tmp_path / "picture.png"
    picture.write_bytes(base64.b64decode(page.addresses[0].partition(",")[2]))
    assert min(png_size(picture)) > 100
    assert "http" not in text


def test_the_page_of_a_comparison(capsys, tmp_path, no_picture):
    for method in ("dp_sgd", "auto_s"):
        for seed, accuracy in enumerate((0.5, 0.6)):
            place = tmp_path / "both" / method / f"seed-{seed}"
            write_run(place, method, accuracies=(0.1, accuracy))
    printed(capsys, ["report", str(tmp_path / "both")])
    words = "".join(Page((tmp_path / "both" / "report.html").read_text()).words)
    assert words.count("55.00 ± 63.53%") == 2  # a row for each
    assert "2 methods: 55.00% (dp_sgd) to 55.00% (auto_s)" in words
    assert "50.00%, 60.00%" in words
    assert "all published ≤" in words


def test_a_run_without_guarantee_says_so(capsys, tmp_path, no_picture):
    folder = write_run(tmp_path / "run", "auto_dp_sgd", ledger=False)
    printed(capsys, ["report", str(folder.path)])
    words = "".join(Page((folder.path / "report.html").read_text()).words)
    assert "no guarantee" in words
    assert "differentially private" not in words


def test_refusals(capsys, tmp_path):
    (tmp_path / "empty").mkdir()
    empty = str(tmp_path / "empty")
    run = str(write_run(tmp_path / "run").path)
    assert "empty holds no run" in refused(capsys, ["report", empty])
    assert "--output: missing" in refused(capsys, ["report", run, empty])
    assert "ends in .html" in refused(capsys, ["report", run, "--output", "page.txt"])


def test_lists():
    page = html.html_page("1. one\n2. two\n   more\n\n- a\n- b")
    assert "<ol><li>one</li><li>two more</li></ol>\n<ul><li>a</li><li>b</li></ul>" in page
