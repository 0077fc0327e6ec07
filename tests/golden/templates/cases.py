"""Templates of our own writing, and what they are rendered with."""

USER = {"role": "user", "content": "What is it?"}
SYSTEM = {"role": "system", "content": " Be brief. /no_think "}
THOUGHT = {"role": "assistant", "content": "<think>\nlet me see\n</think>\n\nA crab."}
TALK = [USER, THOUGHT, {"role": "user", "content": "  And now?\n"}]
CALLED = [
    USER,
    {"role": "assistant", "content": "", "tool_calls": [
        {"id": "c1", "type": "function", "function": {"name": "look", "arguments": {"at": "sea <&> 'x' \"y\"", "n": 3, "deep": [1, 2.5, None, True]}}},
    ]},
    {"role": "tool", "content": "ünïcode 🦀", "tool_call_id": "c1"},
    {"role": "user", "content": "Thanks"},
]
TOOLS = [{"type": "function", "function": {"name": "look", "description": "Looks <there>", "parameters": {
    "type": "object", "properties": {"at": {"type": "string"}}, "required": ["at"]}}}]
TYPED = [{"type": "function", "function": {"name": "look", "description": "Looks", "parameters": {
    "type": "object", "required": ["at", "deep"], "properties": {
        "at": {"type": "array", "items": {"type": "string"}}, "in": {"type": ["string", "null"]}, "any": {"type": "array"},
        "sea": {"type": "string", "enum": ["red", "dead"]}, "or": {"oneOf": [{"type": "string", "nullable": True}, {"type": "number", "default": 2.5}]},
        "deep": {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}}}}}]
BASE = {"bos_token": "<s>", "eos_token": "</s>", "tools": None, "documents": None, "add_generation_prompt": True}

CONTEXTS = {
    "plain": {**BASE, "messages": [USER]},
    "system": {**BASE, "messages": [SYSTEM, USER]},
    "talk": {**BASE, "messages": TALK},
    "all": {**BASE, "messages": [SYSTEM, *TALK]},
    "thinking": {**BASE, "messages": [SYSTEM, *TALK], "enable_thinking": True},
    "quiet": {**BASE, "messages": TALK, "enable_thinking": False},
    "tools": {**BASE, "messages": [SYSTEM, *CALLED], "tools": TOOLS},
    "typed": {**BASE, "messages": [{**SYSTEM, "role": "developer"}, USER, {**CALLED[1], "thinking": "hm"}, CALLED[2]], "tools": TYPED,
              "reasoning_effort": "low", "builtin_tools": ["python"], "identity": "I am another."},
    "finished": {**BASE, "messages": [USER, {"role": "assistant", "content": "A crab.", "thinking": "hm"}], "add_generation_prompt": False},
    "values": {**BASE, "messages": [USER], "i": 7, "j": -7, "f": 2.5, "g": 1e20, "h": 1e-7, "w": 3.0, "yes": True, "no": False,
               "nothing": None, "text": "Hello, World", "words": ["b", "a", "C"], "numbers": [3, 1, 2], "pairs": {"b": 1, "a": 2},
               "people": [{"name": "Eve", "age": 3, "on": True}, {"name": "Bob", "age": 5, "on": False}, {"name": "Al", "age": 3}],
               "nested": {"list": [1, "x", [2.0]], "none": None, "quote": "it's"}, "empty": "", "hollow": [], "many": "a\nb\n\nc\n"},
}
CHATS = ["plain", "system", "talk", "all", "thinking", "quiet", "tools"]

QWEN = """{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0].role == 'system' %}
        {{- messages[0].content + '\\n\\n' }}
    {%- endif %}
    {{- "# Tools\\n<tools>" }}
    {%- for tool in tools %}
        {{- "\\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- "\\n</tools><|im_end|>\\n" }}
{%- else %}
    {%- if messages[0].role == 'system' %}
        {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
    {%- endif %}
{%- endif %}
{%- set ns = namespace(multi=true, last=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.multi and message.role == "user" and message.content is string and not(message.content.startswith('<tool_response>') and message.content.endswith('</tool_response>')) %}
        {%- set ns.multi = false %}
        {%- set ns.last = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.content is string %}{%- set content = message.content %}{%- else %}{%- set content = '' %}{%- endif %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "assistant" %}
        {%- set reasoning = '' %}
        {%- if message.reasoning_content is string %}
            {%- set reasoning = message.reasoning_content %}
        {%- else %}
            {%- if '</think>' in content %}
                {%- set reasoning = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
                {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
            {%- endif %}
        {%- endif %}
        {%- if loop.index0 > ns.last and (loop.last or (not loop.last and reasoning)) %}
            {{- '<|im_start|>' + message.role + '\\n<think>\\n' + reasoning.strip('\\n') + '\\n</think>\\n\\n' + content.lstrip('\\n') }}
        {%- else %}
            {{- '<|im_start|>' + message.role + '\\n' + content }}
        {%- endif %}
        {%- if message.tool_calls %}
            {%- for call in message.tool_calls %}
                {%- if (loop.first and content) or (not loop.first) %}{{- '\\n' }}{%- endif %}
                {%- if call.function %}{%- set call = call.function %}{%- endif %}
                {{- '<tool_call>\\n{"name": "' }}
                {{- call.name }}
                {{- '", "arguments": ' }}
                {%- if call.arguments is string %}{{- call.arguments }}{%- else %}{{- call.arguments | tojson }}{%- endif %}
                {{- '}\\n</tool_call>' }}
            {%- endfor %}
        {%- endif %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == "tool" %}
        {%- if loop.first or (messages[loop.index0 - 1].role != "tool") %}{{- '<|im_start|>user' }}{%- endif %}
        {{- '\\n<tool_response>\\n' }}{{- content }}{{- '\\n</tool_response>' }}
        {%- if loop.last or (messages[loop.index0 + 1].role != "tool") %}{{- '<|im_end|>\\n' }}{%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}"""

