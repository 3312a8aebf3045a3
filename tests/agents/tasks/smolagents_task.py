"""smolagents: an agent that calls tools, or one that writes code.

python smolagents_task.py URL MODEL tools|code
"""

import sys

import tools
from smolagents import CodeAgent, OpenAIServerModel, ToolCallingAgent, tool

write_file = tool(tools.write_file)
run_command = tool(tools.run_command)


def main(url: str, name: str, kind: str) -> None:
    model = OpenAIServerModel(model_id=name, api_base=f"{url}/v1", api_key="none")
    make = ToolCallingAgent if kind == "tools" else CodeAgent
    agent = make(tools=[write_file, run_command], model=model, max_steps=5)
    print(agent.run(tools.TASK))


main(*sys.argv[1:])
