"""Federated prompt learning of vision-language models: one frozen CLIP, one federation loop, one file a method.

Glossary:
    client, server      who trains on its own data, and who combines what the clients send
    round, phase        a round is a list of phases; in each, clients train and send, and the server combines
    cohort              the clients sampled for a round
    shared, personal    tensors that clients download, and tensors that stay on the client
    deployed            what is evaluated: the shared tensors, or an average of them over rounds
    source, held-out    domains that clients have, and domains that nobody trains on
    prompt, expert      learned vectors in front of a class name, and one of several prompts that are mixed

Axes of tensors, in docstrings, shape annotations and einsums:
    B images of a batch     P tokens of an image    E experts       L prompt length     C classes
    D text width            W image-token width     d width of the joint features       K clients
    V height and width of an image, so that images are [B, 3, V, V]
"""

import lazy_loader

# The stub lists the public names. A name is imported when it is first used, so `import fedvlp` does not wait for torch.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
