"""Trained methods as files that other programs run: ONNX and torch.export. Imports commands, core, runs and utils."""
