"""ELCFS: clients share amplitude spectra of images, and train to generalise from their own to the others' spectra.

Paper: Liu et al., "FedDG: Federated Domain Generalization on Medical Image Segmentation via Episodic Learning in
Continuous Frequency Space", CVPR 2021; for classification, as in the tables of TRIP and PLAN.

Symbols: x image; A, P amplitude and phase of its Fourier transform F(x), per channel; M the lowest frequencies; A_n
amplitudes of other clients' images, the bank -> ``statistics.clients``; lambda in [0, 1]; theta trained parameters;
beta -> ``inner_rate``.
    A' = M ((1 - lambda) A + lambda A_n) + (1 - M) A; x' = F^-1(A', P)   Eq. 3 and 4; :meth:`ELCFS.transformed`
    theta' = theta - beta grad CE(x; theta)                              Eq. 5; :meth:`ELCFS.losses`
    CE(x; theta) + CE(x'; theta')                                        Eq. 6 and 9; :meth:`ELCFS.losses`

Deviations:
    * Task: The paper segments; fedvlp classifies by cross-entropy, without the paper's term for ambiguous boundaries.
    * Bank: The paper shares all frequencies of all images; fedvlp shares only the frequencies that are mixed, of
      ``spectra`` images, collected in a client's first round (:class:`.ClientStatistics`). With an empty bank a client
      takes both steps on its own images.
    * Draws: The released code draws a client first, takes lambda = 1, and mixes only the mean of each channel. In
      fedvlp, an image of the bank is drawn and, as in the paper, lambda for each image and step.
    * Gradient: Like the released code, fedvlp uses first-order MAML: theta' has derivative 1 with respect to theta.
    * Clipping: The released code clips the inner gradient to [-100, 100] and pixels to [0, 255]; fedvlp clips neither.
"""

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Complex, Float, Int
from torch import Tensor
from torch.func import functional_call

from fedvlp.clip import CLIP, CLIPSpec
from fedvlp.core.phases import RoundContext
from fedvlp.core.protocols import Inputs
from fedvlp.methods.client_statistics import ClientStatistics
from fedvlp.methods.image_tower import ImageTowerLearner
from fedvlp.utils.errors import UserError
from fedvlp.utils.ranges import Names, NonNegativeFloat, NonNegativeInt, PositiveInt


