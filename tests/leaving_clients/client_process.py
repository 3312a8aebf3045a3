"""A client in a process of its own, to be killed while it streams.

    python -m tests.leaving_clients.client_process URL REQUEST_ID MAX_TOKENS

It streams and says nothing: what it does is seen at the worker.
"""

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from shared.cli.options import read_settings
from shared.client import connect
from shared.ids import LOCAL_CLIENT
from tests.access.roles import environment
from tests.faults.asks import ENDLESS

ROOT = Path(__file__).parents[2]


async def main(url: str, request_id: str, max_tokens: int) -> None:
    async with connect(read_settings(None, url, None).nats) as cluster:
        async for _ in cluster.stream(
            prompt="It leaves.", max_tokens=max_tokens, request_id=request_id, logit_bias=ENDLESS
        ):
            pass


@asynccontextmanager
async def leaving_process(
    url: str, request_id: str, max_tokens: int
) -> AsyncIterator[asyncio.subprocess.Process]:
    """A running client; it is killed at the end, if nobody did that before."""
    process = await asyncio.create_subprocess_exec(
        *(
            sys.executable,
            "-m",
            "tests.leaving_clients.client_process",
            url,
            request_id,
            str(max_tokens),
        ),
        cwd=ROOT,
        env={**os.environ, **environment("client", LOCAL_CLIENT, url)},
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
