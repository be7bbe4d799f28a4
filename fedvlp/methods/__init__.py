"""The methods, one file or folder each. Importing this package imports all of them, so that configs can name them.

A method's docstring lists where it departs from its paper or from the released code. These points hold for all methods
and are not repeated, unless a docstring or a config says otherwise:

* Backbone: ViT-B/16; some papers have a ResNet-50, ViT-B/32 or ViT-L/14.
* Methods whose papers are not federated: clients train what is sent, and the server averages it. Rounds and batch size
  are PromptFL's, and an epoch of a learning-rate schedule is a round.
* Average: by the clients' training images; several released codes take the mean without weights.
* Optimizer: each client gets a new one in each round; several released codes carry one optimizer's momentum from client
  to client. What a paper does not state, such as momentum 0.9 and weight decay 5e-4, is from the released code or from
  Dassl, on which most released codes are built.
* Augmentation: none, so that image features are computed once; ``data.augmentation`` adds random crops and flips.
* Held-out domains: no client has them. Most papers test clients on their own domains. If a
  method has personal tensors, the shared part classifies, or all clients' models together do
  (``held_out_evaluation: mean``).
* Result: the last round's; several released codes keep the round that is best on validation or test images.

A buffer with ``persistent=False`` holds what every client can compute; it is neither sent nor saved.
"""

from importlib import import_module
from pkgutil import walk_packages

for _module in walk_packages(__path__, f"{__name__}."):
    import_module(_module.name)
