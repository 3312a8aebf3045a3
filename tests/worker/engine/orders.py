"""Chat templates that take messages in some orders only, in the manner of real families."""

_ASKS = """\
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}{% if tools %}{% endif %}"""
_CALLS = """\
{%- for call in message.tool_calls or [] %}[CALL]{{ call.function.name }}{% endfor %}"""

CHATML = f"""\
{{%- for message in messages %}}<|im_start|>{{{{ message.role }}}}
{{{{ message.content }}}}{_CALLS}<|im_end|>
{{% endfor %}}{_ASKS}"""
"""It takes all."""

SYSTEM_FIRST = f"""\
{{%- set users = messages | selectattr('role', 'equalto', 'user') | list %}}
{{%- if not users %}}{{{{ raise_exception('No user query found in messages.') }}}}{{% endif %}}
{{%- for message in messages %}}
{{%- if message.role == 'system' and not loop.first %}}
{{{{- raise_exception('System message must be at the beginning.') }}}}
{{%- endif %}}<|im_start|>{{{{ message.role }}}}
{{{{ message.content }}}}{_CALLS}<|im_end|>
{{% endfor %}}{_ASKS}"""
"""As Qwen3.5 says."""

ALTERNATING = f"""\
{{%- if messages[0].role == 'system' %}}
{{%- set system = messages[0].content %}}{{% set rest = messages[1:] %}}
{{%- else %}}{{% set system = '' %}}{{% set rest = messages %}}{{% endif %}}
{{%- set ns = namespace(index=0) %}}
{{%- for message in rest %}}
{{%- if message.role == 'user' or (message.role == 'assistant' and not message.tool_calls) %}}
{{%- if (message.role == 'user') != (ns.index % 2 == 0) %}}
{{{{- raise_exception('roles must alternate user/assistant/user/assistant/...') }}}}{{% endif %}}
{{%- set ns.index = ns.index + 1 %}}{{% endif %}}{{% endfor %}}
{{%- for message in rest %}}
{{%- if message.role == 'user' %}}[INST]
{{%- if system and loop.first %}}{{{{ system }}}}

{{% endif %}}{{{{ message.content }}}}[/INST]
{{%- elif message.role == 'tool' %}}[RESULT]{{{{ message.content }}}}[/RESULT]
{{%- elif message.role == 'assistant' %}}{{{{ message.content }}}}{_CALLS}</s>
{{%- else %}}{{{{ raise_exception('Only user, tool and assistant roles are supported!') }}}}
{{%- endif %}}{{% endfor %}}{{% if tools %}}{{% endif %}}"""
"""As Mistral's do: the user's turns and the assistant's without calls by turns."""

NO_SYSTEM = """\
{%- if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}
{%- for message in messages %}
{%- if (message.role == 'user') != (loop.index0 % 2 == 0) %}
{{- raise_exception('Conversation roles must alternate') }}{% endif %}
{%- set role = 'model' if message.role == 'assistant' else message.role %}<start_of_turn>{{ role }}
{{ message.content | trim }}<end_of_turn>
{% endfor %}{% if add_generation_prompt %}<start_of_turn>model
{% endif %}"""
"""As Gemma 2's: no system, no tools, strictly by turns."""

SILENT = f"""\
{{%- if messages[0].role == 'system' %}}{{{{ messages[0].content }}}}
{{% endif %}}{{% for message in messages %}}
{{%- set is_first = loop.previtem is not defined or loop.previtem.role != 'tool' %}}
{{%- if message.role == 'user' and is_first %}}User: {{{{ message.content }}}}
{{% elif message.role == 'assistant' %}}Assistant: {{{{ message.content }}}}{_CALLS}
{{% elif message.role == 'tool' %}}Result: {{{{ message.content }}}}
{{% endif %}}{{% endfor %}}{_ASKS}"""
"""It leaves out what it does not take, without a word."""

TEMPLATES = {
    "chatml": CHATML,
    "system first": SYSTEM_FIRST,
    "alternating": ALTERNATING,
    "no system": NO_SYSTEM,
    "silent": SILENT,
}
