"""Fault attribution: which candidate is at fault when a job loses its device process.

The process reports what it works on (`workers.processes.heartbeat`). The rules:

- A candidate that hangs while it is worked on is at fault.
- A candidate whose process crashes is measured again without the others. A second crash is its own
  (`workers.processes.crash_retry`).
- A loss while all candidates are timed names none. Candidates of a screening are then measured one
  at a time with the incumbent. Candidates of a race or confirmation, whose times count only in one
  pass, are each tried alone; those that run are measured together again.

Each candidate ends with an outcome, and the others are measured although one of them is at fault.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from search_spaces.records import Status, config_key
from workers.job_records import Failure, MeasureJob, Measurement, Mode, Timing, WorkerInfo
from workers.processes.crash_retry import at_fault, crash_message, raise_if_killed
from workers.processes.supervised_child import ChildDied
from workers.processes.worker_lost import times

_log = logging.getLogger(__name__)
#: The source of a loss: ("candidate", its index), ("baseline", its name), or none of them.
_Source = tuple[str, int | str]
_TIMING: _Source = ("timing", "")
_JOB: _Source = ("job", "")
_CONTEXT_LOST = Failure(Status.RUNTIME, "the device's context was lost")


@dataclass(frozen=True, slots=True)
class Reply:
    """The answer of a device process to a job."""

    result: Measurement | Failure
    #: Whether the device's context is unusable afterwards.
    poisoned: bool = False
    #: The activity of the last heartbeat.
    activity: str = ""


@dataclass(frozen=True, slots=True)
class Loss:
    """A device process that was lost instead of answering."""

    failure: Failure
    #: The activity of the last heartbeat.
    activity: str
    #: How the process died; None if it was killed for its silence.
    death: ChildDied | None = None


Attempt = Callable[[MeasureJob], Reply | Loss]


class _JobFailed(Exception):
    def __init__(self, failure: Failure) -> None:
        self.failure = failure


class FaultAttribution:
    """One job, attempted until every candidate and baseline has an outcome.

    attempt: has a healthy process do a job. info: device and toolchain of a measurement in which no
    attempt succeeded.
    """

    def __init__(self, job: MeasureJob, attempt: Attempt, info: Callable[[], WorkerInfo]) -> None:
        self._job, self._attempt, self._info = job, attempt, info
        self._outcomes: dict[int, Timing | Failure] = {}
        self._baselines: dict[str, Timing | Failure] = {}
        #: Answers of attempts with several candidates, and of candidates that were tried alone.
        self._parts: list[Measurement] = []
        self._measured_alone: list[Measurement] = []
        #: How the processes of each source ended.
        self._exits: dict[_Source, list[str]] = {}
        #: Candidates that wait to be measured without the other candidates.
        self._separated: list[int] = []
        self._incumbent: int | None = None
        if job.mode is Mode.SCREENING and job.incumbent:
            self._incumbent = len(job.candidates) - 1
        #: Whether the incumbent ran alone, which clears it of losses in company.
        self._incumbent_cleared = False
        #: Whether all candidates of a race or confirmation have been tried alone.
        self._all_tried_alone = False

    def measure(self) -> Measurement | Failure:
        """Outcomes of all candidates in their order; a Failure if the job as a whole failed."""
        every = range(len(self._job.candidates))
        if not every:
            only = self._attempt(self._job)
            return only.result if isinstance(only, Reply) else only.failure
        try:
            self._measure_together([index for index in every if index != self._incumbent])
            while self._separated:
                self._measure_together([self._separated.pop(0)])
        except _JobFailed as failed:
            return failed.failure
        alone = self._outcomes.get(0) if len(every) == 1 and not self._parts else None
        return alone if isinstance(alone, Failure) else self._merge()

    # -- attempts ------------------------------------------------------------------------------
    def _measure_together(self, members: list[int]) -> None:
        """Measure members in one job, repeatedly without those found to be at fault."""
        while members:
            order = members if self._incumbent is None else [*members, self._incumbent]
            reply = self._attempt(self._job_of(order))
            if isinstance(reply, Reply) and isinstance(reply.result, Failure):
                reply = Loss(reply.result, reply.activity if reply.poisoned else "")
            if isinstance(reply, Loss):
                members = self._after_loss(reply, members, order)
            else:
                members = self._after_reply(reply, members, order)

    def _job_of(self, order: Sequence[int]) -> MeasureJob:
        whole = self._job
        return replace(
            whole,
            candidates=tuple(whole.candidates[index] for index in order),
            incumbent=whole.incumbent and order[-1] == len(whole.candidates) - 1,
            baselines=tuple(name for name in whole.baselines if name not in self._baselines),
            checks=whole.checks if order[0] == 0 else (),
        )

    def _try_alone(self, index: int) -> Failure | None:
        """The failure of a candidate without any other; None if it runs."""
        job = replace(self._job_of([index]), mode=Mode.SCREENING, incumbent=False, baselines=())
        while True:
            reply = self._attempt(job)
            if isinstance(reply, Loss):
                if failure := self._failure_after(("candidate", index), reply):
                    return failure
                continue
            if isinstance(reply.result, Failure):
                return reply.result
            self._measured_alone.append(reply.result)
            outcome = reply.result.outcomes[0]
            return outcome if isinstance(outcome, Failure) else None

    # -- after an answer -------------------------------------------------------------------------
    def _after_reply(self, reply: Reply, members: list[int], order: list[int]) -> list[int]:
        """Keep the outcomes; return the members to repeat because a lost context came first."""
        assert isinstance(reply.result, Measurement)
        outcomes = dict(zip(order, reply.result.outcomes, strict=True))
        again: list[int] = []
        if reply.poisoned:
            again = [index for index in members if self._unreached(outcomes[index])]
        if again and not self._separable:
            again = [index for index in members if isinstance(outcomes[index], Timing)]
        failed = [
            *(outcome for outcome in outcomes.values() if isinstance(outcome, Failure)),
            *(found for found in reply.result.baselines.values() if isinstance(found, Failure)),
        ]
        if again == members and not failed:
            return self._after_loss(Loss(_CONTEXT_LOST, reply.activity), members, order)
        self._parts.append(reply.result)
        for name, found in reply.result.baselines.items():
            if not again or isinstance(found, Failure):
                self._baselines[name] = found
        for index in members:
            if index not in again:
                self._outcomes[index] = outcomes[index]
        if self._incumbent is None:
            return again
        return self._after_incumbent_outcome(
            outcomes[self._incumbent], again, poisoned=reply.poisoned
        )

    def _after_incumbent_outcome(
        self, outcome: Timing | Failure, again: list[int], *, poisoned: bool
    ) -> list[int]:
        assert self._incumbent is not None
        if isinstance(outcome, Failure) and poisoned:
            return self._after_loss_at_incumbent(Loss(outcome, ""), again)
        before = self._outcomes.get(self._incumbent)
        if not (isinstance(before, Timing) and before.samples_us):
            self._outcomes[self._incumbent] = outcome
        if isinstance(outcome, Failure):
            self._incumbent = None
        return again

    def _unreached(self, outcome: Timing | Failure) -> bool:
        """Whether the candidate was not measured yet when the process answered."""
        if isinstance(outcome, Failure):
            return False
        return outcome.error < 0 if self._job.mode is Mode.VERIFY else not outcome.samples_us

    # -- after a loss ------------------------------------------------------------------------------
    def _after_loss(self, loss: Loss, members: list[int], order: list[int]) -> list[int]:
        """The members to repeat together; the others have an outcome or are separated."""
        source = self._source_of(loss.activity, members, order)
        kind, which = source
        if kind == "candidate" and which == self._incumbent:
            return self._after_loss_at_incumbent(loss, members)
        if kind == "candidate":
            return self._after_loss_at_member(int(which), loss, members)
        if kind == "timing" and not (loss.death and loss.death.exit_status == "SIGKILL"):
            return self._separate(loss.failure, members)
        failure = self._failure_after(source, loss)
        if failure is None:
            return members
        if kind == "timing":
            return self._separate(failure, members)
        if kind == "job":
            raise _JobFailed(failure)
        self._baselines[str(which)] = failure
        return members

    def _source_of(self, activity: str, members: list[int], order: list[int]) -> _Source:
        """The source of a loss, by what was worked on last."""
        kind, _, rest = activity.partition(" ")
        source = _JOB if not activity else _TIMING
        if kind == "candidate" and rest.isdecimal() and int(rest) < len(order):
            source = "candidate", order[int(rest)]
        elif kind == "check" and self._job.checks and order[0] == 0:
            source = "candidate", 0
        elif kind == "baseline":
            source = "baseline", rest
        began = bool(self._parts or self._outcomes)
        only = self._separable and len(members) == 1
        if only and (source == _TIMING or (source == _JOB and began)):
            return "candidate", members[0]  # the incumbent, the only other one, has run before
        return source

    def _failure_after(self, source: _Source, loss: Loss) -> Failure | None:
        """The failure of a source that is at fault; None if it is tried again."""
        if loss.death is None:
            return loss.failure
        exits = self._exits.setdefault(source, [])
        exits.append(loss.death.exit_status)
        if not at_fault(exits):
            activity = loss.activity or "before its first candidate"
            _log.info("%s: retried after %s (%s)", self._job.job_id, loss.death, activity)
            return None
        raise_if_killed(exits, "the device")
        cause = f"crashed the device process ({loss.death.exit_status}) {times(len(exits))}"
        return replace(loss.failure, message=crash_message(cause, loss.death))

    def _after_loss_at_member(self, index: int, loss: Loss, members: list[int]) -> list[int]:
        others = [member for member in members if member != index]
        failure = self._failure_after(("candidate", index), loss)
        if failure is None and others and not self._separable:
            failure = self._try_alone(index)
        if failure is not None:
            self._outcomes[index] = failure.of(self._job.candidates[index])
            return others
        if others and self._separable:
            self._separated.append(index)
            return others
        return members

    def _after_loss_at_incumbent(self, loss: Loss, members: list[int]) -> list[int]:
        """The incumbent is at fault only for what it does alone: a candidate may have broken the
        process before."""
        assert self._incumbent is not None
        if self._incumbent_cleared and len(members) == 1:
            return self._after_loss_at_member(members[0], loss, members)
        failure = self._failure_after(("candidate", self._incumbent), loss)
        if failure is None and loss.death is not None and loss.death.exit_status == "SIGKILL":
            return members
        return self._separate(loss.failure, members)

    def _separate(self, failure: Failure, members: list[int]) -> list[int]:
        """The members to repeat together after a loss without a source."""
        if self._separable:
            return self._one_at_a_time(members)
        if not self._all_tried_alone:
            self._all_tried_alone = True
            for index in members:
                if found := self._try_alone(index):
                    self._outcomes[index] = found.of(self._job.candidates[index])
            return [index for index in members if index not in self._outcomes]
        left = [name for name in self._job.baselines if name not in self._baselines]
        if not left:
            raise _JobFailed(failure)
        self._baselines.update(dict.fromkeys(left, failure))
        return members

    def _one_at_a_time(self, members: list[int]) -> list[int]:
        if self._incumbent is not None and not self._incumbent_cleared:
            if failure := self._try_alone(self._incumbent):
                self._outcomes[self._incumbent] = failure.of(self._job.candidates[self._incumbent])
                self._incumbent = None
                return members
            self._incumbent_cleared = True
        self._separated += members
        return []

    # -- outcomes ----------------------------------------------------------------------------------
    @property
    def _separable(self) -> bool:
        """Whether candidates may be measured in different jobs: only races and confirmations
        compare candidates with each other."""
        return self._job.mode in (Mode.SCREENING, Mode.VERIFY)

    def _merge(self) -> Measurement:
        """All answers as one measurement.

        Method and clocks are those of the first attempt that timed; costs add up.
        """
        job = self._job
        outcomes = tuple(
            self._outcomes.get(index, Timing(config_key(candidate.config), 0.0))
            for index, candidate in enumerate(job.candidates)
        )
        if not self._parts:
            info = self._info()
            self._parts.append(Measurement(info.device, info.toolchain, outcomes))
        main = next(filter(_timed, self._parts), self._parts[0])
        spent = [*self._parts, *self._measured_alone]
        baselines: Mapping[str, Timing | Failure] = {
            name: self._baselines[name] for name in job.baselines if name in self._baselines
        }
        return replace(
            main,
            outcomes=outcomes,
            baselines=baselines,
            compiled=sum(part.compiled for part in spent),
            device_s=sum(part.device_s for part in spent),
            timing_s=sum(part.timing_s for part in spent),
        )


def _timed(part: Measurement) -> bool:
    return any(isinstance(found, Timing) and found.samples_us for found in part.outcomes)
