"""Whom to blame when a job takes its device process down, so that the others are measured still.

The process says what it works on (`workers.supervision.heartbeat`). Who hangs while worked on is
to blame; who crashes is tried once more, alone, before being blamed (see `blamed`). A loss while
all are timed names nobody: candidates are then measured one at a time, each with the incumbent;
candidates of a race or confirmation, whose times count only side by side, are each tried alone,
and those that survive are taken together again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from search_spaces.records import Status, config_key
from workers.build.process_builder import blamed, explained, raise_if_killed, times
from workers.records import Failure, MeasureJob, Measurement, Mode, Timing, WorkerInfo
from workers.supervision.supervised_child import ChildDied

#: Who is to blame: ("candidate", its number), ("baseline", its name), or nobody among them.
_Who = tuple[str, int | str]
_TIMING: _Who = ("timing", "")
_JOB: _Who = ("job", "")
_POISONED = Failure(Status.RUNTIME, "the device's context was lost")


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer. poisoned: it cost the device's context. note: what was worked on last."""

    result: Measurement | Failure
    poisoned: bool = False
    note: str = ""


@dataclass(frozen=True, slots=True)
class Loss:
    """No answer. note: what was worked on last. death: of a process that ended by itself."""

    failure: Failure
    note: str
    death: ChildDied | None = None


Attempt = Callable[[MeasureJob], Reply | Loss]


class _JobFailed(Exception):
    def __init__(self, failure: Failure) -> None:
        self.failure = failure


