"""Images of many requests, computed together by one thread."""

import queue
import threading
import time
from concurrent.futures import Future

import torch
from torch import Tensor

from vqshield_deploy.serving.limits import Limits
from vqshield_deploy.serving.metrics import Metrics
from vqshield_deploy.serving.predictor import Answer, Predictor

Waiting = tuple[Tensor, "Future[Answer]"]


class Batcher:
    """A queue of images, and the one thread that runs the predictor on whatever is in it."""

    def __init__(self, predictor: Predictor, limits: Limits, metrics: Metrics, threads: int) -> None:
        self._predictor, self._limits, self._metrics, self._threads = predictor, limits, metrics, threads
        self.queue: queue.Queue[Waiting | None] = queue.Queue(limits.queue)
        self.ready = False
        self.thread = threading.Thread(target=self._work, name="model", daemon=True)

    def submit(self, pixels: Tensor) -> "Future[Answer]":
        """The answer to an image, uint8 (channels, height, width), soon; queue.Full: too many wait."""
        answer: Future[Answer] = Future()
        self.queue.put_nowait((pixels, answer))
        self._metrics.queue.set(self.queue.qsize())
        return answer

    def stop(self) -> None:
        """Answer what is in the queue, then end."""
        self.queue.put(None)
        self.thread.join()

    def _work(self) -> None:
        torch.set_num_threads(self._threads)
        self._predictor.warm_up()
        self.ready = True
        running = True
        while running and (item := self.queue.get()) is not None:
            batch, until = [item], time.monotonic() + self._limits.wait_ms / 1000
            while running and len(batch) < self._limits.max_batch:
                try:  # what is there already is taken even where the time is up
                    item = self.queue.get(timeout=max(until - time.monotonic(), 0))
                except queue.Empty:
                    break
                if running := item is not None:
                    batch.append(item)
            self._metrics.queue.set(self.queue.qsize())
            if wanted := [each for each in batch if each[1].set_running_or_notify_cancel()]:
                self._answer(wanted)
        self.ready = False

    def _answer(self, batch: list[Waiting]) -> None:
        self._metrics.batch_sizes.observe(len(batch))
        try:
            answers = self._predictor(torch.stack([pixels for pixels, _ in batch]))
            for (_, future), answer in zip(batch, answers, strict=True):
                future.set_result(answer)
        except Exception as error:  # becomes the answer to these requests; the thread lives on
            for _, future in batch:
                future.set_exception(error)
