"""Continues text with a trained model: prompt in, text out.

    python -m experiments.generate --model=runs/tiny --prompt='def '
    python -m experiments.generate --model=model.safetensors \\
        --prompt='Once' --prompt='Twice' --temperature=0.8 --top_p=0.95
    python -m experiments.generate --model=runs/tiny --interactive

The model is a workdir's latest checkpoint, an export or a Hugging Face folder.
An exported file alone needs the --tokenizer that it was trained with, unless it
reads bytes. Several prompts go on together, each with the next seed. Text goes
to stdout; tokens/s, the time to the first token (after everything has compiled)
and the cache's bytes go to stderr.

A Hugging Face folder's own settings of sampling hold where no flag is given.
With --chat prompts are a user's messages, in the folder's chat template;
--interactive does so where there is one.

--interactive answers lines until Ctrl-D. The history stays in the cache: each
turn runs only its own tokens. Ctrl-C ends an answer.
"""

from collections.abc import Sequence
import dataclasses
import sys
import time
from typing import TYPE_CHECKING

from absl import app
from absl import flags

from kaiju_jax.experiments import shared_flags
from kaiju_jax.runs import command

if TYPE_CHECKING:
  from kaiju_jax.data import tokenizer as tokenizer_lib
  from kaiju_jax.decoding.engine import generator as generator_lib
  from kaiju_jax.runs import load
  from kaiju_jax.runs import play

_MODEL = flags.DEFINE_string(
  'model', None, 'A workdir, an export or a Hugging Face folder.'
)
_TOKENIZER = flags.DEFINE_string(
  'tokenizer', None, 'tokenizer.json of an exported file; bytes by default.'
)
_PROMPT = flags.DEFINE_multi_string(
  'prompt', None, 'Text to continue; can be repeated.'
)
_INTERACTIVE = flags.DEFINE_bool(
  'interactive', False, 'Answer lines, and remember what was said.'
)
_CHAT = flags.DEFINE_bool(
  'chat',
  None,
  'Take prompts and lines as messages of a chat; by default with --interactive'
  " where the model's folder has a chat template.",
)
_MAX_TOKENS = flags.DEFINE_integer(
  'max_tokens', 200, 'Tokens of a continuation, at most.', lower_bound=1
)
_PLAYER = shared_flags.define_player()
_CHUNK = flags.DEFINE_integer(
  'chunk', 256, 'Prompt tokens that are run at once.', lower_bound=1
)
_TEMPERATURE = flags.DEFINE_float(
  'temperature', None, 'Of the sampling; 0 is greedy, and 1 the default.'
)
_TOP_K = flags.DEFINE_integer(
  'top_k', None, 'Likeliest tokens kept; 0 for all.'
)
_TOP_P = flags.DEFINE_float('top_p', None, 'Probability kept; 1 for all.')
_MIN_P = flags.DEFINE_float(
  'min_p', None, "Least probability, as a part of the likeliest token's."
)
_REPETITION_PENALTY = flags.DEFINE_float(
  'repetition_penalty', None, 'For tokens that the text holds; 1 for none.'
)
_SEED = flags.DEFINE_integer('seed', 0, 'Seed of the noise.')
_STOP = flags.DEFINE_multi_string('stop', None, 'Text that ends an answer.')


def main(argv: Sequence[str]) -> None:
  command.check(argv, _MODEL)
  if (_PROMPT.value is None) != _INTERACTIVE.value:
    raise app.UsageError('exactly one of --prompt and --interactive is needed.')
  _generate()


def _generate() -> None:
  from kaiju_jax.app import talk
  from kaiju_jax.data import tokenizer as tokenizer_lib

  _sampling({})  # Refused before a long read.
  played = _PLAYER.read()
  loaded = played.load(_MODEL.value, _TOKENIZER.value)
  tokenizer = tokenizer_lib.load(loaded.tokenizer, loaded.config.vocab_size)
  defaults = _defaults(loaded, tokenizer)
  for note in defaults.notes():
    _say(note)
  format, generation = defaults.format, defaults.generation
  manner = talk.Manner(
    _MAX_TOKENS.value,
    _sampling(generation.sampling),
    _STOP.value or (),
    format.stop_tokens if format else generation.ends,
  )
  if _INTERACTIVE.value:
    generator, note = _generator(loaded, tokenizer, 1, played, None)
    writer = talk.Messages(format) if format else talk.Lines(tokenizer)
    talk.converse(generator, writer, manner, _line, sys.stdout, sys.stderr)
    _say(note)
    return
  requests = [
    manner.request(
      format.prompt([('user', prompt)])
      if format
      else talk.open_document(tokenizer, prompt),
      index,
    )
    for index, prompt in enumerate(_PROMPT.value)
  ]
  prompts = [len(one.tokens) for one in requests]
  if played.length is None:
    played = dataclasses.replace(
      played, length=max(prompts) + _MAX_TOKENS.value
    )
  generator, note = _generator(
    loaded, tokenizer, len(requests), played, prompts
  )
  pace = talk.Pace()
  talk.answer(generator, requests, sys.stdout, pace)
  _say(f'{pace}; {note}')


def _defaults(loaded, tokenizer):
  """Returns what comes with the model; without a format for plain text."""
  from kaiju_jax.runs import defaults as defaults_lib

  chats = _CHAT.value
  if chats is None:
    chats = _INTERACTIVE.value and bool(loaded.chats)
  if not chats:
    found = defaults_lib.read_generation(loaded, tokenizer)
    return defaults_lib.Defaults(None, generation=found)
  found = defaults_lib.read(loaded, tokenizer)
  if found.format is None and _CHAT.value:
    raise ValueError(f'--chat: {loaded.origin} has no chat template.')
  return found


def _generator(
  loaded: 'load.Loaded',
  tokenizer: 'tokenizer_lib.Tokenizer',
  rows: int,
  played: 'play.Player',
  prompts: Sequence[int] | None,
) -> 'tuple[generator_lib.Generator, str]':
  """Returns a generator that has compiled, and its cache in words."""
  from kaiju_jax.decoding.engine import generator as generator_lib
  from kaiju_jax.runs import play

  started = time.monotonic()
  decoder = play.decoder(
    loaded,
    tokenizer,
    rows=rows,
    length=played.length,
    cache=played.cache,
  )
  generator = generator_lib.Generator(decoder, tokenizer, _CHUNK.value)
  generator.warm(prompts)
  seconds = time.monotonic() - started
  _say(f'{loaded.origin}; compiled in {seconds:.1f} s.')
  return generator, (
    f'cache of {rows} × {decoder.length:,} tokens:'
    f' {decoder.cache_bytes:,} bytes.'
  )


def _sampling(defaults: dict):
  from kaiju_jax.decoding.requests import sampling as sampling_lib

  given = (_TEMPERATURE, _TOP_K, _TOP_P, _MIN_P, _REPETITION_PENALTY)
  named = {one.name: one.value for one in given if one.value is not None}
  return sampling_lib.Sampling(**{**defaults, **named}, seed=_SEED.value)


def _line() -> str:
  # stdout is for answers alone.
  sys.stderr.write('> ')
  sys.stderr.flush()
  line = sys.stdin.readline()
  if not line:
    raise EOFError
  return line.removesuffix('\n')


def _say(text: str) -> None:
  print(text, file=sys.stderr, flush=True)


if __name__ == '__main__':
  # Logits from which no token can be drawn are an ArithmeticError.
  command.run(main, ArithmeticError)
