"""What families of models write for calls: those with tags, and those with JSON between tokens."""

import json
from collections.abc import Sequence
from typing import Any

WeatherCall = tuple[str, dict[str, Any]]


def glm(calls: Sequence[WeatherCall], line: str = "\n", prefix: str = "") -> str:
    """With `line` between its parts: GLM 4.7 writes none."""
    return "\n".join(
        f"<{prefix}tool_call>{name}{line}"
        + "".join(
            f"<{prefix}arg_key>{key}</{prefix}arg_key>{line}"
            f"<{prefix}arg_value>{bare(value)}</{prefix}arg_value>{line}"
            for key, value in arguments.items()
        )
        + f"</{prefix}tool_call>"
        for name, arguments in calls
    )


def glm_in_one_line(calls: Sequence[WeatherCall]) -> str:
    return glm(calls, line="")


def longcat(calls: Sequence[WeatherCall]) -> str:
    return glm(calls, prefix="longcat_")


def longcat_json(calls: Sequence[WeatherCall]) -> str:
    return "\n".join(
        f'<longcat_tool_call>\n{{"name": "{name}", "arguments": {dumps(arguments)}}}\n'
        "</longcat_tool_call>"
        for name, arguments in calls
    )


def seed(calls: Sequence[WeatherCall]) -> str:
    return "\n".join(
        f"<seed:tool_call>\n<function={name}>\n"
        + "".join(
            f"<parameter={key}>{bare(value)}</parameter>\n" for key, value in arguments.items()
        )
        + "</function>\n</seed:tool_call>"
        for name, arguments in calls
    )


def minimax(calls: Sequence[WeatherCall]) -> str:
    written = "".join(
        f'<invoke name="{name}">\n'
        + "".join(
            f'<parameter name="{key}">{bare(value)}</parameter>\n'
            for key, value in arguments.items()
        )
        + "</invoke>\n"
        for name, arguments in calls
    )
    return f"<minimax:tool_call>\n{written}</minimax:tool_call>"


def dsml(calls: Sequence[WeatherCall], section: str = "function_calls") -> str:
    written = "".join(
        f'<｜DSML｜invoke name="{name}">\n'
        + "".join(
            f'<｜DSML｜parameter name="{key}" string="{dumps(isinstance(value, str))}">'
            f"{bare(value)}</｜DSML｜parameter>\n"
            for key, value in arguments.items()
        )
        + "</｜DSML｜invoke>\n"
        for name, arguments in calls
    )
    return f"<｜DSML｜{section}>\n{written}</｜DSML｜{section}>"


def dsml_of_v4(calls: Sequence[WeatherCall]) -> str:
    return dsml(calls, "tool_calls")


def kimi_k3(calls: Sequence[WeatherCall]) -> str:
    kinds = {str: "string", bool: "boolean", int: "number", float: "number", type(None): "null",
             dict: "object", list: "array"}  # fmt: skip
    written = "".join(
        f'<|open|>call tool="{name}" index="{number}"<|sep|>'
        + "".join(
            f'<|open|>argument key="{key}" type="{kinds[type(value)]}"<|sep|>{bare(value)}'
            "<|close|>argument<|sep|>"
            for key, value in arguments.items()
        )
        + "<|close|>call<|sep|>"
        for number, (name, arguments) in enumerate(calls, 1)
    )
    return f"<|open|>tools<|sep|>{written}<|close|>tools<|sep|>"


def deepseek_v3(calls: Sequence[WeatherCall]) -> str:
    written = "\n".join(
        f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>{name}\n```json\n{dumps(arguments)}\n```"
        "<｜tool▁call▁end｜>"
        for name, arguments in calls
    )
    return f"<｜tool▁calls▁begin｜>{written}<｜tool▁calls▁end｜>"


def deepseek_v31(calls: Sequence[WeatherCall]) -> str:
    written = "".join(
        f"<｜tool▁call▁begin｜>{name}<｜tool▁sep｜>{dumps(arguments)}<｜tool▁call▁end｜>"
        for name, arguments in calls
    )
    return f"<｜tool▁calls▁begin｜>{written}<｜tool▁calls▁end｜>"


def nemotron(calls: Sequence[WeatherCall]) -> str:
    listed = [{"name": name, "arguments": arguments} for name, arguments in calls]
    return f"<TOOLCALL>{dumps(listed)}</TOOLCALL>"


def bare(value: Any) -> str:
    """A value without quotes around it."""
    return value if isinstance(value, str) else dumps(value)


def dumps(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
