"""Trained methods as files that other programs run: ONNX, TorchScript, torch.export. Imports core and utils."""

from fedvlp.export.classifier import ExportedClassifier
from fedvlp.export.formats import FORMATS
from fedvlp.export.write import Exported, export_method

__all__ = ["FORMATS", "Exported", "ExportedClassifier", "export_method"]