class Blame:
    """One job, attempted until everybody has an outcome.

    attempt: has a job done by a healthy process. info: what a measurement says when none was made.
    """

    def __init__(self, job: MeasureJob, attempt: Attempt, info: Callable[[], WorkerInfo]) -> None:
        self._job, self._attempt, self._info = job, attempt, info
        self._outcomes: dict[int, Timing | Failure] = {}
        self._baselines: dict[str, Timing | Failure] = {}
        self._parts: list[Measurement] = []
        self._probes: list[Measurement] = []
        self._deaths: dict[_Who, list[str]] = {}
        self._suspects: list[int] = []
        self._incumbent: int | None = None
        if job.mode is Mode.SCREENING and job.incumbent:
            self._incumbent = len(job.candidates) - 1
        #: the incumbent has been found to run alone, so that it is not what kills the process
        self._sound = False
        self._probed = False

    def measure(self) -> Measurement | Failure:
        """Outcomes of all candidates in their order; a Failure when it is the whole job's."""
        everybody = range(len(self._job.candidates))
        if not everybody:
            only = self._attempt(self._job)
            return only.result if isinstance(only, Reply) else only.failure
        try:
            self._together([index for index in everybody if index != self._incumbent])
            while self._suspects:
                self._together([self._suspects.pop(0)])
        except _JobFailed as failed:
            return failed.failure
        alone = self._outcomes.get(0) if len(everybody) == 1 and not self._parts else None
        return alone if isinstance(alone, Failure) else self._merged()

    # -- attempts ------------------------------------------------------------------------------
    def _together(self, members: list[int]) -> None:
        """Measure members in one job, again and again without those that are to blame."""
        while members:
            order = members if self._incumbent is None else [*members, self._incumbent]
            reply = self._attempt(self._job_of(order))
            if isinstance(reply, Reply) and isinstance(reply.result, Failure):
                reply = Loss(reply.result, reply.note if reply.poisoned else "")
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

    def _probe(self, index: int) -> Failure | None:
        """What becomes of a candidate all alone; None when it runs."""
        job = replace(self._job_of([index]), mode=Mode.SCREENING, incumbent=False, baselines=())
        while True:
            reply = self._attempt(job)
            if isinstance(reply, Loss):
                if failure := self._guilt(("candidate", index), reply):
                    return failure
                continue
            if isinstance(reply.result, Failure):
                return reply.result
            self._probes.append(reply.result)
            outcome = reply.result.outcomes[0]
            return outcome if isinstance(outcome, Failure) else None

    # -- what an answer means --------------------------------------------------------------------
    def _after_reply(self, reply: Reply, members: list[int], order: list[int]) -> list[int]:
        """Keep the outcomes; members that a lost context kept from theirs go again."""
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
            return self._after_loss(Loss(_POISONED, reply.note), members, order)
        self._parts.append(reply.result)
        for name, found in reply.result.baselines.items():
            if not again or isinstance(found, Failure):
                self._baselines[name] = found
        for index in members:
            if index not in again:
                self._outcomes[index] = outcomes[index]
        if self._incumbent is None:
            return again
        return self._after_incumbent(outcomes[self._incumbent], again, poisoned=reply.poisoned)

    def _after_incumbent(
        self, outcome: Timing | Failure, again: list[int], *, poisoned: bool
    ) -> list[int]:
        assert self._incumbent is not None
        if isinstance(outcome, Failure) and poisoned:
            return self._after_incumbents_loss(Loss(outcome, ""), again)
        before = self._outcomes.get(self._incumbent)
        if not (isinstance(before, Timing) and before.samples_us):
            self._outcomes[self._incumbent] = outcome
        if isinstance(outcome, Failure):
            self._incumbent = None
        return again

    def _unreached(self, outcome: Timing | Failure) -> bool:
        """Whether this is the outcome of a candidate that was not measured."""
        if isinstance(outcome, Failure):
            return False
        return outcome.error < 0 if self._job.mode is Mode.VERIFY else not outcome.samples_us

    # -- what a loss means -------------------------------------------------------------------------
    def _after_loss(self, loss: Loss, members: list[int], order: list[int]) -> list[int]:
        """Who goes again together after a loss; the others have their outcome or are suspects."""
        who = self._culprit(loss.note, members, order)
        kind, which = who
        if kind == "candidate" and which == self._incumbent:
            return self._after_incumbents_loss(loss, members)
        if kind == "candidate":
            return self._after_members_loss(int(which), loss, members)
        if kind == "timing" and not (loss.death and loss.death.ended == "SIGKILL"):
            return self._divided(loss.failure, members)
        failure = self._guilt(who, loss)
        if failure is None:
            return members
        if kind == "timing":
            return self._divided(failure, members)
        if kind == "job":
            raise _JobFailed(failure)
        self._baselines[str(which)] = failure
        return members

    def _culprit(self, note: str, members: list[int], order: list[int]) -> _Who:
        kind, _, rest = note.partition(" ")
        who = _JOB if not note else _TIMING
        if kind == "candidate" and rest.isdecimal() and int(rest) < len(order):
            who = "candidate", order[int(rest)]
        elif kind == "check" and self._job.checks and order[0] == 0:
            who = "candidate", 0
        elif kind == "baseline":
            who = "baseline", rest
        known = bool(self._parts or self._outcomes)
        if self._separable and len(members) == 1 and (who == _TIMING or (who == _JOB and known)):
            return "candidate", members[0]  # nobody else is there; the incumbent has run before
        return who

    def _guilt(self, who: _Who, loss: Loss) -> Failure | None:
        """The failure to blame them for; None when they get another chance."""
        if loss.death is None:
            return loss.failure
        deaths = self._deaths.setdefault(who, [])
        deaths.append(loss.death.ended)
        if not blamed(deaths):
            return None
        raise_if_killed(deaths, "the device")
        cause = f"crashed the device process ({loss.death.ended}) {times(len(deaths))}"
        return replace(loss.failure, message=explained(cause, loss.death))

    def _after_members_loss(self, index: int, loss: Loss, members: list[int]) -> list[int]:
        others = [member for member in members if member != index]
        failure = self._guilt(("candidate", index), loss)
        if failure is None and others and not self._separable:
            failure = self._probe(index)
        if failure is not None:
            self._outcomes[index] = self._told(index, failure)
            return others
        if others and self._separable:
            self._suspects.append(index)
            return others
        return members

    def _after_incumbents_loss(self, loss: Loss, members: list[int]) -> list[int]:
        """Candidates may have broken what the incumbent died of: it is blamed for what it does
        alone."""
        assert self._incumbent is not None
        if self._sound and len(members) == 1:
            return self._after_members_loss(members[0], loss, members)
        failure = self._guilt(("candidate", self._incumbent), loss)
        if failure is None and loss.death is not None and loss.death.ended == "SIGKILL":
            return members
        return self._divided(loss.failure, members)

    def _divided(self, failure: Failure, members: list[int]) -> list[int]:
        """Who goes again together when nobody can be blamed."""
        if self._separable:
            return self._one_at_a_time(members)
        if not self._probed:
            self._probed = True
            for index in members:
                if found := self._probe(index):
                    self._outcomes[index] = self._told(index, found)
            return [index for index in members if index not in self._outcomes]
        left = [name for name in self._job.baselines if name not in self._baselines]
        if not left:
            raise _JobFailed(failure)
        self._baselines.update(dict.fromkeys(left, failure))
        return members

    def _one_at_a_time(self, members: list[int]) -> list[int]:
        if self._incumbent is not None and not self._sound:
            if failure := self._probe(self._incumbent):
                self._outcomes[self._incumbent] = self._told(self._incumbent, failure)
                self._incumbent = None
                return members
            self._sound = True
        self._suspects += members
        return []

    # -- writing down ------------------------------------------------------------------------------
    @property
    def _separable(self) -> bool:
        """Whether candidates may be measured in different jobs: a screening compares with the
        incumbent."""
        return self._job.mode in (Mode.SCREENING, Mode.VERIFY)

    def _told(self, index: int, failure: Failure) -> Failure:
        artifact = self._job.candidates[index]
        return replace(failure, facts=artifact.facts, binary_hash=artifact.binary_hash)

    def _merged(self) -> Measurement:
        """All that was measured, as one; how it was measured is told by the first that timed."""
        job = self._job
        outcomes = tuple(
            self._outcomes.get(index, Timing(config_key(candidate.config), 0.0))
            for index, candidate in enumerate(job.candidates)
        )
        if not self._parts:
            info = self._info()
            self._parts.append(Measurement(info.device, info.toolchain, outcomes))
        main = next(filter(_timed, self._parts), self._parts[0])
        spent = [*self._parts, *self._probes]
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
