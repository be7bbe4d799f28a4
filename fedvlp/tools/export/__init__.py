"""Export of trained methods to ONNX and torch.export. Imports commands, core, methods, runs and utils."""
