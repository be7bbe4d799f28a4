"""Text classifiers: learned prompts, packed sequences, hand-written templates. Imports the backbone and its towers."""
