"""Trained methods as files that other programs run: ONNX and torch.export. Imports core and utils."""

from fedvlp.tools.export.write import FORMATS, Exported, ExportedClassifier, export_method

__all__ = ["FORMATS", "Exported", "ExportedClassifier", "export_method"]
