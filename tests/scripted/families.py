"""Chat templates in the manner of each family, as far as tests need them."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Template:
    """How a family's conversations look.

    Attributes:
        generation_prompts: what the prompt of an answer may end with.
        turn_markers: what users' and tools' turns begin with.
        special, added: the family's own tokens, hidden by decoding or not.
        ends: tokens that end an answer, beside `<|im_end|>`.
    """

    name: str
    text: str
    generation_prompts: tuple[str, ...]
    turn_markers: tuple[str, ...]
    special: tuple[str, ...] = ()
    added: tuple[str, ...] = ()
    ends: tuple[str, ...] = ()


_HERMES_HEAD = """\
{%- if tools %}<|im_start|>system
# Tools
<tools>{% for tool in tools %}
{{ tool | tojson }}{% endfor %}
</tools><|im_end|>
{% endif %}"""

_QWEN3 = (
    _HERMES_HEAD
    + """\
{%- for message in messages %}
{%- if message.role == 'tool' %}<|im_start|>user
<tool_response>
{{ message.content }}
</tool_response><|im_end|>
{% elif message.role == 'assistant' %}<|im_start|>assistant
{% if message.reasoning_content %}<think>
{{ message.reasoning_content }}
</think>

{% endif %}{{ message.content }}{% for call in message.tool_calls or [] %}
<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>{% endfor %}<|im_end|>
{% else %}<|im_start|>{{ message.role }}
{{ message.content }}<|im_end|>
{% endif %}{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% if enable_thinking is defined and not enable_thinking %}<think>

</think>

{% endif %}{% endif %}"""
)

_OPENS = _QWEN3.replace(
    "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% endif %}",
    "<think>\n",
)

_QWEN_XML = _QWEN3.replace(
    '{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}\n',
    """\
<function={{ call.function.name }}>
{% for key, value in call.function.arguments.items() %}<parameter={{ key }}>
{{ value if value is string else value | tojson }}
</parameter>
{% endfor %}</function>
""",
)

_MISTRAL = """\
{%- if tools %}[AVAILABLE_TOOLS]{{ tools | tojson }}[/AVAILABLE_TOOLS]{% endif %}
{%- for message in messages %}
{%- if message.role == 'assistant' %}
{%- if message.tool_calls %}[TOOL_CALLS][{% for call in message.tool_calls %}\
{%- if not call.id is defined or call.id|length != 9 %}{{ raise_exception("ids have length 9") }}\
{% endif %}{{ call.function | tojson }}{{ ', ' if not loop.last }}{% endfor %}]\
{% else %}{{ message.content }}{% endif %}</s>
{%- elif message.role == 'tool' %}\
{% if message.tool_call_id|length != 9 %}{{ raise_exception("ids have length 9") }}{% endif %}\
[TOOL_RESULTS]{{ message.content }}[/TOOL_RESULTS]
{%- else %}[INST]{{ message.content }}[/INST]{% endif %}{% endfor %}"""

_MISTRAL_ARGS = """\
{%- if tools %}[AVAILABLE_TOOLS]{{ tools | tojson }}[/AVAILABLE_TOOLS]{% endif %}
{%- for message in messages %}
{%- if message.role == 'assistant' %}{{ message.content }}\
{% for call in message.tool_calls or [] %}[TOOL_CALLS]{{ call.function.name }}[ARGS]\
{{ call.function.arguments | tojson }}{% endfor %}</s>
{%- elif message.role == 'tool' %}[TOOL_RESULTS]{{ message.content }}[/TOOL_RESULTS]
{%- else %}[INST]{{ message.content }}[/INST]{% endif %}{% endfor %}"""

_LLAMA = """\
{%- for message in messages %}<|start_header_id|>\
{{ 'ipython' if message.role == 'tool' else message.role }}<|end_header_id|>

{% if loop.first and tools %}Respond in the format {"name": function, "parameters": {}}.
{{ tools | tojson }}
{% endif %}{{ message.content }}{% for call in message.tool_calls or [] %}\
{"name": "{{ call.function.name }}", "parameters": {{ call.function.arguments | tojson }}}\
{% endfor %}<|eot_id|>{% endfor %}{% if add_generation_prompt %}\
<|start_header_id|>assistant<|end_header_id|>

