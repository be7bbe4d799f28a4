"""Published data sets from the Hugging Face hub, written out as folders. Imports the catalog and what reads folders."""

from __future__ import annotations

from fedvlp.data.benchmarks.download.downloader import download, obtain, source_of
from fedvlp.data.benchmarks.download.source_file import read_source

__all__ = ["download", "obtain", "read_source", "source_of"]
