"""instructor: a value of a type, by tools and by a schema.

python instructor_task.py URL MODEL chat|messages
"""

import sys

import anthropic
import instructor
import openai
from pydantic import BaseModel
from tools import write_file


class Person(BaseModel):
    name: str
    age: int


def main(url: str, name: str, api: str) -> None:
    if api == "messages":
        client = anthropic.Anthropic(base_url=url, api_key="none", max_retries=0)
        modes = [instructor.Mode.ANTHROPIC_TOOLS]
        make, more = instructor.from_anthropic, {"max_tokens": 500}
    else:
        client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
        modes = [instructor.Mode.TOOLS, instructor.Mode.JSON_SCHEMA]
        make, more = instructor.from_openai, {}
    for mode in modes:
        how = "as JSON" if mode is instructor.Mode.JSON_SCHEMA else "by Person"
        messages = [{"role": "user", "content": f"PERSON {how}: who is it?"}]
        person = make(client, mode=mode).create(
            model=name, messages=messages, response_model=Person, max_retries=0, **more
        )
        assert person.model_dump() == {"name": "Ada", "age": 36}, (mode, person)
    write_file("answer.txt", "42\n")
    write_file("copy.txt", "42\n")
    print("All is done.")


main(*sys.argv[1:])