HARMONY = """{#- Constructs of gpt-oss's template, in words of our own. #}
{%- macro kind_of(spec, needed, is_nullable=false) -%}
    {%- if spec.type == "array" -%}
        {%- if spec['items'] -%}
            {%- set inner = kind_of(spec['items'], needed) -%}
            {%- if inner == "object" or inner|length > 50 -%}
                {{- "any[]" }}
            {%- else -%}
                {{- inner + "[]" }}
            {%- endif -%}
        {%- else -%}
            {{- "any[]" }}
        {%- endif -%}
    {%- elif spec.type is defined and spec.type is iterable and spec.type is not string and spec.type is not mapping and spec.type[0] is defined -%}
        {{- spec.type | join(" | ") }}
    {%- elif spec.oneOf -%}
        {%- for variant in spec.oneOf -%}
            {{- kind_of(variant, needed) -}}
            {%- if variant.default is defined %}
                {{ "// default: " + variant.default|tojson }}
            {%- endif -%}
            {%- if not loop.last %}
                {{- " | " }}
            {% endif -%}
        {%- endfor -%}
    {%- elif spec.type == "string" -%}
        {%- if spec.enum -%}
            {{- '"' + spec.enum|join('" | "') + '"' -}}
        {%- else -%}
            {{- "string" }}
            {%- if spec.nullable or is_nullable %}
                {{- " | null" }}
            {%- endif -%}
        {%- endif -%}
    {%- elif spec.type == "object" and spec.properties -%}
        {{- "{\\n" }}
        {%- for name, inner in spec.properties.items() -%}
            {{- name -}}
            {%- if name not in (spec.required or []) -%}
                {{- "?" }}
            {%- endif -%}
            {{- ": " }}
            {{ kind_of(inner, spec.required or []) }}
            {%- if not loop.last -%}
                {{-", " }}
            {%- endif -%}
        {%- endfor -%}
        {{- "}" }}
    {%- else -%}
        {{- spec.type or "any" }}
    {%- endif -%}
{%- endmacro -%}

{%- macro write_tools(name, tools) -%}
    {{- "## " + name + "\\n" }}
    {%- for tool in tools %}
        {%- set tool = tool.function %}
        {{- "// " + tool.description + "\\ntype " + tool.name + " = " }}
        {{- kind_of(tool.parameters, [], is_nullable=true) + ";\\n" }}
    {%- endfor %}
{%- endmacro -%}

{%- macro write_head() -%}
    {%- if identity is not defined %}
        {%- set identity = "I am a model." %}
    {%- endif %}
    {{- identity + "\\n" }}
    {{- "Date: " + strftime_now("today") + "\\n" }}
    {%- if reasoning_effort is not defined %}
        {%- set reasoning_effort = "medium" %}
    {%- endif %}
    {{- "Effort: " + reasoning_effort + "\\n" }}
    {%- if builtin_tools %}
        {%- set has = namespace(browser=false, python=false) %}
        {%- for tool in builtin_tools %}
            {%- if tool == "python" %}
                {%- set has.python = true %}
            {%- endif %}
        {%- endfor %}
        {{- has.python ~ has.browser }}
    {%- endif -%}
    {{- "Channels: analysis, commentary, final." }}
    {%- if tools -%}
        {{- "\\nCalls are commentary." }}
    {%- endif -%}
{%- endmacro -%}

{{- "<|start|>system<|message|>" }}
{{- write_head() }}
{{- "<|end|>" }}
{%- if messages[0].role == "developer" or messages[0].role == "system" %}
    {%- set rules = messages[0].content %}
    {%- set turns = messages[1:] %}
{%- else %}
    {%- set rules = "" %}
    {%- set turns = messages %}
{%- endif %}
{%- if rules or tools %}
    {{- "<|start|>developer<|message|>" }}
    {%- if rules %}
        {{- "# Rules\\n" }}
        {{- rules }}
        {{- "\\n" }}
    {%- endif %}
    {%- if tools -%}
        {{- write_tools("functions", tools) }}
    {%- endif -%}
    {{- "<|end|>" }}
{%- endif %}
{%- set last = namespace(name=none) %}
{%- for message in turns -%}
    {%- if message.role == 'assistant' -%}
        {%- if "content" in message and "<|channel|>final<|message|>" in message.content %}
            {{- raise_exception("the content has marks") }}
        {%- endif %}
        {%- if "tool_calls" in message %}
            {%- set later = namespace(found=false) %}
            {%- for other in turns[loop.index:] %}
                {%- if other.role == 'assistant' and "tool_calls" not in other %}
                    {%- set later.found = true %}
                {%- endif %}
            {%- endfor %}
            {%- set call = message.tool_calls[0] %}
            {%- if call.function %}
                {%- set call = call.function %}
            {%- endif %}
            {%- if message.thinking and not later.found %}
                {{- "<|start|>assistant<|channel|>analysis<|message|>" + message.thinking + "<|end|>" }}
            {%- endif %}
            {{- "<|start|>assistant to=" }}
            {{- "functions." + call.name + "<|channel|>commentary " }}
            {{- (call.content_type if call.content_type is defined else "json") + "<|message|>" }}
            {{- call.arguments|tojson }}
            {{- "<|call|>" }}
            {%- set last.name = call.name %}
        {%- elif loop.last and not add_generation_prompt %}
            {%- if "thinking" in message %}
                {{- "<|start|>assistant<|channel|>analysis<|message|>" + message.thinking + "<|end|>" }}
            {%- endif %}
            {{- "<|start|>assistant<|channel|>final<|message|>" + message.content + "<|return|>" }}
        {%- else %}
            {{- "<|start|>assistant<|channel|>final<|message|>" + message.content + "<|end|>" }}
            {%- set last.name = none %}
        {%- endif %}
    {%- elif message.role == 'tool' -%}
        {%- if last.name is none %}
            {{- raise_exception("no call came before this tool") }}
        {%- endif %}
        {{- "<|start|>functions." + last.name }}
        {{- " to=assistant<|channel|>commentary<|message|>" + message.content|tojson + "<|end|>" }}
    {%- elif message.role == 'user' -%}
        {{- "<|start|>user<|message|>" + message.content + "<|end|>" }}
    {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
<|start|>assistant
{%- endif -%}"""

SWITCHES = """{%- if messages[0].role == 'system' -%}
{%- set system = messages[0].content -%}
{%- if '/system_override' in system -%}{%- set custom = system.replace('/system_override', '').rstrip() -%}
{%- elif '/no_think' in system -%}{%- set mode = '/no_think' -%}{%- set custom = system.replace('/no_think', '').rstrip() -%}
{%- else -%}{%- set mode = '/think' -%}{%- set custom = system.rstrip() -%}{%- endif -%}
{%- endif -%}
<|system|>{{ mode | default('/think') }} {{ custom | default('none', true) }}
{% for m in messages if m.role != 'system' %}
[{{ loop.index }}/{{ loop.length }}] {{ m.role | upper }}: {{ m.content | trim }}
{% endfor %}
"""

TRAINING = """{%- for message in messages -%}
  {%- if message.role == 'assistant' -%}
    {%- generation -%}
    {{- '<|a|>' + message.content + eos_token -}}
    {%- endgeneration -%}
  {%- else -%}
    {{- '<|' + message['role'] + '|>' + message['content'] -}}
  {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|a|>' }}{%- endif -%}"""

