"""Federated prompt learning of vision-language models: one frozen CLIP, one federation loop, one file per method.

Glossary:
    * client, server: a client trains on its own data; the server combines the clients' updates
    * round, phase: a round is a list of phases; in each, clients train and upload, and the server aggregates
    * cohort: the clients sampled for a round
    * shared, personal: tensors that clients download, and tensors that stay on the client
    * deployed: the evaluated tensors, which are the shared tensors or their average over rounds
    * source, held-out: domains of the clients, and domains on which no client trains
    * prompt, expert: learned vectors in front of a class name, and one of several prompts that are mixed

Axes of tensors, in docstrings, shape annotations and einsums:
    * B images of a batch, P tokens of an image, E experts, L prompt length, C classes, K clients
    * D text width, W image-token width, d width of the joint features
    * V height and width of an image, so that images are [B, 3, V, V]
"""

import lazy_loader

# The stub lists the public names. They are imported on first use, so `import fedvlp` does not wait for torch.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
