"""The executor for several processes of this machine, without any other package.

Most attacks leave a GPU waiting for its next command, and most cells keep one core of a CPU busy: with
several processes, several cells are measured at a time. Each takes memory for a classifier of its own.
"""

import os
from collections import Counter
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

from vqshield.core import checks
from vqshield.core.errors import VqshieldError
from vqshield.runs.executors.base import HELD, Executor, Measured, finders
from vqshield.runs.executors.queue import CellQueue
from vqshield.runs.executors.team import Answer, Lost, Mistake, Team
from vqshield.runs.executors.workers import Refusal, manifest_for, request_for
from vqshield.runs.records import AnyRecord
from vqshield.runs.study import AnyCell, Progress, Study


@dataclass(frozen=True, kw_only=True)
class ProcessesExecutor(Executor):
    """Measures in processes of its own, which end when the run does.

    workers: how many of them; without it, one for every `cpus` CPUs of this machine.
    cpus: how many threads each computes with.
    retries: how often a cell is begun again after its process was killed, as a system does that runs out of
        memory; errors, a full GPU among them, are not tried again.
    """

    workers: int | None = None
    cpus: int = 1
    retries: int = 3

    def __post_init__(self) -> None:
        if self.workers is not None:
            checks.whole("workers", self.workers, least=1)
        checks.whole("cpus", self.cpus, least=1)
        checks.whole("retries", self.retries, least=0)

    def manifest(self, study: Study[Any, Any, Any]) -> Any:
        return manifest_for(study, self.cpus)

    def measured(
        self, study: Study[Any, AnyCell, AnyRecord], first: int, progress: Progress
    ) -> Generator[Measured[AnyRecord], None, None]:
        """Cells finish in any order and are given back in theirs."""
        request = request_for(study)
        size = self.workers or max(1, _cpus() // self.cpus)
        numbers = range(first, len(study.cells))
        queue = CellQueue(numbers, finders(study, first), held=HELD * size)
        found: dict[int, Measured[Any] | Exception] = {}
        losses = Counter[int]()

        with Team(request, size=size, threads=self.cpus) as team:
            for number in numbers:
                _begin_all(team, queue)
                while number not in found:
                    for each, answer in team.answers().items():
                        losses[each] += isinstance(answer, Lost)
                        outcome = self._outcome(study.title(study.cells[each]), answer, losses[each])
                        if outcome is None:
                            queue.put_back(each)
                            continue
                        found[each] = outcome
                        if isinstance(outcome, Exception):
                            queue.end_at(each)
                        else:
                            queue.finish(each)
                    _begin_all(team, queue)
                result = found.pop(number)
                if isinstance(result, Exception):  # in its turn only: what comes before is kept
                    raise result
                queue.give(number)
                yield result

    def _outcome(self, title: str, answer: Answer, losses: int) -> Measured[Any] | Exception | None:
        """What an answer means for the run; None: the cell is begun again."""
        if isinstance(answer, Refusal | Mistake):
            return answer.error()
        if not isinstance(answer, Lost):
            return answer
        if answer.hopeless:
            return VqshieldError(
                f"a worker ended by {answer.how} before it began, and said why on stderr; a script that "
                "measures with the executor processes has to do so below if __name__ == '__main__':"
            )
        if losses <= self.retries:
            return None
        return VqshieldError(
            f"a worker was lost for good: {title} was begun {losses} times, retries={self.retries}, and each "
            f"time its process ended, the last one by {answer.how}; what is finished is kept: run it again "
            "to go on, with fewer workers where they have too little memory"
        )


def _begin_all(team: Team, queue: CellQueue) -> None:
    """Whatever can be begun now."""
    while team.has_room and (number := queue.take()) is not None:
        team.begin(number)


def _cpus() -> int:
    """Those that this process may use, where the system tells."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
