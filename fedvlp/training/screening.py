"""Which clients of a phase count: those that trained to the end and sent what can be combined."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fedvlp.core.phase_rules import too_few_uploads
from fedvlp.core.run_state import RoundMetrics
from fedvlp.core.state import Client, ServerState, is_finite
from fedvlp.core.strategies.rules import shows_not_finite
from fedvlp.core.update_check import NOT_FINITE, Start, TensorForm, UpdateCheck
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

        Where what is combined shows whether all numbers were finite, they are left to ``left_out_by_outcome``.

        Args:
            order: the phase.
            results: of the whole cohort.
            metrics: the round's; ``clients/failed``, ``clients/rejected`` and ``clients/retried`` are added where there
                are any.

        Raises:
            UserError: if fewer clients are left than a phase or its rule needs, or none may be left out.
            Exception: what a client raised, if every client failed.
        """
        for result in results:
            if result.retried and not result.failure:
                self._report_retry(order, result)
                metrics["clients/retried"] = metrics.get("clients/retried", 0) + 1
        start = Start(order.state.server.shared)
        waits = self._waits_for_outcome(order)
        reasons: dict[int, str] = {}
        for result in results:
            # A large upload was looked at when it came, and its numbers are gone.
            reason = self.refusal(order, start, result, waits) if result.refusal is None else result.refusal
            if reason:
                reasons[result.update.client.id] = reason
        self._leave_out(order, results, reasons, metrics, known={})
        return reasons

    def refusal(self, order: PhaseOrder, start: Start, result: ClientResult, waits: bool = False) -> str:
        """Returns why a client is left out by what it sent and keeps; empty if it is not.

        Args:
            order: the phase.
            start: what clients went on from.
            result: of the client.
            waits: whether its numbers are left to ``left_out_by_outcome``.
        """
        reason = result.failure or self.check.wrong_form(result.update, self.expected[order.index])
        if not reason and not result.is_finite:
            reason = KEEPS_NOT_FINITE
        if not reason and not waits:
            reason = self.check.wrong_numbers(result.update, start)
        return reason

    def left_out_by_outcome(
        self,
        order: PhaseOrder,
        results: Sequence[ClientResult],
        left_out: Mapping[int, str],
        server: ServerState,
        metrics: RoundMetrics,
    ) -> dict[int, str]:
        """Returns why more clients are left out, now that uploads have been combined; all else is as in ``left_out``.

        One look at a mean tells that all uploads were finite. Only if they were not is each looked at.

        Args:
            order: the phase.
            results: of the whole cohort.
            left_out: whose updates were not combined, with the reasons.
            server: what was made of the others.
            metrics: the round's, to which is added.
        """
        if not self._waits_for_outcome(order) or is_finite(server.shared):
            return {}
        start = Start(order.state.server.shared)
        known: dict[int, str] = {}
        found: dict[int, str] = {}
        for result in results:
            id = result.update.client.id
            if id in left_out:
                known[id] = left_out[id]
            elif reason := self.check.wrong_numbers(result.update, start):
                found[id] = reason
        self._leave_out(order, results, found, metrics, known)
        return found

    def _waits_for_outcome(self, order: PhaseOrder) -> bool:
        """Whether numbers are only looked at where the outcome is not finite; they must be there then."""
        if order.adding is not None:
            return False
        return self.check.max_norm is None and shows_not_finite(order.phase.strategy)

    def _leave_out(
        self,
        order: PhaseOrder,
        results: Sequence[ClientResult],
        found: Mapping[int, str],
        metrics: RoundMetrics,
        known: Mapping[int, str],
    ) -> None:
        """Says and counts who was found now, and ends the run where with those known before too few are left."""
        for result in results:
            client = result.update.client
            if client.id in found:
                self._report(order, client, found[client.id])
                column = "clients/failed" if result.failure else "clients/rejected"
                metrics[column] = metrics.get(column, 0) + 1
        reasons = {**known, **found}
        is_allowed = not reasons or self.policy.on_client_failure != "fail"
        if not is_allowed or len(results) - len(reasons) < self.policy.min_clients:
            self._end(order, reasons, len(results))
        self._check_rules(order, [result.update.client for result in results if result.update.client.id not in reasons])

    def _report(self, order: PhaseOrder, client: Client, reason: str) -> None:
        line = f"round {order.round + 1}: client {_name(client)} is left out: it {reason}"
        self.slot.fabric.print(line, flush=True)
        self.slot.hooks.call("on_client_left_out", phase=order.phase, client=client, reason=reason)

    def _report_retry(self, order: PhaseOrder, result: ClientResult) -> None:
        client = result.update.client
        line = (
            f"round {order.round + 1}: client {_name(client)} trained in a second try; in the first it {result.retried}"
        )
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
                    "clients take part, or take another trainer.server.aggregation."
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
