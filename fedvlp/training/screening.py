"""Which clients of a phase count: those that trained to the end and sent what can be combined."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fedvlp.core.phase_rules import too_few_uploads
from fedvlp.core.run_state import RoundMetrics
from fedvlp.core.state import Client
from fedvlp.core.update_check import NOT_FINITE, Start, TensorForm, UpdateCheck
from fedvlp.training.client_trainer import ClientResult, ClientSlot, PhaseOrder
from fedvlp.utils.errors import UserError
from fedvlp.utils.visible import visible

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
            metrics: the round's; ``clients/failed``, ``clients/rejected`` and ``clients/retried`` are added where there
                are any.

        Raises:
            UserError: if fewer clients are left than a phase or its rule needs, or none may be left out.
            Exception: what a client raised, if every client failed.
        """
        reasons: dict[int, str] = {}
        start = Start(order.state.server.shared)
        for result in results:
            if reason := self._reason(order, result, start):
                client = result.update.client
                reasons[client.id] = reason
                self._report(order, client, reason)
                column = "clients/failed" if result.failure else "clients/rejected"
                metrics[column] = metrics.get(column, 0) + 1
            elif result.retried:
                self._report_retry(order, result)
                metrics["clients/retried"] = metrics.get("clients/retried", 0) + 1
        is_allowed = not reasons or self.policy.on_client_failure != "fail"
        if not is_allowed or len(results) - len(reasons) < self.policy.min_clients:
            self._end(order, reasons, len(results))
        self._check_rules(order, [result.update.client for result in results if result.update.client.id not in reasons])
        return reasons

    def _reason(self, order: PhaseOrder, result: ClientResult, start: Start) -> str:
        """Returns why a client is left out; an empty string if it is not."""
        if result.failure:
            return result.failure
        refusal = self.check.refusal(result.update, self.expected[order.index], start)
        return refusal or ("" if result.is_finite else KEEPS_NOT_FINITE)

    def _report(self, order: PhaseOrder, client: Client, reason: str) -> None:
        line = f"round {order.round + 1}: client {_name(client)} is left out: it {visible(reason)}"
        self.slot.fabric.print(line, flush=True)
        self.slot.hooks.call("on_client_left_out", phase=order.phase, client=client, reason=reason)

    def _report_retry(self, order: PhaseOrder, result: ClientResult) -> None:
        client = result.update.client
        first = visible(result.retried)
        line = f"round {order.round + 1}: client {_name(client)} trained in a second try; in the first it {first}"
        self.slot.fabric.print(line, flush=True)
        self.slot.hooks.call("on_client_retried", phase=order.phase, client=client, reason=result.retried)

    def _check_rules(self, order: PhaseOrder, uploading: Sequence[Client]) -> None:
        """Says where a rule has too few uploads, and ends the run where they are those of the whole cohort."""
        lacking = too_few_uploads(order.phase.strategy, self.slot.data.clients, len(order.seeds), uploading)
        where = f"Round {order.round + 1}, phase {order.phase.name!r}"
        for group, text in lacking.items():
            if not group:
                raise UserError(
                    f"{where}: {text}. Nothing of this round counts; the last checkpoint is from before it. Let more "
                    "clients take part, or take another trainer.aggregation."
                )
            self.slot.fabric.print(f"{where}, {group}: {text}, so its tensors stay as they are.", flush=True)

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


def _name(client: Client) -> str:
    return repr(client.name or str(client.id))
