"""From a name in a config to a CLIP's architecture, transform, tokenizer and weights. Imports utils."""
