"""LoRA: the method in fed_lora.py, the towers that it adapts beside it. Imports clip, core, ops and utils."""
