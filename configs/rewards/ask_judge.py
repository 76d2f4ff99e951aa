"""Reward by a server: asks the command `judge` of the run, wherever that is; see `ppo-with-command.yaml`."""

from __future__ import annotations

import http.client
import json
import os
from functools import cache
from pathlib import Path
from typing import Any

TIMEOUT_S = 4.0  # less than roles.reward.timeout_s, so that the reason is known


def score(prompt: str, response: str, row: dict[str, Any]) -> float:
    """Return what the server says of `response` (text without special tokens), given `row["answer"]`.

    Raises:
        OSError, http.client.HTTPException: the server does not answer.
        ValueError: it answers with something else.
    """
    body = json.dumps({"answers": [response], "expected": [row["answer"]]})
    connection = _connection()
    try:
        connection.request("POST", "/score", body, {"Content-Type": "application/json"})
        reply = connection.getresponse()
        content = reply.read()
    except (OSError, http.client.HTTPException):
        connection.close()  # the next call connects again
        raise
    if reply.status != 200:
        raise ValueError(f"the judge answered with status {reply.status}")
    return float(json.loads(content)["scores"][0])


@cache
def _connection() -> http.client.HTTPConnection:
    """To the first rank of `judge`, which is kept open; looked up when a score is first wanted.

    The run's folder and attempt stand in the environment of every role; the attempt's `endpoints.json` has
    what is ready, and the driver asks for no score before an essential command is ready.
    """
    attempt = Path(os.environ["HPCFLOW_RUN_DIR"], f"attempt_{os.environ['HPCFLOW_ATTEMPT']}")
    ranks = json.loads((attempt / "endpoints.json").read_text())["judge"]
    host, _, port = ranks[0]["endpoint"].removeprefix("http://").rpartition(":")
    return http.client.HTTPConnection(host, int(port), timeout=TIMEOUT_S)
