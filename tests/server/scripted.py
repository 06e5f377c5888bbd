"""Answers with known text: a constraint leaves the model one text to write."""

import json

# Shows tools, calls and results as Qwen's template does. The generation prompt opens the thinking if asked to.
TEMPLATE = """{%- if tools %}{{- '<tools>' }}{%- for t in tools %}{{- t.function.name + ' ' }}{%- endfor %}{{- '</tools>' }}{%- endif %}
{%- for m in messages %}{{- '<' + m.role + '>' }}
{%- if m.reasoning_content %}{{- '<think>' + m.reasoning_content + '</think>' }}{%- endif %}{{- m.content }}
{%- for c in m.tool_calls or [] %}{{- '<tool_call>' + c.function.name + ' ' + (c.function.arguments | tojson) }}
{{- '</tool_call>' }}{%- endfor %}{%- endfor %}
{%- if add_generation_prompt %}{{- '<assistant>' }}{%- if enable_thinking %}{{- '<think>' }}{%- endif %}{%- endif %}"""


def call(name, **arguments):
    return "<tool_call>\n" + json.dumps({"name": name, "arguments": arguments}) + "\n</tool_call>"


def says(text):
    """Fields of a request whose answer is this text."""
    return {"chat_template": TEMPLATE, "structured_outputs": {"choice": [text]}, "max_tokens": 200}


def events(text):
    """(name, data) of each server-sent event."""
    out = []
    for block in text.split("\n\n"):
        lines = dict(line.split(": ", 1) for line in block.splitlines() if not line.startswith(":"))
        if "data" in lines:
            out.append((lines.get("event"), json.loads(lines["data"]) if lines["data"] != "[DONE]" else None))
    return out
