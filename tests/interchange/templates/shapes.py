"""Chat templates of the shapes that open models have, and small tokenizers.

The templates are ours: each has the structure of a family's template, and none
of its sentences.
"""

import datetime
import functools
import json
import random

import jinja2.sandbox
import tokenizers
from tokenizers import decoders
from tokenizers import models
from tokenizers import normalizers
from tokenizers import pre_tokenizers
from tokenizers import processors
from tokenizers import trainers

from kaiju_jax.interchange.templates import rendering
from kaiju_jax.interchange.templates import sandbox

NOW = datetime.datetime(2026, 5, 4)
_CHATML = (
  '{% for m in messages %}'
  "{{ '<|im_start|>' ~ m.role ~ '\n' ~ m.content ~ '<|im_end|>\n' }}"
  '{% endfor %}'
  "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
# A system text that is there if the chat brings none.
_DEFAULT = (
  "{% if messages[0].role != 'system' %}"
  "{{ '<|im_start|>system\nBe useful.<|im_end|>\n' }}{% endif %}"
)
_ALTERNATES = (
  "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
  "{{ raise_exception('roles must alternate') }}{% endif %}"
)
_SYSTEM_APART = (
  "{% set first = '' %}{% set rest = messages %}"
  "{% if messages[0].role == 'system' %}"
  '{% set first = messages[0].content %}{% set rest = messages[1:] %}'
  '{% endif %}'
)
# No system role: its text opens the first user turn.
_TURNS = (
  '{{ bos_token }}'
  + _SYSTEM_APART
  + '{% for m in rest %}'
  + _ALTERNATES
  + "{{ '<start_of_turn>' ~ ('model' if m.role == 'assistant' else m.role)"
  " ~ '\n' }}"
  "{% if loop.first and first %}{{ first ~ '\n\n' }}{% endif %}"
  "{{ (m.content | trim) ~ '<end_of_turn>\n' }}"
  '{% endfor %}'
  "{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}"
)
# A system text stands before the last user text, and marks are no tokens.
_LAST = (
  '{{ bos_token }}'
  + _SYSTEM_APART
  + '{% for m in rest %}'
  + _ALTERNATES
  + "{% if m.role == 'user' %}"
  "{{ '[INST] ' ~ ((first ~ '\n\n') if loop.last and first else '')"
  " ~ m.content ~ ' [/INST]' }}"
  "{% else %}{{ ' ' ~ (m.content | trim) ~ eos_token }}{% endif %}"
  '{% endfor %}'
)
# Texts of one role are stripped in one place only.
_SYS = (
  _SYSTEM_APART
  + '{% for m in rest %}'
  + _ALTERNATES
  + "{% set text = ('<<SYS>>\n' ~ first ~ '\n<</SYS>>\n\n' ~ m.content)"
  ' if loop.first and first else m.content %}'
  "{% if m.role == 'user' %}"
  "{{ bos_token ~ '[INST] ' ~ text.strip() ~ ' [/INST]' }}"
  "{% else %}{{ ' ' ~ text.strip() ~ ' ' ~ eos_token }}{% endif %}"
  '{% endfor %}'
)
# A clock, and a system turn in each chat.
_HEADERS = (
  '{{ bos_token }}'
  + _SYSTEM_APART
  + "{{ '<|start_header_id|>system<|end_header_id|>\n\nToday is '"
  " ~ strftime_now('%d %b %Y') ~ '.\n\n' ~ (first | trim) ~ '<|eot_id|>' }}"
  '{% for m in rest %}'
  "{{ '<|start_header_id|>' ~ m.role ~ '<|end_header_id|>\n\n'"
  " ~ (m.content | trim) ~ '<|eot_id|>' }}"
  '{% endfor %}'
  '{% if add_generation_prompt %}'
  "{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
)
# A reply's opening has an empty thought, which the history has not.
_THINKING = (
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
# The marks of roles are text; only the end is a token.
_BARS = (
  '{% for m in messages %}'
  "{{ '<|' ~ m.role ~ '|>\n' ~ m.content ~ eos_token ~ '\n' }}"
  '{% endfor %}'
  "{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}"
)
TEMPLATES = {
  'chatml': _CHATML,
  'default': _DEFAULT + _CHATML,
  'turns': _TURNS,
  'last': _LAST,
  'sys': _SYS,
  'headers': _HEADERS,
  'thinking': _THINKING,
  'bars': _BARS,
}
VARIABLES = {'bos_token': '<s>', 'eos_token': '</s>', 'enable_thinking': False}
_SPECIAL = (
  *('<s>', '</s>', '<|im_start|>', '<|im_end|>'),
  *('<start_of_turn>', '<end_of_turn>', '<|eot_id|>'),
  *('<|start_header_id|>', '<|end_header_id|>'),
)
_ADDED = ('<think>', '</think>')


def oracle(template: str, variables=VARIABLES):
  """Returns a function that renders messages with Jinja; None if it raises.

  It shares no code with the package.
  """
  made = jinja2.sandbox.ImmutableSandboxedEnvironment(
    trim_blocks=True, lstrip_blocks=True, extensions=['jinja2.ext.loopcontrols']
  )

  def fail(message):
    raise jinja2.TemplateError(message)

  made.globals |= {'raise_exception': fail, 'strftime_now': NOW.strftime}
  compiled = made.from_string(template)

  def render(messages, is_open=True):
    try:
      return compiled.render(
        messages=[{'role': role, 'content': text} for role, text in messages],
        add_generation_prompt=is_open,
        tools=None,
        documents=None,
        **variables,
      )
    except jinja2.TemplateError:
      return None

  return render


def render_here(template: str, now: datetime.datetime = NOW):
  """Returns `Renderer.render` that starts no process."""
  renderer = rendering.Renderer(template, VARIABLES, now)
  return lambda chats: rendering.texts_of(sandbox.render(renderer.task(chats)))


@functools.cache
def byte_tokenizer() -> str:
  """Returns a byte-level BPE as JSON; BOS is added to no text."""
  made = tokenizers.Tokenizer(models.BPE())
  made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
  made.decoder = decoders.ByteLevel()
  alphabet = pre_tokenizers.ByteLevel.alphabet()
  trainer = trainers.BpeTrainer(
    vocab_size=400, initial_alphabet=alphabet, show_progress=False
  )
  made.train_from_iterator(_corpus(), trainer)
  _add(made)
  return made.to_str()


def with_tokens(content: str, tokens=(), added=()) -> str:
  """Returns a tokenizer with further special and added tokens."""
  made = tokenizers.Tokenizer.from_str(content)
  made.add_special_tokens([*tokens])
  made.add_tokens([tokenizers.AddedToken(x, normalized=False) for x in added])
  return made.to_str()


@functools.cache
def piece_tokenizer() -> str:
  """Returns a BPE of pieces, '▁' before words, which adds BOS to texts."""
  made = tokenizers.Tokenizer(
    models.BPE(byte_fallback=True, unk_token='<unk>', fuse_unk=True)
  )
  made.normalizer = normalizers.Sequence(
    [normalizers.Prepend('▁'), normalizers.Replace(' ', '▁')]
  )
  made.decoder = decoders.Sequence(
    [
      decoders.Replace('▁', ' '),
      decoders.ByteFallback(),
      decoders.Fuse(),
      decoders.Strip(' ', 1, 0),
    ]
  )
  made.pre_tokenizer = pre_tokenizers.Sequence(
    [
      pre_tokenizers.Split('▁', 'merged_with_next'),
      pre_tokenizers.Split('\n', 'isolated'),
    ]
  )
  trainer = trainers.BpeTrainer(
    vocab_size=600,
    special_tokens=[
      '<unk>',
      *_SPECIAL[:2],
      *(f'<0x{i:02X}>' for i in range(256)),
    ],
    show_progress=False,
  )
  made.train_from_iterator(_corpus(), trainer)
  content = json.loads(made.to_str())
  content['added_tokens'] = [
    one for one in content['added_tokens'] if one['content'][:3] != '<0x'
  ]
  # As those of SentencePiece, it cuts nothing before merging.
  content['pre_tokenizer'] = None
  made = tokenizers.Tokenizer.from_str(json.dumps(content))
  _add(made)
  made.post_processor = processors.TemplateProcessing(
    single='<s> $A', special_tokens=[('<s>', 1)]
  )
  return made.to_str()


def _add(tokenizer: tokenizers.Tokenizer) -> None:
  tokenizer.add_special_tokens(list(_SPECIAL))
  tokenizer.add_tokens(
    [tokenizers.AddedToken(one, normalized=False) for one in _ADDED]
  )


def _corpus() -> list[str]:
  rng = random.Random(0)
  words = ('the', 'tea', 'rain', 'system', 'user', 'assistant', 'Hello', 'two')
  return [
    f'{" ".join(rng.choices(words, k=9))}.\n\n{rng.choice(words)}\n'
    for _ in range(200)
  ]
