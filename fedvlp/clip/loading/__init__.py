"""What a name in a config stands for: a model, its transform, tokenizer and weights. Imports utils."""