CASES = [
    # Whole templates, with and without system text, tools and thinking.
    ("qwen", QWEN, *CHATS),
    ("harmony", HARMONY, *CHATS, "typed", "finished"),
    ("switches", SWITCHES, *CHATS),
    ("training", TRAINING, *CHATS),
    ("mistral", "{{ bos_token }}{% if messages[0]['role'] == 'system' %}{% set sys = messages[0]['content'] + '\\n\\n' %}{% set loop_messages = messages[1:] %}{% else %}{% set sys = '' %}{% set loop_messages = messages %}{% endif %}{% for m in loop_messages %}{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('alternate') }}{% endif %}{% if m['role'] == 'user' %}{{ '[INST] ' + (sys if loop.first else '') + m['content'].strip() + ' [/INST]' }}{% elif m['role'] == 'assistant' %}{{ ' ' + m['content'] | trim + eos_token }}{% endif %}{% endfor %}", *CHATS),
    ("no system", "{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}{% for m in messages %}{{ '<start>' + (m.role if m.role != 'assistant' else 'model') + '\\n' + m.content | trim + '<end>\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<start>model\\n' }}{% endif %}", *CHATS),
    ("llama", "{{- bos_token }}\n{%- if not tools is defined %}\n    {%- set tools = none %}\n{%- endif %}\n{%- if messages[0]['role'] == 'system' %}\n    {%- set system_message = messages[0]['content']|trim %}\n    {%- set messages = messages[1:] %}\n{%- else %}\n    {%- set system_message = \"\" %}\n{%- endif %}\n{{- \"<|h|>system<|e|>\\n\\n\" }}\n{%- if tools is not none %}\n    {{- \"Environment: ipython\\n\" }}\n    {%- for t in tools %}\n        {{- t | tojson(indent=4) }}\n        {{- \"\\n\\n\" }}\n    {%- endfor %}\n{%- endif %}\n{{- system_message }}\n{{- \"<|eot|>\" }}\n{%- for message in messages %}\n    {%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}\n        {{- '<|h|>' + message['role'] + '<|e|>\\n\\n'+ message['content'] | trim + '<|eot|>' }}\n    {%- elif 'tool_calls' in message %}\n        {%- if not message.tool_calls|length == 1 %}\n            {{- raise_exception(\"one call\") }}\n        {%- endif %}\n        {%- set tool_call = message.tool_calls[0].function %}\n        {{- '{\"name\": \"' + tool_call.name + '\", \"parameters\": ' }}\n        {{- tool_call.arguments | tojson }}\n        {{- \"}\" }}\n    {%- elif message.role == \"tool\" or message.role == \"ipython\" %}\n        {%- if message.content is mapping or message.content is iterable %}\n            {{- message.content | tojson }}\n        {%- else %}\n            {{- message.content }}\n        {%- endif %}\n    {%- endif %}\n{%- endfor %}\n", *CHATS),
    ("deep", "{% set ns = namespace(is_first=false, system_prompt='') %}{%- for message in messages %}{%- if message['role'] == 'system' %}{% set ns.system_prompt = message['content'] %}{%- endif %}{%- endfor %}{{bos_token}}{{ns.system_prompt}}{%- for message in messages %}{%- if message['role'] == 'user' %}{{'<U>' + message['content']}}{%- endif %}{%- if message['role'] == 'assistant' and message['content'] is not none %}{% set content = message['content'] %}{% if '</think>' in content %}{% set content = content.split('</think>')[-1] %}{% endif %}{{'<A>' + content + '<end>'}}{%- endif %}{%- endfor %}{% if add_generation_prompt %}{{'<A><think>\\n'}}{% endif %}", *CHATS),
    ("macro template", "{%- macro turn(role, content, last=false) -%}\n<|{{ role }}|>{{ content }}{% if not last %}<|end|>{% endif %}\n{%- endmacro -%}\n{%- for m in messages -%}{{ turn(m.role, m.content | trim, last=loop.last) }}{%- endfor -%}", *CHATS),
    # The generation block.
    ("generation dashes", "a\n  {% generation %}\n  b\n  {% endgeneration %}\nc"),
    ("generation minus", "a\n  {%- generation -%}\n  b\n  {%- endgeneration -%}\nc"),
    ("generation in text", "{{ '{% generation %}' }}{# {% generation %} #}{% generation %}x{% endgeneration %}{% raw %}{% generation %}{% endraw %}"),
    ("generation scope", "{% set a = 1 %}{% generation %}{% set a = 2 %}{{ a }}{% endgeneration %}{{ a }}"),
    ("generation loop", "{% for m in messages %}{% generation %}{{ loop.index }}{{ m.content }}{% if loop.last %}!{% endif %}{% endgeneration %}{% endfor %}", "talk"),
    ("generation namespace", "{% set ns = namespace(n=0) %}{% for m in messages %}{% generation %}{% set ns.n = ns.n + 1 %}{% endgeneration %}{% endfor %}{{ ns.n }}", "talk"),
    ("generation assigns", "{% set ns = namespace(n=0) %}{% generation %}{% set ns.n = 5 %}{% set ns.m = 1, 2 %}{% endgeneration %}{{ ns.n }}{{ ns.m }}"),
    ("macro assigns", "{% set ns = namespace(n=0) %}{% macro f() %}{% set ns.n = 5 %}{% endmacro %}{{ f() }}{{ ns.n }}"),
    ("generation in generation", "{% generation %}a{% generation %}b{% endgeneration %}{% endgeneration %}"),
    ("a name generation", "{% set generation = 5 %}{{ generation }}"),
    ("unclosed generation", "{% generation %}x"),
    ("stray endgeneration", "x{% endgeneration %}"),
    # Whitespace.
    ("trim blocks", "{% if true %}\nyes\n{% endif %}\n\nend\n"),
    ("lstrip blocks", "   {% if true %}\n   yes\n   {% endif %}\n  {{ 1 }}\n"),
    ("plus", "  {%+ if true %}\n  a\n  {% endif +%}\n\nb"),
    ("comment lines", "a\n  {# note #}\nb {# in #} c\n{#- x -#}\n d"),
    ("minus both", "a \n\n {{- 1 -}} \n b {%- if true -%} c {%- endif -%} d"),
    ("last newline", "a\n\n"),
    ("crlf", "a\r\n{% if true %}\r\nb\r\n{% endif %}\r\nc"),
    ("raw", "{% raw %}{{ x }}{% endraw %}\n{%- raw -%}  {% y %} {%- endraw -%} z"),
    ("variable keeps newline", "{{ 1 }}\n{{ 2 }}\n"),
    ("tabs", "\t{% if true %}\tx\t{% endif %}\t\n"),
    ("block after text", "text {% if true %}\nin{% endif %}\n"),
    # Numbers, constants and how they are printed.
    ("constants", "{{ true }}{{ True }}{{ false }}{{ False }}{{ none }}{{ None }}"),
    ("string of constants", "{{ true|string + none|string + (1.0)|string + 2|string }}{{ yes ~ no ~ nothing ~ f }}", "values"),
    ("floats", "{{ f }} {{ g }} {{ h }} {{ w }} {{ 1e3 }} {{ 1.5e-3 }} {{ 0.1 + 0.2 }} {{ 1e16 }} {{ 1e15 }} {{ 123456789.125 }} {{ -0.0 }} {{ 1e-5 }} {{ 0.0001 }}", "values"),
    ("integers", "{{ 7 // 2 }} {{ -7 // 2 }} {{ 7 / 2 }} {{ 6 / 2 }} {{ 7 % 3 }} {{ -7 % 3 }} {{ 7 % -3 }} {{ 2 ** 10 }} {{ 7.5 // 2 }} {{ -7.5 % 2 }} {{ 1_000 }}"),
    ("literals", "{{ 0x1f }} {{ 0b101 }} {{ 0o17 }}"),
    ("precedence", "{{ 1 + 2 * 3 }} {{ (1 + 2) * 3 }} {{ 2 * 3 % 4 }} {{ 10 - 4 - 3 }} {{ -2 ** 2 }} {{ 2 ** 3 ** 2 }} {{ 1 ~ 2 + 3 }} {{ not 1 == 2 }}"),
    ("division by zero", "{{ 1 / 0 }}"),
    ("big integers", "{{ 9223372036854775807 + 1 }} {{ 2 ** 64 }}"),
    ("booleans are numbers", "{{ true + 1 }} {{ [true, false] | sum }} {{ true == 1 }} {{ 1 == 1.0 }}"),
    ("string times", "{{ 'ab' * 3 }}{{ 2 * 'c' }}{{ 'x' * 0 }}{{ 'x' * -1 }}{{ [1, 2] * 2 }}"),
    ("adding", "{{ 'a' + 'b' }}{{ [1] + [2] }}{{ (1,) + (2,) }}"),
    ("adding unlike", "{{ 'a' + 1 }}"),
    ("adding none", "{{ 'a' + none }}"),
    ("lists", "{{ [1, 'a', \"it's\", none, true, 2.0] }} {{ [] }} {{ (1, 2) }} {{ (1,) }} {{ () }}"),
    ("dicts", "{{ {'a': 1, 'b': [none, 'x']} }} {{ {} }} {{ nested }}", "values"),
    ("escapes in lists", "{{ ['a\\nb', 'q\"q', \"b'b\", 'back\\\\slash', 'tab\\t', 'é🦀'] }}"),
    ("strings", "{{ 'a\\nb\\tc\\\\d\\'e\"f' }}{{ \"\\u00e9\\x41\" }}{{ '\\d' }}"),
    ("string over lines", "{{ 'a\nb' }}"),
    ("neighbouring strings", "{{ 'a' 'b' \"c\" }}"),
    # Percent.
    ("percent", "{{ '%s' % 'x' }} {{ '%s and %s' % ('a', 'b') }} {{ '%d%%' % 5 }} {{ '%.2f' % 3.14159 }} {{ '%5s|%-5s|' % ('a', 'b') }} {{ '%r' % 'q' }} {{ '%03d' % 7 }} {{ '%x' % 255 }}"),
    ("percent of values", "{{ '%s' % none }} {{ '%s' % true }} {{ '%s' % 2.0 }} {{ '%s' % [1, 'a'] }}"),
    ("percent names", "{{ '%(a)s-%(b)d' % {'a': 1, 'b': 2} }}"),
    ("percent chains", "{{ 'x' + '%s' % 'y' + 'z' }} {{ '%s' % 'a' ~ 'b' }} {{ '<%s>' % messages[0].role | upper }} {{ ('%s' % 'a').upper() }}"),
    ("percent in a block", "{% set t = '%s:' % messages[0].role %}{{ t }}{% if 5 % 2 == 1 %}odd{% endif %}{% for i in range(4) if i % 2 %}{{ i }}{% endfor %}"),
    ("percent variables", "{% set fmt = '<|%s|>' %}{% for m in messages %}{{ fmt % m.role }}{{ loop.index0 % 2 }}{% endfor %}", "talk"),
    ("percent wrong", "{{ '%s %s' % 'a' }}"),
    ("percent too many", "{{ '%s' % ('a', 'b') }}"),
    ("percent text", "{{ '100 % sure' }} 50 % {{ 'a%b' }}"),
    ("format filter", "{{ '%s, %s!' | format('a', 'b') }} {{ '%(x)s' | format(x=3) }}"),
    ("format method", "{{ '{} {}'.format('a', 1) }} {{ '{0}{1}{0}'.format('a', 'b') }} {{ '{x}'.format(x=2) }} {{ '{:>5}|{:<5}|{:^5}'.format('a', 'b', 'c') }} {{ '{:.2f} {:03d}'.format(1.0, 5) }} {{ '{{}}'.format() }}"),
    # Methods of strings.
    ("center", "[{{ ' x '.center(9, '-') }}][{{ 'ab'.center(5) }}][{{ 'abcdef'.center(3) }}]"),
    ("ljust", "[{{ 'a'.ljust(3) }}][{{ 'a'.rjust(3, '.') }}][{{ '7'.zfill(3) }}][{{ '-7'.zfill(4) }}]"),
    ("cases of letters", "{{ text.upper() }}{{ text.lower() }}{{ text.title() }}{{ text.capitalize() }}{{ text.swapcase() }}{{ text.casefold() }}", "values"),
    ("strip", "[{{ '  a  '.strip() }}][{{ 'xxaxx'.strip('x') }}][{{ '\\n a'.lstrip('\\n') }}][{{ 'abcab'.rstrip('ab') }}][{{ ' a '.lstrip() }}]"),
    ("split", "{{ 'a,b,,c'.split(',') }} {{ ' a  b '.split() }} {{ 'a,b,c'.split(',', 1) }} {{ 'a,b,c'.rsplit(',', 1) }} {{ 'a b c'.split(None, 1) }} {{ 'a b c'.split(maxsplit=1) }} {{ ''.split() }} {{ ''.split(',') }}"),
    ("split empty", "{{ 'a'.split('') }}"),
    ("partition", "{{ 'a=b=c'.partition('=') }} {{ 'a=b=c'.rpartition('=') }} {{ 'a'.partition('=') }}"),
    ("splitlines", "{{ many.splitlines() }} {{ many.splitlines(true) }}", "values"),
    ("find", "{{ text.find('o') }} {{ text.rfind('o') }} {{ text.find('zz') }} {{ text.index('W') }} {{ text.count('l') }} {{ text.find('o', 5) }}", "values"),
    ("index missing", "{{ 'abc'.index('z') }}"),
    ("starts", "{{ text.startswith('Hell') }} {{ text.startswith(('x', 'H')) }} {{ text.endswith('d') }} {{ text.endswith(('a', 'b')) }} {{ text.startswith('l', 2) }}", "values"),
    ("replace", "{{ 'aaa'.replace('a', 'b') }} {{ 'aaa'.replace('a', 'b', 2) }} {{ 'abc'.replace('', '-') }}"),
    ("removeprefix", "{{ 'abc'.removeprefix('a') }} {{ 'abc'.removesuffix('bc') }} {{ 'abc'.removeprefix('x') }}"),
    ("is methods", "{{ 'a1'.isalnum() }} {{ 'ab'.isalpha() }} {{ '12'.isdigit() }} {{ ''.isdigit() }} {{ ' '.isspace() }} {{ 'AB'.isupper() }} {{ 'ab1'.islower() }} {{ 'Ab Cd'.istitle() }} {{ 'a_b'.isidentifier() }} {{ '½'.isnumeric() }} {{ '12'.isdecimal() }} {{ 'ab'.isascii() }}"),
    ("join method", "{{ ', '.join(words) }} {{ ''.join(['a', 'b']) }} {{ '-'.join('abc') }}", "values"),
    ("join method of numbers", "{{ ', '.join([1, 2]) }}"),
    ("expandtabs", "[{{ 'a\\tb'.expandtabs(4) }}]"),
    ("encode", "{{ 'abc'.translate({97: 'x'}) }}"),
    ("unknown method", "{{ 'abc'.nothing() }}"),
    ("chained methods", "{{ ' <think> a </think> b '.split('</think>')[-1].strip().upper() }}"),
    # Methods of lists and dicts.
    ("list methods", "{{ words.index('a') }} {{ words.count('a') }} {{ words | length }}", "values"),
    ("append is refused", "{% set l = [1] %}{{ l.append(2) }}{{ l }}"),
    ("copy", "{{ words.copy() }} {{ pairs.copy() }}", "values"),
    ("dict methods", "{{ pairs.get('a') }} {{ pairs.get('z') }} {{ pairs.get('z', 9) }} {{ pairs.keys() | list }} {{ pairs.values() | list }} {{ pairs.items() | list }}", "values"),
    ("items", "{% for k, v in pairs.items() %}{{ k }}={{ v }};{% endfor %}{% for k, v in pairs | items %}{{ k }}{% endfor %}{% for k in pairs %}{{ k }}{% endfor %}", "values"),
    ("printing views", "{{ pairs.items() }} {{ pairs.keys() }} {{ pairs.values() }}", "values"),
    ("a key named items", "{% set d = {'items': 5, 'get': 6} %}{{ d['items'] }} {{ d['get'] }}"),
    ("dict function", "{{ dict(a=1, b='x') }} {{ dict({'a': 1}, b=2) }}"),
    ("update is refused", "{% set d = {'a': 1} %}{{ d.update({'b': 2}) }}{{ d }}"),
    ("pop is refused", "{% set l = [1] %}{{ l.pop() }}"),
    # Slices and indexes.
    ("slices", "{{ numbers[1:] }} {{ numbers[:-1] }} {{ numbers[::-1] }} {{ numbers[::2] }} {{ numbers[-2:] }} {{ text[0:4] }} {{ text[::-1] }} {{ text[-1] }} {{ numbers[5:] }} {{ numbers[2:0:-1] }}", "values"),
    ("indexes", "{{ numbers[0] }} {{ numbers[-1] }} {{ numbers.0 }} {{ text[1] }} {{ [[1, 2], [3]][0][1] }} {{ numbers[9] }}|{{ text[99] }}|", "values"),
    ("tuple slice", "{{ (1, 2, 3)[1:] }}"),
    # Undefined.
    ("undefined", "[{{ missing }}][{{ missing | default('d') }}][{{ empty | default('d') }}][{{ empty | default('d', true) }}][{{ nothing | default('d') }}]", "values"),
    ("undefined attribute", "[{{ pairs.zzz }}][{{ pairs['zzz'] }}][{{ messages[0].nope }}]{% if messages[0].nope %}x{% endif %}", "values"),
    ("undefined of undefined", "{{ missing.attribute }}"),
    ("undefined call", "{{ missing() }}"),
    ("undefined plus", "{{ missing + 'a' }}"),
    ("undefined tilde", "{{ missing ~ 'a' }}"),
    ("undefined for", "{% for x in missing %}x{% else %}none{% endfor %}"),
    ("undefined equal", "{{ missing == 'a' }} {{ missing == none }} {{ missing != 1 }} {{ missing is none }} {{ missing in ['a'] }} {{ missing == other }}"),
    ("undefined less", "{{ missing < 1 }}"),
    ("undefined length", "{{ missing | length }} {{ missing | list }} {{ missing | join(',') }} {{ missing | string }}|"),
    ("undefined trim", "[{{ missing | trim }}][{{ missing | upper }}]"),
    ("none attribute", "[{{ nothing.x }}][{{ (1).x }}]", "values"),
    ("none subscript", "[{{ nothing['x'] }}]", "values"),
    ("none of none", "{{ nothing.x.y }}", "values"),
    ("defined", "{{ missing is defined }} {{ text is defined }} {{ missing is undefined }} {{ pairs.a is defined }} {{ pairs.q is defined }} {{ nothing is defined }} {{ missing is not defined }}", "values"),
    ("inline if", "[{{ 'a' if false }}][{{ 'a' if true }}][{{ 'a' if no else 'b' }}][{{ ('x' if false) is defined }}][{{ 1 if 0 else 2 if 0 else 3 }}]", "values"),
    ("and or", "{{ empty or 'x' }} {{ 'a' and 'b' }} {{ 0 or none }} {{ [] or {} }} {{ not empty }} {{ 'a' or missing }}", "values"),
    ("trueness", "{% for x in [0, 1, '', 'a', [], [0], {}, {'a': 1}, none, 0.0, true] %}{{ 'T' if x else 'F' }}{% endfor %}"),
    # Comparisons.
    ("chained", "{{ 1 < 2 < 3 }} {{ 1 < 3 < 2 }} {{ 3 > 2 > 1 }} {{ 1 == 1 == 1 }} {{ 1 <= 1 < 2 }}"),
    ("comparisons", "{{ 'a' < 'b' }} {{ [1, 2] < [1, 3] }} {{ 'a' == \"a\" }} {{ 1 != 2 }} {{ none == none }} {{ [1] == [1] }} {{ {'a': 1} == {'a': 1} }} {{ '1' == 1 }}"),
    ("unlike order", "{{ 'a' < 1 }}"),
    ("in", "{{ 'ell' in text }} {{ 'a' in words }} {{ 'a' not in words }} {{ 'a' in pairs }} {{ 1 in numbers }} {{ '' in text }} {{ not 'a' in words }}", "values"),
    ("in a number", "{{ 'a' in 5 }}"),
    ("in none", "{{ 'a' in none }}"),
    ("in of unlike", "{{ 1 in 'abc' }}"),
    # Tests.
    ("iterable", "{% for x in ['a', [1], {'a': 1}, 5, none, true, 1.5, range(3)] %}{{ x is iterable }} {% endfor %}{{ missing is iterable }}"),
    ("sequence", "{% for x in ['a', [1], {'a': 1}, 5, none, true, 1.5, (1, 2), range(3)] %}{{ x is sequence }} {% endfor %}{{ missing is sequence }}"),
    ("kinds", "{% for x in ['a', [1], {'a': 1}, 5, none, true, 1.5] %}{{ x is string }}{{ x is mapping }}{{ x is number }}{{ x is integer }}{{ x is float }}{{ x is boolean }}{{ x is none }}{{ x is true }}{{ x is false }}{{ x is callable }} {% endfor %}"),
    ("tests with words", "{{ 4 is even }} {{ 4 is odd }} {{ 4 is divisibleby 2 }} {{ 4 is divisibleby(3) }} {{ 'a' is in ['a'] }} {{ 'a' is eq 'a' }} {{ 'a' is equalto('b') }} {{ 3 is gt 2 }} {{ 3 is ne 3 }} {{ 3 is lessthan 4 }} {{ 'ab' is lower }} {{ 'AB' is upper }} {{ 1 is sameas 1 }} {{ none is sameas none }} {{ 'trim' is filter }} {{ 'odd' is test }} {{ 'zz' is filter }}"),
    ("is not", "{{ 1 is not none }} {{ none is not none }} {{ 'a' is not string }} {{ not 'a' is string }} {{ 'a' is string and 1 is number }} {{ 'a' is not mapping and 'a' is not none }}"),
    ("is not in", "{{ 'a' is not in ['b'] }}"),
    ("escaped", "{{ 'a' is escaped }} {{ 'a' | safe }}{{ '<&>' | escape }}{{ '<b>' | e }}{{ '<i>' }}"),
    ("unknown test", "{{ 1 is nosuchtest }}"),
    ("unknown filter", "{{ 1 | nosuchfilter }}"),
    ("unknown filter unused", "{% if false %}{{ 1 | nosuchfilter }}{% endif %}ok"),
    # Filters.
    ("tojson", "{{ nested | tojson }} {{ text | tojson }} {{ '<&\\'\">é🦀\\n' | tojson }} {{ f | tojson }} {{ nothing | tojson }} {{ yes | tojson }} {{ g | tojson }} {{ w | tojson }}", "values"),
    ("tojson indent", "{{ nested | tojson(indent=2) }}\n{{ [] | tojson(indent=4) }} {{ {} | tojson(indent=4) }} {{ [1, [2, {}]] | tojson(2) }} {{ [1] | tojson(indent=0) }}", "values"),
    ("tojson options", "{{ pairs | tojson(sort_keys=true) }} {{ 'é🦀' | tojson(ensure_ascii=true) }} {{ nested | tojson(separators=(',', ':')) }} {{ [1,2] | tojson(indent=2, separators=(',', ' : ')) }}", "values"),
    ("tojson of tools", "{{ tools | tojson }}{% for t in tools or [] %}{{ t | tojson(indent=4) }}{% endfor %}", "tools", "plain"),
    ("tojson tuple", "{{ (1, 'a') | tojson }} {{ {1: 2, none: 3} | tojson }} {{ pairs.items() | list | tojson }}", "values"),
    ("tojson undefined", "{{ missing | tojson }}"),
    ("map", "{{ people | map(attribute='name') | join(', ') }} {{ words | map('upper') | list }} {{ people | map(attribute='on', default='?') | list }} {{ [' a '] | map('trim') | join }} {{ [[1, 2]] | map('first') | list }} {{ words | map('replace', 'a', 'z') | list }}", "values"),
    ("select", "{{ numbers | select('gt', 1) | list }} {{ numbers | reject('odd') | list }} {{ [0, 1, ''] | select | list }} {{ [0, 1] | reject | list }} {{ ['a', 1] | select('string') | list }}", "values"),
    ("selectattr", "{{ people | selectattr('on') | map(attribute='name') | list }} {{ people | selectattr('age', 'equalto', 3) | map(attribute='name') | list }} {{ people | rejectattr('on') | list | length }} {{ people | selectattr('on', 'defined') | list | length }} {{ messages | selectattr('role', 'eq', 'user') | list | length }} {{ people | selectattr('age', '==', 5) | first }} {{ people | rejectattr('age', 'in', [5]) | list | length }}", "values"),
    ("select printed", "{{ (numbers | select('odd')) is iterable }} {{ numbers | select('odd') | first }}", "values"),
    ("join", "{{ words | join }} {{ words | join(', ') }} {{ numbers | join('-') }} {{ people | join(',', attribute='age') }} {{ 'abc' | join('.') }} {{ [1, none, true] | join(' ') }} {{ [] | join('x') }}|", "values"),
    ("first last", "{{ words | first }} {{ words | last }} [{{ hollow | first }}] {{ 'abc' | first }} {{ 'abc' | last }}", "values"),
    ("sort", "{{ words | sort }} {{ words | sort(case_sensitive=true) }} {{ numbers | sort(reverse=true) }} {{ people | sort(attribute='age') | map(attribute='name') | list }} {{ people | sort(attribute='age,name') | map(attribute='name') | list }}", "values"),
    ("unique", "{{ ['a', 'A', 'b', 'a'] | unique | list }} {{ [1, 1, 2] | unique | list }} {{ people | unique(attribute='age') | map(attribute='name') | list }}", "values"),
    ("min max sum", "{{ numbers | min }} {{ numbers | max }} {{ numbers | sum }} {{ people | sum(attribute='age') }} {{ people | max(attribute='age') }} {{ [1.5, 2] | sum }} {{ numbers | sum(start=10) }} [{{ [] | min }}]", "values"),
    ("length", "{{ text | length }} {{ words | count }} {{ pairs | length }} {{ 'é🦀' | length }}", "values"),
    ("length of number", "{{ 5 | length }}"),
    ("reverse", "{{ numbers | reverse | list }} {{ 'abc' | reverse }}", "values"),
    ("letters", "{{ 'aBc dEf' | upper }}{{ 'aBc' | lower }}{{ \"they're here-now a\" | title }}{{ 'aBc' | capitalize }} {{ 5 | upper }}"),
    ("trim", "[{{ '  a ' | trim }}][{{ 'xax' | trim('x') }}][{{ 5 | trim }}]"),
    ("replace filter", "{{ 'aaa' | replace('a', 'b') }} {{ 'aaa' | replace('a', 'b', 1) }} {{ 15 | replace('1', '2') }}"),
    ("int float", "{{ '42' | int }} {{ 'x' | int }} {{ 'x' | int(7) }} {{ '3.7' | int }} {{ 3.9 | int }} {{ '0x1f' | int(base=16) }} {{ '1.5' | float }} {{ 'x' | float }} {{ none | int }} {{ true | int }} {{ ' 5 ' | int }}"),
    ("round abs", "{{ 2.5 | round }} {{ 2.567 | round(1) }} {{ 2.1 | round(method='ceil') }} {{ -2.5 | abs }} {{ 3.5 | round | int }} {{ 7 | round }} {{ 2.9 | round(0, 'floor') }}"),
    ("list", "{{ 'abc' | list }} {{ pairs | list }} {{ range(3) | list }} {{ (1, 2) | list }} {{ none | list }}", "plain"),
    ("list ok", "{{ 'abc' | list }} {{ pairs | list }} {{ range(3) | list }} {{ range(1, 7, 2) | list }} {{ range(3, 0, -1) | list }}", "values"),
    ("indent", "{{ many | indent }}|{{ many | indent(2, true) }}|{{ many | indent(2, blank=true) }}|{{ many | indent('> ') }}", "values"),
    ("wordwrap", "{{ 'a bb ccc dddd eeeee' | wordwrap(6) }}"),
    ("truncate", "{{ 'hello big world' | truncate(9) }} {{ 'hello' | truncate(9) }} {{ 'hello big world' | truncate(9, true) }} {{ 'hello big world' | truncate(9, false, '~', 0) }}"),
    ("wordcount", "{{ 'a b  c' | wordcount }}"),
    ("batch slice", "{{ [1, 2, 3, 4, 5] | batch(2) | list }} {{ [1, 2, 3] | batch(2, 0) | list }} {{ [1, 2, 3, 4, 5] | slice(2) | list }}"),
    ("groupby", "{% for age, group in people | groupby('age') %}{{ age }}:{{ group | map(attribute='name') | join(',') }};{% endfor %}", "values"),
    ("dictsort", "{{ pairs | dictsort }} {{ pairs | dictsort(by='value') }} {{ pairs | dictsort(reverse=true) }}", "values"),
    ("attr", "[{{ pairs | attr('a') }}]", "values"),
    ("striptags", "{{ '<b>a</b>  b' | striptags }} {{ 'a b&c/' | urlencode }}"),
    ("filesizeformat", "{{ 1500 | filesizeformat }} {{ 10 | filesizeformat }}"),
    ("center filter", "[{{ 'ab' | center(6) }}]"),
    ("pprint", "{{ [1, 'a'] | pprint }} {{ 'x' | pprint }}"),
    ("string filter", "{{ [1, 'a'] | string }} {{ none | string | length }} {{ {'a': none} | string }}"),
    ("xmlattr", "{{ {'a': 1, 'b': none} | xmlattr }}"),
    ("filter precedence", "{{ 'a' + 'b' | upper }} {{ ('a' + 'b') | upper }} {{ -5 | abs }} {{ 'x' ~ 'y' | upper ~ 'z' }} {{ 'a' | upper == 'A' }}"),
    ("filter block", "{% filter upper %}abc {{ text }}{% endfilter %}{% filter trim | upper %}  x {% endfilter %}{% filter replace('a', 'b') %}aa{% endfilter %}", "values"),
    # Statements.
    ("for", "{% for x in [1, 2, 3] %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.previtem }}{{ loop.nextitem }}{{ loop.depth }};{% endfor %}"),
    ("for else", "{% for x in [] %}x{% else %}none{% endfor %}{% for x in [1] if x > 1 %}x{% else %}none{% endfor %}"),
    ("for filter", "{% for x in [1, 2, 3, 4] if x is even %}{{ loop.index }}:{{ x }}{% if not loop.last %},{% endif %}{% endfor %}"),
    ("for pairs", "{% for a, b in [(1, 2), [3, 4]] %}{{ a }}{{ b }}{% endfor %}{% for a, (b, c) in [(1, (2, 3))] %}{{ a }}{{ b }}{{ c }}{% endfor %}"),
    ("for letters", "{% for c in 'aé🦀' %}[{{ c }}]{% endfor %}"),
    ("for number", "{% for x in 5 %}{% endfor %}"),
    ("for none", "{% for x in none %}{% endfor %}"),
    ("for wrong pairs", "{% for a, b in [(1, 2, 3)] %}{% endfor %}"),
    ("nested for", "{% for a in [1, 2] %}{% set outer = loop %}{% for b in [1, 2] %}{{ outer.index }}.{{ loop.index }} {% endfor %}{% endfor %}"),
    ("loop cycle", "{% for x in range(4) %}{{ loop.cycle('a', 'b', 'c') }}{% endfor %}{% for x in [1, 1, 2] %}{{ loop.changed(x) }}{% endfor %}"),
    ("loop recursive", "{% for x in [[1, [2]], 3] recursive %}{% if x is iterable %}<{{ loop(x) }}>{% else %}{{ x }}{% endif %}{% endfor %}"),
    ("break continue", "{% for x in range(9) %}{% if x == 1 %}{% continue %}{% endif %}{% if x == 4 %}{% break %}{% endif %}{{ x }}{% endfor %}"),
    ("break dashes", "{%- for x in range(9) -%}\n  {%- if x == 2 -%}\n    {%- break -%}\n  {%- endif -%}\n  {{ x }}\n{%- endfor -%}"),
    ("break outside", "{% break %}"),
    ("scopes", "{% set a = 1 %}{% for x in [1] %}{% set a = 2 %}{{ a }}{% endfor %}{{ a }}{% if true %}{% set a = 3 %}{% endif %}{{ a }}{% with a = 4, b = 5 %}{{ a }}{{ b }}{% set a = 6 %}{% endwith %}{{ a }}"),
    ("scope of a loop over turns", "{% set seen = 0 %}{% for m in messages %}{% set seen = seen + 1 %}{{ seen }}{% endfor %}{{ seen }}", "talk"),
    ("namespace", "{% set ns = namespace(a=1, b='x') %}{% for x in [1, 2] %}{% set ns.a = ns.a + x %}{% set ns.c = 'new' %}{% endfor %}{{ ns.a }}{{ ns.b }}{{ ns.c }}{{ ns.d is defined }}"),
    ("namespace of a dict", "{% set ns = namespace({'a': 1}) %}{{ ns.a }}{{ ns['a'] }}{% set ns.a = none %}{{ ns.a is none }}"),
    ("set on a dict", "{% set d = {} %}{% set d.a = 1 %}{{ d }}"),
    ("set pairs", "{% set a, b = 1, 2 %}{{ a }}{{ b }}{% set a, b = b, a %}{{ a }}{{ b }}{% set c = 1, 2 %}{{ c }}"),
    ("set block", "{% set x %}a {{ 1 + 1 }}\n{% endset %}[{{ x }}]{% set y | upper %}abc{% endset %}{{ y }}{{ x is string }}"),
    ("set inline if", "{% set a = 'x' if missing else 'y' %}{{ a }}{% set b = 'x' if missing %}[{{ b }}]{{ b is defined }}"),
    ("macro", "{% macro f(a, b='B', c=none) %}{{ a }}{{ b }}{{ c }}{% endmacro %}{{ f(1) }} {{ f(1, 2) }} {{ f(b=3, a=4) }} {{ f() }} {{ f('x') | upper }} {{ f('x') ~ 'y' }} {{ f('x') + 'y' }} {{ f('x') is string }}"),
    ("macro varargs", "{% macro f(a) %}{{ a }}{{ varargs }}{{ kwargs }}{% endmacro %}{{ f(1, 2, 3, x=4) }}"),
    ("macro too many", "{% macro f(a) %}{{ a }}{% endmacro %}{{ f(1, 2) }}"),
    ("macro unknown keyword", "{% macro f(a) %}{{ a }}{% endmacro %}{{ f(1, z=2) }}"),
    ("macro sees globals", "{% set g = 5 %}{% macro f() %}{{ g }}{{ bos_token }}{{ messages[0].role }}{% endmacro %}{{ f() }}"),
    ("macro in a loop", "{% macro f(x) %}{{ x }}{{ loop is defined }}{% endmacro %}{% for i in [1] %}{{ f(i) }}{% endfor %}"),
    ("macro name", "{% macro f(a, b=1) %}{% endmacro %}{{ f.name }}"),
    ("macro arguments", "{% macro f(a, b=1) %}{% endmacro %}{{ f.arguments }}"),
    ("slices of slices", "{{ messages[1:][0].role }}{{ messages[:2][-1].content[:7] }}{{ (messages | map(attribute='role') | list)[::-1] }}{{ 'abc'[1:][0] }}{{ [1, 2, 3, 4][-3:-1] }}{{ 'abcdef'[4:1:-2] }}{{ {'a': 'xyz'}['a'][1:] }}", "talk"),
    ("slice of undefined", "{{ missing[1:] }}"),
    ("slice beyond", "{{ [1, 2][-9:9] }}{{ 'ab'[3:] }}|{{ [][:1] }}{{ 'ab'[:none] }}"),
    ("kinds of calls", "{{ messages[-1]['content'].strip().split('\\n')[0][0:3] ~ '|' ~ (messages | length) % 2 ~ '|' ~ '%s' % messages[0].role[0] }}", "talk"),
    ("a key that is a method's name", "{% set p = {'items': [1], 'keys': 2, 'values': 3, 'get': 4} %}{% for k, v in p.items() %}{{ k }}{% endfor %}{{ p.get('get') }}{{ p['items'][0] }}{{ p.keys() | list }}"),
    ("conditional content", "{% set last = messages[-1] %}{{ (last.content | trim)[:3] + ('?' if '?' in messages[0].content else '!') * 2 }}{{ 'a' if messages | length > 2 else 'b' }}", "talk", "plain"),
    ("minus in a loop", "{% for m in messages %}{% if loop.index0 == messages | length - 1 %}{{ m.role }}{% endif %}{% if loop.revindex - 1 == 0 and not loop.first %}!{% endif %}{% endfor %}", "talk"),
    ("recursive macro", "{% macro f(n) %}{{ n }}{% if n > 0 %}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(3) }}"),
    ("caller", "{% macro wrap(tag) %}<{{ tag }}>{{ caller() }}</{{ tag }}>{% endmacro %}{% call wrap('b') %}in {{ 1 }}{% endcall %}"),
    ("caller with arguments", "{% macro each(list) %}{% for x in list %}{{ caller(x) }}{% endfor %}{% endmacro %}{% call(x) each([1, 2]) %}[{{ x }}]{% endcall %}"),
    ("star arguments", "{% macro f(a, b) %}{{ a }}-{{ b }}{% endmacro %}{{ f(*[1, 2]) }} {{ f(**{'a': 3, 'b': 4}) }}"),
    ("if chain", "{% if 0 %}a{% elif 1 %}b{% else %}c{% endif %}{% if 0 %}a{% elif 0 %}b{% else %}c{% endif %}"),
    ("block", "{% block a %}x{{ 1 }}{% endblock %}"),
    ("globals", "{% set c = cycler('a', 'b') %}{{ c.next() }}{{ c.next() }}{{ c.current }}{% set j = joiner(', ') %}{{ j() }}a{{ j() }}b"),
    ("do is refused", "{% do 1 %}"),
    ("unknown tag", "{% nosuch %}"),
    ("unclosed", "{{ 1"),
    ("unclosed if", "{% if true %}x"),
    ("stray end", "x{% endif %}"),
    ("raise", "{{ raise_exception('no') }}"),
    ("raise not reached", "{{ raise_exception('no') if false else 'ok' }}{% if false %}{{ raise_exception('no') }}{% endif %}"),
    ("strftime", "{{ strftime_now('year') }}"),
    ("comments", "a{# {{ 1 }} {% if %} #}b{#- c -#} d{# multi\nline #}\ne"),
    ("braces in strings", "{{ '}}' }}{{ '%}' }}{% set x = '%}' %}{{ x }}{{ {'a': {'b': 1}}['a']['b'] }}{{ {'a': 1}['a'] }}"),
    ("names", "{{ messages[0]['content'] }} {{ messages[0].content }} {{ messages[0]['role'] }}"),
    ("underscore", "{{ ''.__class__ }}|"),
    ("dunder call", "{{ ''.__class__.__mro__ }}"),
    ("range", "{{ range(3) | list }}{% for i in range(messages | length) %}{{ messages[i].role }}{% endfor %}{{ range(5)[2] }}", "talk"),
    ("range printed", "{{ range(3) }}"),
    ("self", "{{ loop is defined }}{{ namespace is defined }}{{ range is callable }}"),
    ("import is refused", "{% include 'x' %}"),
    ("trailing commas", "{{ [1, 2,] }} {{ {'a': 1,} }} {{ (1,) }} {{ dict(a=1,) }}"),
    ("not precedence", "{{ not true or true }} {{ not (true or true) }} {{ true and not false }} {{ false or not false and true }}"),
    ("if over lines", "{%- if messages[0].role == 'user'\n   and messages[0].content\n   is string -%}\nyes\n{%- endif -%}"),
    ("else with dashes", "{%- if false -%} a {%- else %} b {% endif %} c"),
    ("set with filter", "{% set c = messages[0].content | trim | upper %}{{ c }}"),
    ("content parts", "{% set parts = [{'type': 'text', 'text': 'a'}, {'type': 'image'}, {'type': 'text', 'text': 'b'}] %}{% for p in parts %}{% if p.type == 'text' %}{{ p.text }}{% elif 'image' in p or p['type'] == 'image' %}<image>{% endif %}{% endfor %}{{ parts | selectattr('type', 'equalto', 'text') | map(attribute='text') | join('|') }}"),
    ("content is not a list", "{% for m in messages %}{% if m.content is string %}s{% elif m.content is iterable %}i{% endif %}{% if m.content is iterable and m.content is not string and m.content is not mapping %}list{% endif %}{% endfor %}", "talk"),
    ("last message", "{{ messages[-1].role }} {{ (messages | last).content }} {{ messages | length }} {{ messages[-1]['content'][:4] }} {{ loop_messages is defined }}", "talk", "tools"),
    ("tool calls", "{% for m in messages %}{% if m.tool_calls is defined and m.tool_calls %}{% for c in m.tool_calls %}{{ c.function.name }}({% for k, v in c.function.arguments.items() %}{{ k }}={{ v }}{% if not loop.last %}, {% endif %}{% endfor %}){% endfor %}{% endif %}{% endfor %}", "tools"),
    ("tool arguments printed", "{% for m in messages %}{% for c in m.tool_calls or [] %}{{ c.function.arguments }}{{ c.function.arguments | tojson }}{{ c.id[:1] }}{% endfor %}{% endfor %}", "tools"),
    ("kwargs", "{{ enable_thinking | default(true) }} {{ enable_thinking is defined and enable_thinking }} {% if enable_thinking is defined and not enable_thinking %}quiet{% endif %}", "plain", "thinking", "quiet"),
    ("tools none", "{{ tools is none }} {{ tools is not none }} {{ tools | default([]) }} {% if tools %}t{% endif %}{{ documents is none }}", "plain", "tools"),
]
