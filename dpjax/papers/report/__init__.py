"""The report in Markdown, part by part."""

from dpjax.papers.report.page import report

__all__ = ["report"]