{% endif %}"""

_GEMMA4 = """\
{%- if tools %}<|turn>system
{{ tools | tojson }}<turn|>
{% endif %}{%- for message in messages %}<|turn>{{ message.role }}
{% if message.reasoning %}<|channel>thought
{{ message.reasoning }}<channel|>{% endif %}{{ message.content }}\
{% for call in message.tool_calls or [] %}<|tool_call>call:{{ call.function.name }}\
{{ call.function.arguments | tojson }}<tool_call|>{% endfor %}<turn|>
{% endfor %}{% if add_generation_prompt %}<|turn>model
{% endif %}"""

_FUNCTION_GEMMA = """\
{%- if tools %}<start_of_turn>developer
{{ tools | tojson }}<end_of_turn>
{% endif %}{%- for message in messages %}<start_of_turn>{{ message.role }}
{{ message.content }}{% for call in message.tool_calls or [] %}\
<start_function_call>call:{{ call.function.name }}{{ call.function.arguments | tojson }}\
<end_function_call>{% endfor %}<end_of_turn>
{% endfor %}{% if add_generation_prompt %}<start_of_turn>model
{% endif %}"""

_KIMI = """\
{%- if tools %}<|im_system|>tool_declare<|im_middle|>{{ tools | tojson }}<|im_end|>{% endif %}
{%- for message in messages %}<|im_{{ message.role }}|>{{ message.role }}<|im_middle|>\
{% if message.role == 'tool' %}## Return of {{ message.tool_call_id }}
{% endif %}{{ message.content }}{% if message.tool_calls %}<|tool_calls_section_begin|>\
{% for call in message.tool_calls %}<|tool_call_begin|>{{ call.id }}\
<|tool_call_argument_begin|>{{ call.function.arguments | tojson }}<|tool_call_end|>{% endfor %}\
<|tool_calls_section_end|>{% endif %}<|im_end|>{% endfor %}\
{% if add_generation_prompt %}<|im_assistant|>assistant<|im_middle|>{% endif %}"""

_GLM = """\
[gMASK]<sop>{% if tools %}<|system|>
# Tools
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}<tool_call>{function-name}
<arg_key>{arg-key-1}</arg_key>
<arg_value>{arg-value-1}</arg_value>
</tool_call>{% endif %}{% for message in messages %}
{%- if message.role == 'tool' %}<|observation|>
<tool_response>
{{ message.content }}
</tool_response>
{%- elif message.role == 'assistant' %}<|assistant|>
<think>{{ message.reasoning_content or '' }}</think>
{{ message.content }}{% for call in message.tool_calls or [] %}
<tool_call>{{ call.function.name }}
{% for key, value in call.function.arguments.items() %}<arg_key>{{ key }}</arg_key>
<arg_value>{{ value if value is string else value | tojson }}</arg_value>
{% endfor %}</tool_call>{% endfor %}
{%- else %}<|{{ message.role }}|>
{{ message.content }}{% endif %}{% endfor %}{% if add_generation_prompt %}<|assistant|>\
{% if enable_thinking is defined and not enable_thinking %}
<think></think>{% endif %}{% endif %}"""

_DEEPSEEK_V31 = """\
<｜begin▁of▁sentence｜>{% for message in messages %}{% if message.role == 'system' %}\
{{ message.content }}{% endif %}{% endfor %}
{%- for message in messages %}
{%- if message.role == 'user' %}<｜User｜>{{ message.content }}<｜Assistant｜></think>
{%- elif message.role == 'assistant' %}{{ message.content }}{% if message.tool_calls %}\
<｜tool▁calls▁begin｜>{% for call in message.tool_calls %}\
{{ '<｜tool▁call▁begin｜>' + call['function']['name'] + '<｜tool▁sep｜>' + \
call['function']['arguments'] + '<｜tool▁call▁end｜>' }}{% endfor %}<｜tool▁calls▁end｜>\
{% endif %}<｜end▁of▁sentence｜>
{%- elif message.role == 'tool' %}<｜tool▁output▁begin｜>{{ message.content }}\
<｜tool▁output▁end｜>{% endif %}{% endfor %}"""

_HARMONY = """\
<|start|>system<|message|>Reasoning: {{ reasoning_effort or 'medium' }}<|end|>
{%- if tools %}<|start|>developer<|message|>{{ tools | tojson }}<|end|>{% endif %}
{%- for message in messages %}
{%- if message.role == 'assistant' %}
{%- if message.thinking and message.tool_calls %}<|start|>assistant<|channel|>analysis\
<|message|>{{ message.thinking }}<|end|>{% endif %}
{%- for call in message.tool_calls or [] %}<|start|>assistant to=functions.\
{{ call.function.name }}<|channel|>commentary json<|message|>\
{{ call.function.arguments | tojson }}<|call|>{% endfor %}
{%- if message.content %}<|start|>assistant<|channel|>final<|message|>{{ message.content }}\
<|end|>{% endif %}
{%- elif message.role == 'tool' %}<|start|>functions to=assistant<|channel|>commentary\
<|message|>{{ message.content }}<|end|>
{%- else %}<|start|>{{ message.role }}<|message|>{{ message.content }}<|end|>{% endif %}
{%- endfor %}{% if add_generation_prompt %}<|start|>assistant{% endif %}"""

_CALL = ("<tool_call>", "</tool_call>", "<think>", "</think>")
_CHATML = (("<|im_start|>assistant\n",), ("<|im_start|>user\n",))
_TURNS = (("[/INST]", "[/TOOL_RESULTS]"), ("[INST]", "[TOOL_RESULTS]"))
_INST = ("[/INST]", "[TOOL_RESULTS]", "[/TOOL_RESULTS]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]")

TEMPLATES = {
    each.name: each
    for each in (
        Template("hermes", _QWEN3, *_CHATML, added=_CALL),
        Template("hermes, thinking opened", _OPENS, ("<|im_start|>assistant\n<think>\n",),
                 _CHATML[1], added=_CALL),
        Template("hermes, markers spelled", _QWEN3, *_CHATML),
        Template("qwen3_coder", _QWEN_XML, *_CHATML, added=_CALL),
        Template("mistral", _MISTRAL, *_TURNS,
                 special=("[INST]", *_INST, "[TOOL_CALLS]", "</s>"), ends=("</s>",)),
        Template("mistral_args", _MISTRAL_ARGS, *_TURNS,
                 special=("[INST]", *_INST, "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "</s>"),
                 ends=("</s>",)),
        Template("llama3", _LLAMA, ("<|start_header_id|>assistant<|end_header_id|>\n\n",),
                 ("<|start_header_id|>user<|end_header_id|>",
                  "<|start_header_id|>ipython<|end_header_id|>"),
                 special=("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>",
                          "<|python_tag|>", "<|eom_id|>"),
                 ends=("<|eot_id|>", "<|eom_id|>")),
        Template("gemma4", _GEMMA4, ("<|turn>model\n",), ("<|turn>user\n", "<|turn>tool\n"),
                 special=("<|turn>", "<turn|>", "<|channel>", "<channel|>", "<|tool_call>",
                          "<tool_call|>", '<|"|>'),
                 ends=("<turn|>",)),
        Template("kimi_k2", _KIMI, ("<|im_assistant|>assistant<|im_middle|>",),
                 ("<|im_user|>", "<|im_tool|>"),
                 special=("<|im_system|>", "<|im_user|>", "<|im_assistant|>", "<|im_tool|>",
                          "<|im_middle|>"),
                 added=("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>",
                        "<|tool_call_begin|>", "<|tool_call_argument_begin|>",
                        "<|tool_call_end|>")),
        Template("function_gemma", _FUNCTION_GEMMA, ("<start_of_turn>model\n",),
                 ("<start_of_turn>user\n", "<start_of_turn>tool\n"),
                 special=("<start_of_turn>", "<end_of_turn>", "<start_function_call>",
                          "<end_function_call>", "<escape>"),
                 ends=("<end_of_turn>",)),
        Template("glm", _GLM, ("<|assistant|>",), ("<|user|>", "<|observation|>"),
                 special=("[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>",
                          "<|observation|>"),
                 added=(*_CALL, "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"),
                 ends=("<|user|>", "<|observation|>")),
        Template("deepseek_v31", _DEEPSEEK_V31,
                 ("<｜Assistant｜></think>", "<｜tool▁output▁end｜>"),
                 ("<｜User｜>", "<｜tool▁output▁begin｜>"),
                 special=("<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>"),
                 added=("<｜User｜>", "<｜Assistant｜>", "<think>", "</think>",
                        "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", "<｜tool▁call▁begin｜>",
                        "<｜tool▁call▁end｜>", "<｜tool▁sep｜>", "<｜tool▁output▁begin｜>",
                        "<｜tool▁output▁end｜>"),
                 ends=("<｜end▁of▁sentence｜>",)),
        Template("harmony", _HARMONY, ("<|start|>assistant",),
                 ("<|start|>user<|message|>", "<|start|>functions to=assistant"),
                 special=("<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|call|>",
                          "<|return|>", "<|constrain|>"),
                 ends=("<|call|>", "<|return|>")),
    )
}  # fmt: skip
