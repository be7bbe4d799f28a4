"""Accuracy with frozen towers in float32 and in bfloat16."""
