"""Calls litellm with what stands on stdin, and prints what came of each call.

Runs in litellm's own virtual environment: python litellm_calls.py < calls.json, a list of the
arguments of `litellm.completion`.
"""

import json
import sys
from typing import Any

import litellm


def call(arguments: dict[str, Any]) -> dict[str, Any]:
    """The text and the usage, or the name of the exception and what it says."""
    try:
        answer = litellm.completion(**arguments)
        if not arguments.get("stream"):
            (choice,) = answer.choices
            return {"text": choice.message.content, "parts": 1, "usage": answer.usage.model_dump()}
        chunks = list(answer)
    except Exception as error:
        status = getattr(error, "status_code", None)
        return {"error": type(error).__name__, "status": status, "message": str(error)}
    texts = [chunk.choices[0].delta.content for chunk in chunks if chunk.choices]
    usages = [chunk.usage.model_dump() for chunk in chunks if getattr(chunk, "usage", None)]
    said = [text for text in texts if text]
    return {"text": "".join(said), "parts": len(said), "usage": usages[-1] if usages else None}


if __name__ == "__main__":
    litellm.suppress_debug_info = True
    print(json.dumps([call(arguments) for arguments in json.load(sys.stdin)]))
