"""Which clients of a phase count: those that trained to the end and sent what can be combined."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fedvlp.core.run_state import RoundMetrics
from fedvlp.core.state import Client
from fedvlp.core.update_check import NOT_FINITE, TensorForm, UpdateCheck
from fedvlp.training.client_trainer import ClientResult, ClientSlot, PhaseOrder
from fedvlp.utils.errors import UserError

KEEPS_NOT_FINITE = "keeps NaN or infinity"


class Screening:
    """Leaves out clients that failed or whose updates must not count, and ends the run where too few are left.

    Args:
        slot: the resident module, which knows what is sent, and what went wrong on this process's clients.
    """

    def __init__(self, slot: ClientSlot) -> None:
        self.slot = slot
        self.policy = slot.failures.policy
        self.check = UpdateCheck(self.policy.max_update_norm)
        self.expected: dict[int, Mapping[str, TensorForm]] = {}  # by the phase's place in the round

    def prepare(self, order: PhaseOrder, client: Client) -> None:
        """Notes which tensors a phase sends, before any client is trained in it."""
        self.slot.failures.errors.clear()
        if order.index not in self.expected:
            self.expected[order.index] = self.slot.upload_forms(order, client)

    def left_out(self, order: PhaseOrder, results: Sequence[ClientResult], metrics: RoundMetrics) -> dict[int, str]:
        """Returns why clients are left out, by the client's id; says it, and counts them in the metrics.

        Args:
            order: the phase.
            results: of the whole cohort.
            metrics: the round's; ``clients/failed`` and ``clients/rejected`` are added where there are any.

        Raises:
            UserError: if fewer clients are left than a phase needs, or none may be left out.
            Exception: what a client raised, if every client failed.
        """
        reasons: dict[int, str] = {}
        for result in results:
            if reason := self._reason(order, result):
                client = result.update.client
                reasons[client.id] = reason
                self._report(order, client, reason)
                column = "clients/failed" if result.failure else "clients/rejected"
                metrics[column] = metrics.get(column, 0) + 1
        is_allowed = not reasons or self.policy.on_client_failure != "fail"
        if not is_allowed or len(results) - len(reasons) < self.policy.min_clients:
            self._end(order, reasons, len(results))
        return reasons

    def _reason(self, order: PhaseOrder, result: ClientResult) -> str:
        """Returns why a client is left out; an empty string if it is not."""
        if result.failure:
            return result.failure
        refusal = self.check.refusal(result.update, self.expected[order.index], order.state.server.shared)
        return refusal or ("" if result.is_finite else KEEPS_NOT_FINITE)

    def _report(self, order: PhaseOrder, client: Client, reason: str) -> None:
        name = client.name or str(client.id)
        self.slot.fabric.print(f"round {order.round + 1}: client {name!r} is left out: it {reason}", flush=True)
        self.slot.hooks.call("on_client_left_out", phase=order.phase, client=client, reason=reason)

    def _end(self, order: PhaseOrder, reasons: Mapping[int, str], cohort: int) -> None:
        """Ends the run."""
        errors = self.slot.failures.errors
        if errors and len(reasons) == cohort:
            # Nobody can train, which is a mistake of the method or of the data and shown as it is.
            raise errors[min(errors)]
        where = f"Round {order.round + 1}, phase {order.phase.name!r}"
        after = "Nothing of this round counts; the last checkpoint is from before it."
        if set(reasons.values()) <= {NOT_FINITE, KEEPS_NOT_FINITE}:
            raise UserError(
                f"{where}: NaN or infinity on {len(reasons)} of {cohort} clients, so training diverged. Lower the "
                f"learning rate or use precision 32-true. {after}"
            )
        first = next(iter(reasons.values()))
        raise UserError(
            f"{where}: {cohort - len(reasons)} of {cohort} clients could be used, and {self.policy.min_clients} are "
            f"needed. The first that was left out {first}. {after}"
        )
