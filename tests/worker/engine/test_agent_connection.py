"""The engine's end of the link, in a process of its own: it ends its process with the agent's."""

import socket
import subprocess
import sys

from worker.link.facts import PrefillAdvanced
from worker.link.frames import HEADER, decode_body, frame_length

_FACTS = 20_000
"""Several times what the socket buffers."""
_ENGINE = """
import socket, sys
from worker.engine.agent_connection import AgentConnection
from worker.link.facts import PrefillAdvanced

channel = AgentConnection(socket.socket(fileno=int(sys.argv[1])), lambda order: None)
channel.start()
for number in range(int(sys.argv[2])):
    channel.send(PrefillAdvanced(number, 1, 2))
print("sent", flush=True)
channel.send(PrefillAdvanced(int(sys.argv[2]), 2, 2))
channel.close()
"""


def test_facts_arrive_whole_and_in_order_when_the_agent_reads_late() -> None:
    ours, theirs = socket.socketpair()
    command = [sys.executable, "-c", _ENGINE, str(theirs.fileno()), str(_FACTS)]
    with ours, subprocess.Popen(
        command, pass_fds=[theirs.fileno()], stdout=subprocess.PIPE, text=True
    ) as engine:  # fmt: skip
        theirs.close()
        assert engine.stdout is not None
        assert engine.stdout.readline() == "sent\n", "sending does not wait for the agent"
        with ours.makefile("rb") as stream:
            facts = []
            while header := stream.read(HEADER.size):
                facts.append(decode_body(stream.read(frame_length(header))))
        assert engine.wait() == 0
    expected = [PrefillAdvanced(number, 1, 2) for number in range(_FACTS)]
    assert facts == [*expected, PrefillAdvanced(_FACTS, 2, 2)]
