"""Trained methods as files that other programs run: ONNX, TorchScript, torch.export. Imports core and utils."""

from fedvlp.tools.export.classifier import ExportedClassifier
from fedvlp.tools.export.formats import FORMATS
from fedvlp.tools.export.write import Exported, export_method

__all__ = ["FORMATS", "Exported", "ExportedClassifier", "export_method"]
