"""litellm: a loop of calls with tools, streamed.

python litellm_task.py URL MODEL openai|anthropic
"""

import json
import sys

import litellm
from tools import FUNCTIONS, SCHEMAS, TASK


def main(url: str, name: str, api: str) -> None:
    litellm.suppress_debug_info = True
    functions = [{"name": each, "parameters": schema} for each, schema in SCHEMAS.items()]
    described = [{"type": "function", "function": each} for each in functions]
    base = f"{url}/v1" if api == "openai" else url
    messages = [{"role": "user", "content": TASK}]
    while True:
        chunks = litellm.completion(
            model=f"{api}/{name}", api_base=base, api_key="none", messages=messages,
            tools=described, stream=True,
        )  # fmt: skip
        message = litellm.stream_chunk_builder(list(chunks), messages=messages).choices[0].message
        messages.append(message.model_dump())
        if not message.tool_calls:
            print(message.content)
            return
        for call in message.tool_calls:
            made = FUNCTIONS[call.function.name](**json.loads(call.function.arguments))
            messages.append({"role": "tool", "tool_call_id": call.id, "content": made})


main(*sys.argv[1:])
