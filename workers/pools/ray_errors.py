"""Why Ray failed a call, in one line: the cause that Ray names, or the exception of the actor."""

from __future__ import annotations

from workers.pools.ray_cluster import ray
from workers.processes.worker_lost import is_lasting, one_line, reason_of, remedy_of


def ray_reason(error: Exception) -> str:
    """The reason of a failed call.

    Ray raises subclasses of RayActorError for a dead process, a dead node, an actor that failed to
    start and one that only cannot be reached at the moment. They differ in their text alone.
    """
    exceptions = ray.exceptions
    if isinstance(error, exceptions.RayTaskError):
        return reason_of(_cause(error))
    if isinstance(error, exceptions.ActorUnavailableError):
        return one_line(f"the worker cannot be reached: {_explanation(f'{error}')}")
    if isinstance(error, exceptions.RayActorError):
        return one_line(f"the worker died: {_explanation(f'{error}')}")
    return one_line(f"{error}")


def ray_remedy(error: Exception) -> str:
    """What a user can do about a failed call; empty where neither machine nor kernel is at
    fault."""
    return remedy_of(_own(error))


def is_rays_lasting(error: Exception) -> bool:
    """Whether a call failed for what will probably meet all other workers, too."""
    return is_lasting(_own(error))


def _own(error: Exception) -> BaseException:
    return _cause(error) if isinstance(error, ray.exceptions.RayTaskError) else error


def _cause(error: ray.exceptions.RayTaskError) -> BaseException:
    cause: BaseException = error.cause
    return cause


def _explanation(text: str) -> str:
    """Ray's text without its first, general sentence and without the actor's ids."""
    lines = [line.strip() for line in text.splitlines() if line.strip() and line[0] != "\t"]
    telling = [line for line in lines if not line.startswith("The actor died unexpectedly")]
    return " ".join(telling or ["Ray names no cause"])
