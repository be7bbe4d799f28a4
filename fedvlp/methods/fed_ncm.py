"""FedNCM: nearest class mean of all clients' CLIP features, in one round.

Paper: Legate et al., "Guiding The Last Layer in Federated Learning with Pre-Trained Models", NeurIPS 2023.

Symbols: x image feature, t_c text feature of class c, unit vectors; n_c images of class c; alpha -> ``text_weight``.
    m_c = 1 / n_c sum_{i: y_i = c} x_i                          :meth:`.ClosedForm.class_means`
    w_c = (m_c / |m_c| + alpha t_c) / |m_c / |m_c| + alpha t_c|  :meth:`FedNCM.classifier`
    p(c | x) = softmax_c(s <w_c, x>)                            :meth:`.ClosedForm.forward`

Deviations:
    * Text: The paper has no text features; fedvlp adds them with weight alpha, as in :mod:`.closed_form`.
    * Next stage: The paper fine-tunes the network from the class means; fedvlp stops after them. ``LinearProbe`` with
      ``start: class_means`` continues to train the classifier.
"""

import torch.nn.functional as F

from fedvlp.core.state import State
from fedvlp.methods.closed_form import ClosedForm


class FedNCM(ClosedForm):
    """Cosine classifier with the mean feature of each class, mixed with its text feature."""

    def classifier(self, moments: State) -> State:
        """Compute w_c, the sum of the class mean and the weighted text feature, scaled to length 1."""
        means = F.normalize(self.class_means(moments), dim=-1)
        return {"weight": F.normalize(means + self.text_weight * self.text_features.double().cpu(), dim=-1)}
