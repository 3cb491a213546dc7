"""The queue of cells: each once, in their order, never too far ahead."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vqshield.runs.executors.pool import CellQueue
from vqshield.runs.study import Measured

MEASURED: Measured = Measured(records=[], seconds=0)


@given(
    first=st.integers(0, 5),
    count=st.integers(0, 30),
    workers=st.integers(1, 5),
    ahead=st.integers(1, 12),
    chance=st.randoms(use_true_random=False),
)
def test_whatever_ends_first_every_cell_is_begun_and_none_too_early(
    first: int, count: int, workers: int, ahead: int, chance
) -> None:
    numbers = range(first, first + count)
    queue, running, finished, losses = CellQueue(numbers, ahead=ahead), list[int](), set[int](), 5
    for turn in numbers:
        while turn not in finished:
            while (each := queue.take(workers)) is not None:
                assert len(running) < workers
                assert each not in running
                assert each not in finished
                assert turn <= each < turn + ahead * workers
                running.append(each)
            assert running, "the run would stand still"
            ended = running.pop(chance.randrange(len(running)))
            if losses and chance.random() < 0.2:
                losses -= 1
                queue.end(ended, None)
            else:
                queue.end(ended, MEASURED)
                finished.add(ended)
        queue.give(turn)
    assert queue.take(workers) is None
    assert finished == set(numbers)


def test_a_lost_cell_is_the_next_one_again() -> None:
    queue = CellQueue(range(6), ahead=2)
    assert [queue.take(2) for _ in range(3)] == [0, 1, None]
    queue.end(1, MEASURED)
    assert queue.take(2) == 2
    queue.end(0, None)
    queue.end(2, MEASURED)
    assert [queue.take(2) for _ in range(3)] == [0, 3, None]
    queue.end(3, MEASURED)
    assert queue.take(2) is None, "4 is too far ahead"
    queue.end(0, MEASURED)
    queue.give(0)
    assert queue.take(2) == 4


def test_no_more_cells_run_at_once_than_there_are_workers() -> None:
    queue = CellQueue(range(6))
    assert [queue.take(2) for _ in range(3)] == [0, 1, None]
    assert queue.take(3) == 2, "there is one more now"
    queue.end(0, MEASURED)
    assert queue.take(2) is None, "there is one less now"


@pytest.mark.parametrize("order", [(3, 5), (5, 3)])
def test_nothing_is_begun_behind_an_error(order: tuple[int, int]) -> None:
    queue = CellQueue(range(9), ahead=9)
    assert [queue.take(9) for _ in range(6)] == list(range(6))
    queue.end(2, None)
    for number in order:
        queue.end(number, ValueError())
    assert [queue.take(9) for _ in range(2)] == [2, None]
