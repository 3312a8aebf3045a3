"""A client in a process of its own, to be killed while it streams.

    python -m tests.faults.leaving URL REQUEST_ID MAX_TOKENS

It streams and says nothing: what it does is seen at the worker.
"""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from shared.client import connect
from tests.faults.asks import ENDLESS

ROOT = Path(__file__).parents[2]


async def main(url: str, request_id: str, max_tokens: int) -> None:
    async with connect(url) as cluster:
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
        *(sys.executable, "-m", "tests.faults.leaving", url, request_id, str(max_tokens)),
        cwd=ROOT,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
