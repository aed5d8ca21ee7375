"""Chat templates of each structure that open models have; small tokenizers."""

import datetime
import functools
import json
import random

import jinja2.sandbox
import pytest
import tokenizers
from tokenizers import decoders
from tokenizers import models
from tokenizers import normalizers
from tokenizers import pre_tokenizers
from tokenizers import processors
from tokenizers import trainers

from kaiju_jax.data import tokenizer as tokenizer_lib
from kaiju_jax.interchange.templates import folder as folder_lib
from kaiju_jax.interchange.templates import rendering
from kaiju_jax.interchange.templates import sandbox
from tests.interchange.templates import families

NOW = datetime.datetime(2026, 5, 4)
# One of each structure; `families.py` has all.
TEMPLATES = {
  'chatml': families.CHATML,
  'default': families.QWEN25,
  'turns': families.GEMMA3,
  'last': families.MISTRAL_LAST,
  'sys': families.LLAMA2,
  'headers': families.LLAMA3,
  'thinking': families.THINKING,
  'bars': families.ZEPHYR,
}
VARIABLES = {'bos_token': '<s>', 'eos_token': '</s>', 'enable_thinking': False}
_SPECIAL = (
  *('<s>', '</s>', '<|im_start|>', '<|im_end|>'),
  *('<start_of_turn>', '<end_of_turn>', '<|eot_id|>'),
  *('<|start_header_id|>', '<|end_header_id|>'),
)
_ADDED = ('<think>', '</think>')


def write_folder(path, tokenizer: str = '', **settings):
  """Writes a tokenizer and its settings at `path`, and returns the path."""
  path.mkdir(parents=True, exist_ok=True)
  (path / 'tokenizer.json').write_text(tokenizer or byte_tokenizer())
  settings = {'bos_token': '<s>', 'eos_token': '</s>', **settings}
  (path / 'tokenizer_config.json').write_text(json.dumps(settings))
  return path


def read_folder(
  path, template: str | None = None, now=NOW, keeps: bool = False
):
  """Returns a folder's chat format, and its tokenizer; starts no process."""
  tokenizer = tokenizer_lib.load(str(path / 'tokenizer.json'))
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(rendering, 'run', sandbox.render)
    return folder_lib.read(path, tokenizer, template, now, keeps), tokenizer


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
