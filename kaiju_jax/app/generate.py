"""Continues prompts, or chats, on a terminal."""

from collections.abc import Sequence
import dataclasses
import functools
import sys
import time

from kaiju_jax.app import settings as settings_lib
from kaiju_jax.app import talk
from kaiju_jax.data import tokenizer as tokenizer_lib
from kaiju_jax.decoding.engine import generator as generator_lib
from kaiju_jax.runs import defaults as defaults_lib
from kaiju_jax.runs import load
from kaiju_jax.runs import play


def generate(settings: settings_lib.Talk) -> None:
  """Continues prompts, or answers lines; text goes to stdout, notes to stderr.

  Raises:
    ArithmeticError: no token can be drawn from the logits.
    OSError, ValueError: something cannot be read, or does not fit.
  """
  settings.sampling({})  # Refused before a long read.
  played = settings.player
  loaded = played.load(settings.model, settings.tokenizer)
  tokenizer = tokenizer_lib.load(loaded.tokenizer, loaded.config.vocab_size)
  defaults = _defaults(settings, loaded, tokenizer)
  for note in defaults.notes():
    _say(note)
  format, generation = defaults.format, defaults.generation
  manner = talk.Manner(
    settings.max_tokens,
    settings.sampling(generation.sampling),
    settings.stop,
    format.stop_tokens if format else generation.ends,
  )
  if settings.interactive:
    generator, note = _generator(settings, loaded, tokenizer, 1, played, None)
    write = functools.partial(talk.write_line, tokenizer)
    if format:
      write = functools.partial(talk.write_message, format)
    talk.converse(generator, write, manner, _line, sys.stdout, sys.stderr)
    _say(note)
    return
  requests = [
    manner.request(
      format.prompt([('user', prompt)])
      if format
      else talk.open_document(tokenizer, prompt),
      index,
    )
    for index, prompt in enumerate(settings.prompt)
  ]
  prompts = [len(one.tokens) for one in requests]
  if played.length is None:
    played = dataclasses.replace(
      played, length=max(prompts) + settings.max_tokens
    )
  generator, note = _generator(
    settings, loaded, tokenizer, len(requests), played, prompts
  )
  pace = talk.Pace()
  talk.answer(generator, requests, sys.stdout, pace)
  _say(f'{pace}; {note}')


def _defaults(settings: settings_lib.Talk, loaded, tokenizer):
  """Returns what comes with the model; without a format for plain text."""
  chats = settings.chat
  if chats is None:
    chats = settings.interactive and bool(loaded.chats)
  if not chats:
    found = defaults_lib.read_generation(loaded, tokenizer)
    return defaults_lib.Defaults(None, generation=found)
  found = defaults_lib.read(loaded, tokenizer)
  if found.format is None and settings.chat:
    raise ValueError(f'--chat: {loaded.origin} has no chat template.')
  return found


def _generator(
  settings: settings_lib.Talk,
  loaded: load.Loaded,
  tokenizer: tokenizer_lib.Tokenizer,
  rows: int,
  played: play.Player,
  prompts: Sequence[int] | None,
) -> tuple[generator_lib.Generator, str]:
  """Returns a generator that has compiled, and its cache in words."""
  started = time.monotonic()
  decoder = played.decoder(loaded, tokenizer, rows)
  generator = generator_lib.Generator(decoder, tokenizer, chunk=settings.chunk)
  generator.warm(prompts)
  seconds = time.monotonic() - started
  _say(f'{loaded.origin}; compiled in {seconds:.1f} s.')
  return generator, (
    f'cache of {rows} × {decoder.length:,} tokens:'
    f' {decoder.cache_bytes:,} bytes.'
  )


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
