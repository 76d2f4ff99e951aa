"""The reward role that scores with the user's Python function.

A fault costs its sample only; the driver counts faults and decides when there are too many. Nothing is
kept between calls, so ranks are independent and each scores the samples it is given. The driver waits for
`score`, `score` waits for worker processes. Never imports torch, and never the user's code.
"""

from __future__ import annotations

from hpcflow.errors import FirstStepFault
from hpcflow.roles.contract import ScoreRequest, Scores
from hpcflow.roles.reward_calls import Call
from hpcflow.roles.reward_pool import FunctionPool

START_TIMEOUT_S = 60.0


class FunctionRewardRole:
    """Scores with `score(prompt: str, response: str, row: dict) -> float`, run in worker processes.

    `function` is `file.py:function` or `package.module:function`. A call that raises, takes longer than
    `timeout_s`, kills its process, or returns anything but a finite number costs that sample.
    """

    def __init__(
        self,
        function: str,
        *,
        timeout_s: float,
        processes: int,
        start_timeout_s: float = START_TIMEOUT_S,
    ) -> None:
        """Start the workers; `FirstStepFault` (cause `spec`) when the function cannot be used."""
        self._pool = FunctionPool(
            function, processes=processes, timeout_s=timeout_s, start_timeout_s=start_timeout_s
        )
        fault = self._pool.fault()
        if fault:
            self._pool.close()
            raise FirstStepFault(
                f"roles.reward.function {function}: {fault}",
                cause="spec",
                role="reward",
                hint="it must import and take (prompt, response, row)",
            )

    def score(self, request: ScoreRequest) -> Scores:
        """Score each sample; reasons of missing scores are in `faults`, one line each."""
        calls = [
            Call(prompt, response, row)
            for prompt, response, row in zip(request.prompts, request.responses, request.rows, strict=True)
        ]
        outcomes = self._pool.score(calls)
        return Scores(
            scores=[score for score, _ in outcomes],
            faults=[
                f"sample {index}: {reason}" for index, (score, reason) in enumerate(outcomes) if score is None
            ],
        )

    def close(self) -> None:
        """End the worker processes."""
        self._pool.close()
