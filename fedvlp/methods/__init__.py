"""The methods, one file or folder each. Importing this package imports all of them, so that configs can name them.

Each method's docstring maps the paper's symbols to names. Symbols that it does not define: S_k training images of
client k, f(x) feature of image x, w_c or t_c text feature of class c, tau CLIP's temperature, s = 1 / tau. The
docstring of ``fedvlp`` has the names of tensor axes.

Unless a docstring states otherwise, the loss is the cross-entropy, and the server averages all trained tensors except
the personal ones: theta <- sum_k |S_k| theta_k / sum_k |S_k| (:class:`.FedAvg`). For several labels l per image,
p(l | x) is the logistic function of the label's logit minus the negative class's (:func:`.label_logits`), and the loss
is the binary cross-entropy of the known labels.

Each docstring also lists deviations from the paper and from the released code. The following deviations apply to all
methods, unless a docstring or a config states otherwise:

* Backbone: Some papers use a ResNet-50, ViT-B/32 or ViT-L/14; fedvlp uses ViT-B/16.
* Centralised papers: Clients train such a method, and the server averages its trained tensors. Rounds and batch size
  are PromptFL's. An epoch of a learning-rate schedule becomes a round.
* Average: Several released codes average without weights; fedvlp weights by the clients' training images.
* Templates: Several released codes have one template for each data set; fedvlp uses "a photo of a {}." for all.
* Optimizer: Several released codes carry one optimizer's momentum from client to client; fedvlp creates a new optimizer
  per client and round. Values that a paper omits, such as momentum 0.9 and weight decay 5e-4, come from the released
  code or from Dassl, on which most released codes are built.
* Augmentation: None, so that image features are computed once; ``data.augmentation`` adds random crops and flips.
* Held-out domains: Most papers test clients on their own domains; fedvlp tests on domains that no client has. For a
  method with personal tensors, the shared part classifies, or the mean over all clients' models
  (``held_out_evaluation: mean``).
* Result: Several released codes report the best round on validation or test images; fedvlp reports the last round.

Buffers with ``persistent=False`` can be recomputed by every client, so they are neither sent nor saved.
"""

from importlib import import_module
from pkgutil import walk_packages

for _module in walk_packages(__path__, f"{__name__}."):
    import_module(_module.name)
