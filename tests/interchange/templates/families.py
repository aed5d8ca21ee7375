"""Chat templates that behave as those of published families do.

Each is written from its family's published behaviour: what it renders, what it
refuses, what it trims and where it puts a system text. The sentences are ours.
"""

from typing import Any
from typing import NamedTuple

_REFUSE = "{{ raise_exception('%s') }}"
_ALTERNATE = (
  "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
  + _REFUSE % 'roles must alternate'
  + '{% endif %}'
)
_SPLIT = (
  "{% if messages[0].role == 'system' %}"
  '{% set system = messages[0].content %}{% set rest = messages[1:] %}'
  "{% else %}{% set system = '' %}{% set rest = messages %}{% endif %}"
)
_OPEN = '{% if add_generation_prompt %}{{ '
_CLOSE = ' }}{% endif %}'


class Family(NamedTuple):
  """A template and the tokens that it writes.

  Attributes:
    template: the Jinja template.
    tokens: special tokens beside <s> and </s>.
    added: tokens that are not special.
    settings: further fields of tokenizer_config.json.
  """

  template: str
  tokens: tuple[str, ...] = ()
  added: tuple[str, ...] = ()
  settings: dict[str, Any] = {}


_CHATML = ('<|im_start|>', '<|im_end|>')
_TURNS = ('<start_of_turn>', '<end_of_turn>')
_HEADERS = ('<|start_header_id|>', '<|end_header_id|>', '<|eot_id|>')
_BARS = ('<|system|>', '<|user|>', '<|assistant|>', '<|end|>')
_ROLES = ('<|role_sep|>', '<|message_sep|>')


def chatml(before: str = '', opening: str = r"'<|im_start|>assistant\n'"):
  return (
    before
    + '{% for m in messages %}'
    + r"{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}"
    + '{% endfor %}'
    + _OPEN
    + opening
    + _CLOSE
  )


