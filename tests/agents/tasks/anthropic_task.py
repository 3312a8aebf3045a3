"""Anthropic's SDK: its own runner of tools, streamed.

python anthropic_task.py URL MODEL messages
"""

import sys

import anthropic
import tools
from anthropic import beta_tool


def main(url: str, name: str, _: str) -> None:
    client = anthropic.Anthropic(base_url=url, api_key="none", max_retries=0)
    runner = client.beta.messages.tool_runner(
        model=name,
        max_tokens=32_000,
        thinking={"type": "enabled", "budget_tokens": 2000},
        tools=[beta_tool(tools.write_file), beta_tool(tools.run_command)],
        messages=[{"role": "user", "content": tools.TASK}],
        stream=True,
    )
    for stream in runner:
        for _ in stream:
            pass
        last = stream.get_final_message()
    assert [block.type for block in last.content] == ["thinking", "text"], last
    print(last.content[-1].text)


main(*sys.argv[1:])
