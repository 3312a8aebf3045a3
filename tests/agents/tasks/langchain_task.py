"""LangChain: an agent with two tools, and structured output.

python langchain_task.py URL MODEL chat|responses|messages
"""

import sys

from langchain.agents import create_agent
from langchain_anthropic import ChatAnthropic
from langchain_openai import ChatOpenAI
from pydantic import BaseModel
from tools import TASK, run_command, write_file


class Person(BaseModel):
    """A person."""

    name: str
    age: int


def make(url: str, name: str, api: str) -> object:
    if api == "messages":
        return ChatAnthropic(model=name, base_url=url, api_key="none", max_retries=0)
    return ChatOpenAI(
        model=name,
        base_url=f"{url}/v1",
        api_key="none",
        max_retries=0,
        use_responses_api=api == "responses",
    )


def main(url: str, name: str, api: str) -> None:
    model = make(url, name, api)
    agent = create_agent(model, [write_file, run_command], system_prompt="Be brief.")
    for step in agent.stream({"messages": [("user", TASK)]}, stream_mode="values"):
        last = step["messages"][-1]
    print(last.text)
    how = "by Person" if api == "messages" else "as JSON"
    person = model.with_structured_output(Person).invoke(f"PERSON {how}: who is it?")
    assert person == Person(name="Ada", age=36), person


main(*sys.argv[1:])
