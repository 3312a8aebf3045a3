"""Chat templates of families that are tried once each, in the manner of those that are public."""

from tests.scripted.families import Template

_LFM2 = """\
{%- if tools %}<|im_start|>system
List of tools: {{ tools | tojson }}<|im_end|>
{% endif %}{%- for message in messages %}<|im_start|>{{ message.role }}
{% if message.thinking %}<think>{{ message.thinking }}</think>{% endif %}{{ message.content }}\
{% if message.tool_calls %}<|tool_call_start|>[{% for call in message.tool_calls %}\
{{ call.function.name }}({% for key, value in call.function.arguments.items() %}{{ key }}=\
{% if value is string %}'{{ value }}'{% else %}{{ value | string }}{% endif %}\
{{ ', ' if not loop.last }}{% endfor %}){{ ', ' if not loop.last }}{% endfor %}]\
<|tool_call_end|>{% endif %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""

_GRANITE = """\
<|start_of_role|>system<|end_of_role|>You are Granite.
{%- if tools %} When a tool is required to answer the user's query, respond only with \
<|tool_call|> followed by a JSON list of tools used.{% endif %}
{%- if thinking %} Write your thoughts between <think></think> and write your response between \
<response></response> for each user query.{% endif %}<|end_of_text|>
{% if tools %}<|start_of_role|>available_tools<|end_of_role|>{{ tools | tojson }}<|end_of_text|>
{% endif %}{%- for message in messages %}<|start_of_role|>{{ message.role }}<|end_of_role|>\
{% if message.tool_calls %}<|tool_call|>[{% for call in message.tool_calls %}\
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}\
{{ ', ' if not loop.last }}{% endfor %}]{% else %}{{ message.content }}{% endif %}<|end_of_text|>
{% endfor %}{% if add_generation_prompt %}<|start_of_role|>assistant<|end_of_role|>{% endif %}"""

_COHERE = """\
<|START_OF_TURN_TOKEN|><|SYSTEM_TOKEN|># System Preamble
{%- if tools %}
1. Action: write <|START_ACTION|> followed by a list of JSON-formatted tool calls.
{{ tools | tojson }}{% endif %}<|END_OF_TURN_TOKEN|>
{%- for message in messages %}<|START_OF_TURN_TOKEN|>
{%- if message.role == 'user' %}<|USER_TOKEN|>{{ message.content }}
{%- elif message.role == 'tool' %}<|SYSTEM_TOKEN|><|START_TOOL_RESULT|>[
    {"tool_call_id": "0", "results": {"0": {{ message.content | tojson }}}, "is_error": null}
]<|END_TOOL_RESULT|>
{%- elif message.tool_calls %}<|CHATBOT_TOKEN|><|START_THINKING|>{{ message.reasoning_content }}\
<|END_THINKING|><|START_ACTION|>[
{% for call in message.tool_calls %}    {"tool_call_id": "{{ loop.index0 }}", "tool_name": \
"{{ call.function.name }}", "parameters": {{ call.function.arguments | tojson }}}
{{- ',' if not loop.last }}
{% endfor %}]<|END_ACTION|>
{%- else %}<|CHATBOT_TOKEN|><|START_RESPONSE|>{{ message.content }}<|END_RESPONSE|>{% endif %}\
<|END_OF_TURN_TOKEN|>{% endfor %}<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>"""

_MINICPM5 = """\
{%- if tools %}<|im_start|>system
<tools>{{ tools | tojson }}</tools>
For each call write <function name="name"><param name="key">value</param></function>.<|im_end|>
{% endif %}{%- for message in messages %}<|im_start|>{{ message.role }}
{{ message.content }}{% for call in message.tool_calls or [] %}<function name="\
{{ call.function.name }}">{% for key, value in call.function.arguments.items() %}<param name="\
{{ key }}">{{ value if value is string else value | tojson }}</param>{% endfor %}</function>\
{% endfor %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""

_MUSE = """\
<|start|>system<|message|>You are a helpful AI assistant.
{%- if tools %}
<atem:function_calls>
<atem:invoke name="$FUNCTION_NAME">
{{ tools | tojson }}{% endif %}<|eot|>{%- for message in messages %}
{%- if message.role == 'tool' %}<|start|>tool<|message|>{{ message.content }}<|eot|>
{%- elif message.tool_calls %}{% for call in message.tool_calls %}<|start|>assistant to=\
{{ call.function.name }}<|message|><atem:function_calls>
<atem:invoke name="{{ call.function.name }}">
{% for key, value in call.function.arguments.items() %}<atem:parameter name="{{ key }}">\
{{ value if value is string else value | tojson }}</atem:parameter>
{% endfor %}</atem:invoke>
</atem:function_calls>{{ '<|eot|>' if loop.last else '<|eom|>' }}{% endfor %}
{%- else %}<|start|>{{ message.role }}{{ ' to=user' if message.role == 'assistant' }}<|message|>\
{{ message.content }}<|eot|>{% endif %}{% endfor %}\
{% if add_generation_prompt %}<|start|>assistant{% endif %}"""

_CHATML = (("<|im_start|>assistant\n",), ("<|im_start|>user\n", "<|im_start|>tool\n"))

OTHER_TEMPLATES = {
    each.name: each
    for each in (
        Template("lfm2", _LFM2, *_CHATML, special=("<|tool_call_start|>", "<|tool_call_end|>"),
                 added=("<think>", "</think>")),
        Template("granite", _GRANITE, ("<|start_of_role|>assistant<|end_of_role|>",),
                 ("<|start_of_role|>user", "<|start_of_role|>tool"),
                 special=("<|start_of_role|>", "<|end_of_role|>", "<|end_of_text|>",
                          "<|tool_call|>"),
                 ends=("<|end_of_text|>",)),
        Template("cohere", _COHERE, ("<|CHATBOT_TOKEN|>",),
                 ("<|USER_TOKEN|>", "<|START_TOOL_RESULT|>"),
                 special=("<|START_OF_TURN_TOKEN|>", "<|END_OF_TURN_TOKEN|>", "<|SYSTEM_TOKEN|>",
                          "<|USER_TOKEN|>", "<|CHATBOT_TOKEN|>"),
                 added=("<|START_THINKING|>", "<|END_THINKING|>", "<|START_ACTION|>",
                        "<|END_ACTION|>", "<|START_RESPONSE|>", "<|END_RESPONSE|>",
                        "<|START_TOOL_RESULT|>", "<|END_TOOL_RESULT|>"),
                 ends=("<|END_OF_TURN_TOKEN|>",)),
        Template("minicpm5", _MINICPM5, *_CHATML, added=("<think>", "</think>")),
        Template("muse", _MUSE, ("<|start|>assistant",),
                 ("<|start|>user<|message|>", "<|start|>tool<|message|>"),
                 special=("<|start|>", "<|message|>", "<|eom|>", "<|eot|>"), ends=("<|eot|>",)),
    )
}  # fmt: skip
