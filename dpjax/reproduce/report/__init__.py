"""The report in Markdown, part by part."""

from dpjax.reproduce.report.whole import report

__all__ = ["report"]
