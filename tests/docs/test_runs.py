"""The blocks of our pages that are marked `run` do what they say on a real cluster."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.blocks import CodeBlock, code_blocks
from tests.processes import SCRIPTS, ClusterProcess

SECURED = False  # the pages are about an open cluster
_URL = "nats://127.0.0.1:4222"
_BLOCKS = [block for block in code_blocks() if block.runs]


@pytest.mark.parametrize("block", _BLOCKS, ids=lambda block: block.name)
def test_a_block_runs(block: CodeBlock, demo_cluster: ClusterProcess, tmp_path: Path) -> None:
    code = block.code.replace(_URL, demo_cluster.url)
    shell = ["bash", "-e", "-o", "pipefail", "-c", code]
    done = subprocess.run(
        shell if block.language == "sh" else [sys.executable, "-c", code],
        env={
            **os.environ,
            "PATH": os.pathsep.join([str(SCRIPTS), os.environ["PATH"]]),
            "CLUSTER__NATS__SERVERS": f'["{demo_cluster.url}"]',
        },
        cwd=tmp_path, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert len(done.stdout) > 10


def test_pages_have_blocks_that_run() -> None:
    assert {block.page for block in _BLOCKS} >= {
        "docs/client.md",
        "docs/get-started.md",
        "docs/operate.md",
    }
