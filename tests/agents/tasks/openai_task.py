"""OpenAI's SDK: a loop of calls with tools, streamed.

python openai_task.py URL MODEL chat|responses
"""

import json
import sys

import openai
from tools import FUNCTIONS, SCHEMAS, TASK


def chat(client: openai.OpenAI, name: str) -> None:
    functions = [{"name": each, "parameters": schema} for each, schema in SCHEMAS.items()]
    described = [{"type": "function", "function": each} for each in functions]
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": TASK}]
    while True:
        asked = {"model": name, "messages": messages, "tools": described}
        with client.chat.completions.stream(**asked) as stream:
            message = stream.get_final_completion().choices[0].message
        messages.append(message.to_dict())
        if not message.tool_calls:
            print(message.content)
            return
        for call in message.tool_calls:
            made = FUNCTIONS[call.function.name](**json.loads(call.function.arguments))
            messages.append({"role": "tool", "tool_call_id": call.id, "content": made})


def responses(client: openai.OpenAI, name: str) -> None:
    described = [
        {"type": "function", "name": each, "parameters": schema, "strict": False}
        for each, schema in SCHEMAS.items()
    ]
    items, last = [{"role": "user", "content": TASK}], openai.omit
    while True:
        asked = {"model": name, "input": items, "tools": described, "instructions": "Be brief."}
        with client.responses.stream(**asked, previous_response_id=last) as stream:
            response = stream.get_final_response()
        calls = [item for item in response.output if item.type == "function_call"]
        if not calls:
            print(response.output_text)
            return
        last, items = response.id, []
        for call in calls:
            made = FUNCTIONS[call.name](**json.loads(call.arguments))
            result = {"type": "function_call_output", "call_id": call.call_id, "output": made}
            items.append(result)


def main(url: str, name: str, api: str) -> None:
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
    (chat if api == "chat" else responses)(client, name)


main(*sys.argv[1:])
