"""Trained methods as files that other programs run: ONNX and torch.export. Imports commands, core, runs and utils."""

from fedvlp.tools.export.export import Exported, ExportedClassifier, export_method
from fedvlp.tools.export.graph import FORMATS

__all__ = ["FORMATS", "Exported", "ExportedClassifier", "export_method"]