CHATML = chatml()
# A system text is refused; marks are plain text.
MISTRAL = (
  '{{ bos_token }}{% for m in messages %}'
  + _ALTERNATE
  + "{% if m.role == 'user' %}{{ '[INST] ' + m.content + ' [/INST]' }}"
  "{% elif m.role == 'assistant' %}{{ m.content + eos_token }}"
  '{% else %}' + _REFUSE % 'only users and assistants' + '{% endif %}'
  '{% endfor %}'
)
# The same with a space behind marks and before the end.
MISTRAL_SPACED = MISTRAL.replace(
  '{{ m.content + eos_token }}', "{{ ' ' + m.content + eos_token + ' ' }}"
)
# A system text opens the last user text.
MISTRAL_LAST = (
  "{% if messages[0]['role'] == 'system' %}"
  "{% set system = messages[0]['content'] %}{% set rest = messages[1:] %}"
  '{% else %}{% set rest = messages %}{% endif %}'
  '{{ bos_token }}{% for m in rest %}'
  + _ALTERNATE
  + "{% if m.role == 'user' %}"
  '{% if loop.last and system is defined %}'
  r"{{ '[INST] ' + system + '\n\n' + m.content + '[/INST]' }}"
  "{% else %}{{ '[INST] ' + m.content + '[/INST]' }}{% endif %}"
  "{% elif m.role == 'assistant' %}"
  "{{ ' ' + m.content | trim + eos_token }}"
  '{% else %}' + _REFUSE % 'unknown role' + '{% endif %}{% endfor %}'
)
# A system text of its own token, with a default that names the day.
MISTRAL_DAY = (
  "{% set today = strftime_now('%Y-%m-%d') %}"
  "{% set default = 'You are a model. Today is ' + today + '.' %}"
  '{{ bos_token }}'
  "{% if messages[0]['role'] == 'system' %}"
  "{% set system = messages[0]['content'] %}{% set rest = messages[1:] %}"
  '{% else %}{% set system = default %}{% set rest = messages %}{% endif %}'
  "{{ '[SYSTEM_PROMPT]' + system + '[/SYSTEM_PROMPT]' }}"
  '{% for m in rest %}'
  "{% if m.role == 'user' %}{{ '[INST]' + m.content + '[/INST]' }}"
  "{% elif m.role == 'system' %}"
  "{{ '[SYSTEM_PROMPT]' + m.content + '[/SYSTEM_PROMPT]' }}"
  "{% elif m.role == 'assistant' %}{{ m.content + eos_token }}"
  '{% else %}' + _REFUSE % 'unknown role' + '{% endif %}{% endfor %}'
)
# A user's turn opens the reply, and a system text is left out in silence.
PHI3 = (
  '{{ bos_token }}{% for m in messages %}'
  "{% if m.role == 'user' %}"
  r"{{ '<|user|>\n' + m.content + '<|end|>\n<|assistant|>\n' }}"
  r"{% elif m.role == 'assistant' %}{{ m.content + '<|end|>\n' }}{% endif %}"
  '{% endfor %}'
)
# Its successor: all roles alike, and an end where no reply follows.
PHI35 = (
  '{% for m in messages %}'
  r"{% if m.role == 'system' and m.content %}"
  r"{{ '<|system|>\n' + m.content + '<|end|>\n' }}"
  r"{% elif m.role == 'user' %}{{ '<|user|>\n' + m.content + '<|end|>\n' }}"
  r"{% elif m.role == 'assistant' %}"
  r"{{ '<|assistant|>\n' + m.content + '<|end|>\n' }}{% endif %}"
  '{% endfor %}'
  r"{% if add_generation_prompt %}{{ '<|assistant|>\n' }}"
  '{% else %}{{ eos_token }}{% endif %}'
)
GEMMA = (
  "{{ bos_token }}{% if messages[0]['role'] == 'system' %}"
  + _REFUSE % 'no system role'
  + '{% endif %}{% for m in messages %}'
  + _ALTERNATE
  + "{% if m.role == 'assistant' %}{% set role = 'model' %}"
  '{% else %}{% set role = m.role %}{% endif %}'
  r"{{ '<start_of_turn>' + role + '\n' + m.content | trim + '<end_of_turn>\n'}}"
  '{% endfor %}' + _OPEN + r"'<start_of_turn>model\n'" + _CLOSE
)
# A system text opens the first user turn.
GEMMA3 = (
  '{{ bos_token }}'
  + _SPLIT
  + '{% for m in rest %}'
  + _ALTERNATE
  + r"{{ '<start_of_turn>' + ('model' if m.role == 'assistant' else m.role)"
  r" + '\n' }}"
  r"{% if loop.first and system %}{{ system + '\n\n' }}{% endif %}"
  r"{{ m.content | trim + '<end_of_turn>\n' }}{% endfor %}"
  + _OPEN
  + r"'<start_of_turn>model\n'"
  + _CLOSE
)
# The same, trimmed with the first user text as one.
GEMMA3_TRIMMED = (
  '{{ bos_token }}'
  + _SPLIT
  + r"{% set first = system + '\n\n' if system else '' %}"
  '{% for m in rest %}'
  + _ALTERNATE
  + r"{{ '<start_of_turn>' + ('model' if m.role == 'assistant' else m.role)"
  r" + '\n' }}"
  '{% if loop.first %}{{ (first + m.content) | trim }}'
  '{% else %}{{ m.content | trim }}{% endif %}'
  r"{{ '<end_of_turn>\n' }}{% endfor %}"
  + _OPEN
  + r"'<start_of_turn>model\n'"
  + _CLOSE
)
# The first text is trimmed together with the system text before it.
LLAMA2 = (
  "{% if messages[0]['role'] == 'system' %}"
  "{% set rest = messages[1:] %}{% set system = messages[0]['content'] %}"
  '{% else %}{% set rest = messages %}{% set system = false %}{% endif %}'
  '{% for m in rest %}' + _ALTERNATE + '{% if loop.index0 == 0 and system %}'
  r"{% set content = '<<SYS>>\n' + system + '\n<</SYS>>\n\n' + m.content %}"
  '{% else %}{% set content = m.content %}{% endif %}'
  "{% if m.role == 'user' %}"
  "{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}"
  "{% elif m.role == 'assistant' %}"
  "{{ ' ' + content.strip() + ' ' + eos_token }}{% endif %}{% endfor %}"
)
# Roles are plain text before a token; the first of them opens the chat.
GIGACHAT = (
  _SPLIT + "{{ 'developer system<|role_sep|>' + (system or 'Be good.')"
  " + '<|message_sep|>' }}"
  '{% for m in rest %}'
  "{{ m.role + '<|role_sep|>' + m.content + '<|message_sep|>' }}"
  "{% if m.role == 'user' %}{{ 'available functions<|role_sep|>[]"
  "<|message_sep|>' }}{% endif %}{% endfor %}"
  + _OPEN
  + "'assistant<|role_sep|>'"
  + _CLOSE
)
# The same, with tokens by number.
GIGACHAT_NUMBERED = (
  _SPLIT + '{% set a = additional_special_tokens[0] %}'
  '{% set b = additional_special_tokens[1] %}'
  '{{ bos_token }}{% if system %}{{ system + b }}{% endif %}'
  '{% for m in rest %}' + _ALTERNATE + '{{ m.role + a + m.content + b }}'
  '{% endfor %}' + _OPEN + "'assistant' + a" + _CLOSE
)
# A system turn tells mode and day; words in the system text change the mode.
SMOLLM3 = (
  '{% if enable_thinking is not defined %}'
  '{% set enable_thinking = true %}{% endif %}'
  "{% set mode = '/think' if enable_thinking else '/no_think' %}"
  "{% set custom = '' %}{% set rest = messages %}"
  "{% if messages[0].role == 'system' %}"
  '{% set text = messages[0].content %}{% set rest = messages[1:] %}'
  "{% if '/no_think' in text %}{% set mode = '/no_think' %}"
  "{% elif '/think' in text %}{% set mode = '/think' %}{% endif %}"
  "{% set custom = text.replace('/no_think', '').replace('/think', '')"
  '.rstrip() %}{% endif %}'
  "{% if '/system_override' in custom %}"
  r"{{ '<|im_start|>system\n' + custom.replace('/system_override', '').rstrip()"
  r" + '<|im_end|>\n' }}"
  r"{% else %}{{ '<|im_start|>system\n## Metadata\n\nToday Date: '"
  r" + strftime_now('%d %B %Y') + '\nReasoning Mode: ' + mode + '\n\n' }}"
  r"{% if custom %}{{ '## Custom Instructions\n\n' + custom }}"
  '{% else %}Be of use.{% endif %}'
  r"{{ '<|im_end|>\n' }}{% endif %}"
  '{% for m in rest %}'
  "{% if m.role == 'user' %}"
  r"{{ '<|im_start|>user\n' + m.content + '<|im_end|>\n' }}"
  "{% elif m.role == 'assistant' %}"
  "{% if mode == '/think' %}"
  r"{{ '<|im_start|>assistant\n' + m.content.lstrip('\n') + '<|im_end|>\n' }}"
  r"{% else %}{{ '<|im_start|>assistant\n<think>\n\n</think>\n'"
  r" + m.content.lstrip('\n') + '<|im_end|>\n' }}{% endif %}{% endif %}"
  '{% endfor %}{% if add_generation_prompt %}'
  r"{% if mode == '/think' %}{{ '<|im_start|>assistant\n' }}"
  r"{% else %}{{ '<|im_start|>assistant\n<think>\n\n</think>\n' }}{% endif %}"
  '{% endif %}'
)
# A default system text, and branches for tools.
QWEN25 = (
  '{% if tools %}{{ "<|im_start|>system\n# Tools" }}'
  '{% for tool in tools %}{{ tool | tojson }}{% endfor %}<|im_end|>'
  "{% else %}{% if messages[0]['role'] == 'system' %}"
  r"{{ '<|im_start|>system\n' + messages[0]['content'] + '<|im_end|>\n' }}"
  r"{% else %}{{ '<|im_start|>system\nYou are a model.<|im_end|>\n' }}"
  '{% endif %}{% endif %}'
  '{% for m in messages %}'
  "{% if m.role == 'user' or (m.role == 'system' and not loop.first)"
  " or (m.role == 'assistant' and not m.tool_calls) %}"
  r"{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}"
  "{% elif m.role == 'tool' %}{{ 'tool' }}{% endif %}{% endfor %}"
  + _OPEN
  + r"'<|im_start|>assistant\n'"
  + _CLOSE
)
# Reasoning is cut out of the history before the last user text.
QWEN3 = (
  '{% set ns = namespace(tool=true, last=messages | length - 1) %}'
  '{% for m in messages[::-1] %}'
  '{% set index = messages | length - 1 - loop.index0 %}'
  "{% if ns.tool and m.role == 'user' and not (m.content.startswith("
  "'<tool_response>') and m.content.endswith('</tool_response>')) %}"
  '{% set ns.tool = false %}{% set ns.last = index %}{% endif %}{% endfor %}'
  '{% for m in messages %}'
  "{% if m.role == 'assistant' %}"
  "{% set content, thought = m.content, '' %}"
  "{% if '</think>' in content %}"
  r"{% set thought = content.split('</think>')[0].rstrip('\n')"
  r".split('<think>')[-1].lstrip('\n') %}"
  r"{% set content = content.split('</think>')[-1].lstrip('\n') %}{% endif %}"
  '{% if loop.index0 > ns.last and (loop.last or thought) %}'
  r"{{ '<|im_start|>assistant\n<think>\n' + thought.strip('\n')"
  r" + '\n</think>\n\n' + content.lstrip('\n') }}"
  r"{% else %}{{ '<|im_start|>assistant\n' + content }}{% endif %}"
  r"{{ '<|im_end|>\n' }}"
  r"{% else %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}"
  '{% endif %}{% endfor %}'
  r"{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}"
  '{% if enable_thinking is defined and enable_thinking is false %}'
  r"{{ '<think>\n\n</think>\n\n' }}{% endif %}{% endif %}"
)
# A reply's opening has an empty thought, which the history has not.
THINKING = (
  '{% set ns = namespace(last=0) %}'
  '{% for m in messages %}'
  "{% if m.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}"
  '{% endfor %}'
  '{% for m in messages %}'
  "{{ '<|im_start|>' ~ m.role ~ '\n' }}"
  "{% if m.role == 'assistant' and loop.index0 > ns.last %}"
  "{{ '<think>\n\n</think>\n\n' }}{% endif %}"
  "{{ m.content ~ '<|im_end|>\n' }}"
  '{% endfor %}'
  '{% if add_generation_prompt %}'
  "{{ '<|im_start|>assistant\n' }}"
  "{% if not enable_thinking %}{{ '<think>\n\n</think>\n\n' }}{% endif %}"
  '{% endif %}'
)
# All system texts are collected at the beginning; a reply begins to reason.
DEEPSEEK = (
  "{% set ns = namespace(system='', first=true) %}"
  "{% for m in messages %}{% if m.role == 'system' %}"
  '{% if ns.first %}{% set ns.system = m.content %}'
  '{% set ns.first = false %}'
  r"{% else %}{% set ns.system = ns.system + '\n\n' + m.content %}{% endif %}"
  '{% endif %}{% endfor %}{{ bos_token }}{{ ns.system }}'
  '{% for m in messages %}'
  "{% if m.role == 'user' %}{{ '<｜User｜>' + m.content }}"
  "{% elif m.role == 'assistant' %}"
  "{% set content = m.content.split('</think>')[-1] %}"
  "{{ '<｜Assistant｜>' + content + eos_token }}{% endif %}{% endfor %}"
  + _OPEN
  + r"'<｜Assistant｜><think>\n'"
  + _CLOSE
)
DEEPSEEK_PLAIN = DEEPSEEK.replace(r'<think>\n', '').replace(
  ".split('</think>')[-1]", ''
)
ZEPHYR = (
  '{% for m in messages %}'
  r"{{ '<|' + m.role + '|>\n' + m.content + eos_token + '\n' }}"
  r"{% if loop.last and add_generation_prompt %}{{ '<|assistant|>\n' }}"
  '{% endif %}{% endfor %}'
)
# No token but the end of a reply.
VICUNA = (
  _SPLIT + "{{ bos_token + (system or 'A chat.') + ' ' }}{% for m in rest %}"
  "{% if m.role == 'user' %}{{ 'USER: ' + m.content + ' ' }}"
  "{% elif m.role == 'assistant' %}"
  "{{ 'ASSISTANT: ' + m.content + eos_token }}{% endif %}{% endfor %}"
  + _OPEN
  + "'ASSISTANT:'"
  + _CLOSE
)
ALPACA = (
  '{{ bos_token }}{% for m in messages %}'
  "{% if m.role == 'system' %}{{ m.content + '\n\n' }}"
  "{% elif m.role == 'user' %}{{ '### Instruction:\n' + m.content + '\n\n' }}"
  "{% else %}{{ '### Response:\n' + m.content + eos_token + '\n\n' }}"
  '{% endif %}{% endfor %}' + _OPEN + r"'### Response:\n'" + _CLOSE
)
COMMAND = (
  '{{ bos_token }}' + _SPLIT + '{% if system %}'
  "{{ '<|START|><|SYSTEM|>' + system + '<|END|>' }}{% endif %}"
  '{% for m in rest %}' + _ALTERNATE + '{% set content = m.content %}'
  "{% if m.role == 'user' %}"
  "{{ '<|START|><|USER|>' + content.strip() + '<|END|>' }}"
  "{% elif m.role == 'assistant' %}"
  "{{ '<|START|><|BOT|>' + content.strip() + '<|END|>' }}{% endif %}"
  '{% endfor %}' + _OPEN + "'<|START|><|BOT|>'" + _CLOSE
)
GRANITE = (
  "{% if messages[0]['role'] == 'system' %}"
  "{% set system = messages[0]['content'] %}{% set rest = messages[1:] %}"
  "{% else %}{% set system = 'Knowledge Cutoff Date: May 2024.\nToday: '"
  " + strftime_now('%B %d, %Y') + '.' %}"
  '{% if tools and documents %}{% set system = system + " Use both." %}'
  '{% elif documents %}{% set system = system + " Use documents." %}'
  '{% endif %}{% set rest = messages %}{% endif %}'
  "{{ '<|start_of_role|>system<|end_of_role|>' + system + '</s>\n' }}"
  '{% for m in rest %}'
  "{{ '<|start_of_role|>' + m.role + '<|end_of_role|>' + m.content"
  " + '</s>\n' }}"
  '{% if loop.last and add_generation_prompt %}'
  "{{ '<|start_of_role|>assistant' }}"
  "{{ '<|end_of_role|>' }}{% endif %}{% endfor %}"
)
# The last reply ends otherwise than those before.
OLMO = (
  '{{ bos_token }}{% for m in messages %}'
  r"{% if m.role == 'system' %}{{ '<|system|>\n' + m.content + '\n' }}"
  r"{% elif m.role == 'user' %}{{ '<|user|>\n' + m.content + '\n' }}"
  "{% elif m.role == 'assistant' %}{% if not loop.last %}"
  r"{{ '<|assistant|>\n' + m.content + eos_token + '\n' }}"
  r"{% else %}{{ '<|assistant|>\n' + m.content + eos_token }}{% endif %}"
  '{% endif %}'
  r"{% if loop.last and add_generation_prompt %}{{ '<|assistant|>\n' }}"
  '{% endif %}{% endfor %}'
)
# No token at all, and texts of users that are trimmed inside, too.
FALCON = (
  '{% for m in messages %}'
  "{% if not loop.first %}{{ '\n\n' }}{% endif %}"
  "{% if m.role == 'system' %}{{ m.content.strip() }}"
  "{% elif m.role == 'user' %}{{ 'User: ' + m.content.strip()"
  r".replace('\r\n', '\n').replace('\n\n', '\n') }}"
  "{% elif m.role == 'assistant' %}{{ 'Falcon: ' + m.content.strip() }}"
  '{% endif %}{% endfor %}'
  r"{% if add_generation_prompt %}{{ '\n\nFalcon:' }}{% endif %}"
)
FALCON_PLAIN = FALCON.replace(
  r".replace('\r\n', '\n').replace('\n\n', '\n')", ''
)
# A system text behind everything, without a role.
YI = (
  "{% if messages[0]['role'] == 'system' %}"
  "{% set system = messages[0]['content'] %}{% endif %}"
  '{% if system is defined %}{{ system }}{% endif %}'
  '{% for m in messages %}{% set content = m.content %}'
  "{% if m.role == 'user' %}"
  r"{{ '<|im_start|>user\n' + content + '<|im_end|>\n' }}"
  r"{{ '<|im_start|>assistant\n' }}"
  r"{% elif m.role == 'assistant' %}{{ content + '<|im_end|>' + '\n' }}"
  '{% endif %}{% endfor %}'
)
LLAMA3 = (
  '{{ bos_token }}{% if tools is not none %}{{ "Tools: " }}'
  '{{ tools | tojson(indent=2) }}{% endif %}'
  '{% if not date_string is defined %}{% if strftime_now is defined %}'
  "{% set date_string = strftime_now('%d %b %Y') %}"
  "{% else %}{% set date_string = '26 Jul 2024' %}{% endif %}{% endif %}"
  "{% if messages[0]['role'] == 'system' %}"
  "{% set system = messages[0]['content'] | trim %}"
  '{% set messages = messages[1:] %}'
  "{% else %}{% set system = '' %}{% endif %}"
  '{{ "<|start_header_id|>system<|end_header_id|>\n\n" }}'
  '{{ "Today Date: " + date_string + "\n\n" }}{{ system }}{{ "<|eot_id|>" }}'
  '{% for m in messages %}'
  "{% if not (m.role == 'ipython' or m.role == 'tool' or 'tool_calls' in m) %}"
  "{{ '<|start_header_id|>' + m.role + '<|end_header_id|>\n\n'"
  " + m['content'] | trim + '<|eot_id|>' }}"
  '{% endif %}{% endfor %}{% if add_generation_prompt %}'
  "{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
)
# Texts of one role that follow each other share a turn.
MERGES = (
  "{{ bos_token }}{% set ns = namespace(role='') %}{% for m in messages %}"
  r"{% if m.role == ns.role %}{{ '\n\n' + m.content }}"
  '{% else %}{% if ns.role %}{{ "<|end|>" }}{% endif %}'
  "{{ '<|' + m.role + '|>' + m.content }}{% endif %}"
  '{% set ns.role = m.role %}{% endfor %}{{ "<|end|>" }}'
  "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)
# The token that opens a chat is there only without a system text.
BOS_SOMETIMES = (
  "{% for m in messages %}{% if loop.first and m.role != 'system' %}"
  '{{ bos_token }}{% endif %}'
  "{{ '<|' + m.role + '|>' + m.content + '<|end|>' }}{% endfor %}"
  "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)
# Each round has a number.
ROUNDS = (
  '{% for m in messages %}'
  "{% if m.role == 'user' %}"
  r"{{ '[Round ' + ((loop.index0 // 2) | string) + ']\n' + m.content }}"
  r"{% elif m.role == 'assistant' %}{{ '\nA: ' + m.content + '\n\n' }}"
  '{% endif %}{% endfor %}'
)
# Only the last messages count.
FORGETS = chatml().replace('in messages %', 'in messages[-6:] %')
# A reply that is not the last is cut.
TRUNCATES = chatml().replace(
  'm.content',
  '(m.content | truncate(99, leeway=0) if not loop.last else m.content)',
)
# Whatever follows is counted first.
COUNTS = '{{ messages | length }} messages\n' + chatml()
# A text that asks for something gets it.
REMINDS = chatml().replace(
  "'<|im_end|>",
  "(' Be brief.' if m.content.endswith('!brief') else '') + '<|im_end|>",
)
# Channels, with a reply that ends otherwise than the messages of users.
CHANNELS = (
  "{{ '<|start|>system<|message|>You are a model.<|end|>' }}"
  "{% for m in messages %}{% if m.role == 'assistant' %}"
  "{{ '<|start|>assistant<|channel|>final<|message|>' + m.content"
  " + '<|return|>' }}"
  "{% else %}{{ '<|start|>' + ('developer' if m.role == 'system' else m.role)"
  " + '<|message|>' + m.content + '<|end|>' }}{% endif %}{% endfor %}"
  "{% if add_generation_prompt %}{{ '<|start|>assistant' }}{% endif %}"
)

FAMILIES = {
  'chatml': Family(CHATML, _CHATML),
  'mistral': Family(MISTRAL),
  'mistral_spaced': Family(MISTRAL_SPACED),
  'mistral_last': Family(MISTRAL_LAST, ('[INST]', '[/INST]')),
  'mistral_day': Family(
    MISTRAL_DAY,
    ('[INST]', '[/INST]', '[SYSTEM_PROMPT]', '[/SYSTEM_PROMPT]'),
  ),
  'phi3': Family(PHI3, _BARS),
  'phi35': Family(PHI35, _BARS),
  'gemma': Family(GEMMA, _TURNS),
  'gemma3': Family(GEMMA3, _TURNS),
  'gemma3_trimmed': Family(GEMMA3_TRIMMED, _TURNS),
  'llama2': Family(LLAMA2),
  'gigachat': Family(GIGACHAT, _ROLES),
  'gigachat_numbered': Family(
    GIGACHAT_NUMBERED, _ROLES, (), {'additional_special_tokens': [*_ROLES]}
  ),
  'smollm3': Family(SMOLLM3, _CHATML, ('<think>', '</think>')),
  'qwen25': Family(QWEN25, _CHATML),
  'qwen3': Family(QWEN3, _CHATML, ('<think>', '</think>')),
  'thinking': Family(THINKING, _CHATML, ('<think>', '</think>')),
  'deepseek': Family(
    DEEPSEEK, ('<｜User｜>', '<｜Assistant｜>'), ('<think>', '</think>')
  ),
  'deepseek_plain': Family(DEEPSEEK_PLAIN, ('<｜User｜>', '<｜Assistant｜>')),
  'zephyr': Family(ZEPHYR),
  'vicuna': Family(VICUNA),
  'alpaca': Family(ALPACA),
  'command': Family(
    COMMAND, ('<|START|>', '<|END|>', '<|SYSTEM|>', '<|USER|>', '<|BOT|>')
  ),
  'granite': Family(GRANITE, ('<|start_of_role|>', '<|end_of_role|>')),
  'olmo': Family(OLMO),
  'falcon_plain': Family(FALCON_PLAIN),
  'yi': Family(YI, _CHATML),
  'llama3': Family(LLAMA3, _HEADERS),
  'merges': Family(MERGES, _BARS),
  'bos_sometimes': Family(BOS_SOMETIMES, _BARS),
  'reminds': Family(REMINDS, _CHATML),
  'channels': Family(
    CHANNELS,
    ('<|start|>', '<|message|>', '<|channel|>', '<|end|>', '<|return|>'),
  ),
}
# What no glue is.
REFUSED = {
  'falcon': FALCON,
  'rounds': ROUNDS,
  'forgets': FORGETS,
  'truncates': TRUNCATES,
  'counts': COUNTS,
}