class ELCFS(ImageTowerLearner):
    """CLIP's image tower, trained to generalise from a client's images to other clients' amplitude spectra.

    Args:
        spectra: Number of images per client with shared amplitudes.
        frequency: Highest of the low frequencies M, in periods per image width or height; 0 is the mean.
        inner_rate: Rate beta of the inner step, at least 0.
        options: Head, rates and optimizer, as in :class:`.ImageTowerLearner`.
    """

    statistics: ClientStatistics
    pixel_mean: Tensor  # [3, 1, 1]
    pixel_std: Tensor  # [3, 1, 1]

    def __init__(
        self,
        class_names: Names,
        num_clients: PositiveInt,
        clip: CLIPSpec | CLIP | str = "ViT-B-16",
        *,
        spectra: PositiveInt = 32,
        frequency: NonNegativeInt = 2,
        inner_rate: NonNegativeFloat = 1e-3,
        **options: Any,
    ) -> None:
        super().__init__(class_names, clip, **options)
        if 2 * frequency >= self.clip.image_size:
            raise UserError(
                f"Images of {self.clip.image_size} pixels have no frequency {frequency}. Choose a lower one."
            )
        self.frequency = frequency
        self.inner_rate = inner_rate
        # Amplitudes of other clients' images, and the number of images collected by this client.
        self.bank = torch.empty(0)
        self.num_seen = 0
        # Amplitudes do not depend on trained parameters, so each client collects them once.
        self.share_statistics(num_clients, (spectra, 3, 2 * frequency + 1, frequency + 1), renewed=False)
        for name in ("mean", "std"):
            values = torch.tensor(getattr(self.clip.preprocess_options, name))[:, None, None]
            self.register_buffer(f"pixel_{name}", values, persistent=False)

    def start_client(self, context: RoundContext) -> None:
        """Prepare for a client's phase: select the amplitudes once, so that no step waits for a GPU."""
        super().start_client(context)
        bank = self.statistics.clients[self.statistics.others].flatten(0, 1)
        self.bank = bank[bank.flatten(1).any(1)]  # rows are zero if a client has fewer images than ``spectra``
        self.num_seen = int(self.statistics.images_seen)

    def low_frequencies(self, spectrum: Complex[Tensor, "B 3 V half"]) -> Complex[Tensor, "B 3 rows columns"]:
        """Select the low frequencies of a real image's spectrum, without the conjugate half."""
        return spectrum[:, :, self._rows(spectrum), : self.frequency + 1]

    def spectrum(self, images: Float[Tensor, "B 3 V V"]) -> Complex[Tensor, "B 3 V half"]:
        """Compute F(x) of the pixels in [0, 1]."""
        # An amplitude has no sign. Means in [0, 1] equal their amplitudes; means of normalised pixels can be negative.
        return torch.fft.rfft2(images.float() * self.pixel_std + self.pixel_mean)

    def transformed(
        self, images: Float[Tensor, "B 3 V V"], amplitudes: Float[Tensor, "B 3 rows columns"], share: Float[Tensor, "B"]
    ) -> Float[Tensor, "B 3 V V"]:
        """Compute x': mix a share lambda of other images' amplitudes into the low frequencies."""
        spectrum = self.spectrum(images)
        low = self.low_frequencies(spectrum)
        mixed = torch.lerp(low.abs(), amplitudes, share[:, None, None, None])
        # Keep the image's own phases, which carry its spatial structure.
        spectrum[:, :, self._rows(spectrum), : self.frequency + 1] = torch.polar(mixed, low.angle())
        pixels: Tensor = torch.fft.irfft2(spectrum, s=images.shape[2:])
        return (pixels - self.pixel_mean) / self.pixel_std

    def mix_amplitudes(self, images: Float[Tensor, "B 3 V V"]) -> Float[Tensor, "B 3 V V"]:
        """Compute x' with amplitudes and shares drawn per image; return unchanged images while the bank is empty."""
        if not len(self.bank):
            return images
        chosen = torch.randint(len(self.bank), (len(images),)).to(images.device, non_blocking=True)
        share = torch.rand(len(images)).to(images.device, non_blocking=True)
        return self.transformed(images, self.bank[chosen], share)

    def collect(self, images: Float[Tensor, "B 3 V V"]) -> None:
        """Store the amplitudes of the client's first images."""
        free = self.statistics.own[self.num_seen :][: len(images)]
        if not len(free):
            return
        free.copy_(self.low_frequencies(self.spectrum(images[: len(free)])).abs())
        self.num_seen += len(free)
        self.statistics.images_seen.fill_(self.num_seen)

    def losses(self, inputs: Inputs, labels: Int[Tensor, "B"]) -> dict[str, Tensor]:
        """Compute the batch's cross-entropy, plus its transformed images' cross-entropy after a step on the batch."""
        images = self.precomputed(inputs)["images"]
        self.collect(images)
        inner = F.cross_entropy(self(images), labels)
        trained = self.trainable_by_name()
        gradients = torch.autograd.grad(inner, list(trained.values())) if trained else ()
        stepped: dict[str, Tensor] = {}
        # This term has the inner loss's gradient, so a second backward pass is not needed.
        linear = inner.new_zeros(())
        for (name, value), gradient in zip(trained.items(), gradients, strict=True):
            stepped[name] = value - self.inner_rate * gradient
            linear = linear + (value * gradient).sum()
        outer = F.cross_entropy(functional_call(self, stepped, (self.mix_amplitudes(images),)), labels)
        return {"inner": inner, "outer": outer, "loss": inner.detach() + outer + (linear - linear.detach())}

    def _rows(self, spectrum: Tensor) -> Tensor:
        return torch.arange(-self.frequency, self.frequency + 1, device=spectrum.device) % spectrum.shape[2]
