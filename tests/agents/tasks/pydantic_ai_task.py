"""pydantic-ai: an agent with two tools, streamed, through one of three APIs, and an answer of a
type.

python pydantic_ai_task.py URL MODEL chat|responses|messages
"""

import asyncio
import sys

from pydantic import BaseModel
from pydantic_ai import Agent
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider
from tools import TASK, run_command, write_file


class Person(BaseModel):
    name: str
    age: int


def make(url: str, name: str, api: str) -> object:
    if api == "messages":
        return AnthropicModel(name, provider=AnthropicProvider(base_url=url, api_key="none"))
    provider = OpenAIProvider(base_url=f"{url}/v1", api_key="none")
    kind = OpenAIChatModel if api == "chat" else OpenAIResponsesModel
    return kind(name, provider=provider)


async def listen(_: object, events: object) -> None:
    async for _ in events:
        pass


async def main(url: str, name: str, api: str) -> None:
    model = make(url, name, api)
    agent = Agent(model, instructions="Be brief.", tools=[write_file, run_command])
    streamed = await agent.run(TASK, event_stream_handler=listen)
    print(streamed.output)
    whole = await agent.run("Go on.", message_history=streamed.all_messages())
    assert whole.output, whole
    person = await Agent(model, output_type=Person).run("PERSON by final_result: who is it?")
    assert person.output == Person(name="Ada", age=36), person.output


asyncio.run(main(*sys.argv[1:]))
