"""The report in Markdown and HTML, part by part."""

from dpjax.papers.report.page import FRONT, NOT_RUN, report

__all__ = ["FRONT", "NOT_RUN", "report"]
