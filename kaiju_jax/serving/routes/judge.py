"""Stage 3 of a request, judge: the gate reads what is new or to be kept."""

from collections.abc import Iterator
from collections.abc import Mapping
import dataclasses
import functools
from typing import Any

from kaiju_jax.characters.cards import card_fields
from kaiju_jax.characters.prompts import lore
from kaiju_jax.characters.prompts import macros
from kaiju_jax.characters.prompts import prompt
from kaiju_jax.serving.http import auth
from kaiju_jax.serving.http import errors
from kaiju_jax.serving.routes import context as context_lib
from kaiju_jax.serving.routes import store as store_lib
from kaiju_jax.serving.safety import gate
from kaiju_jax.serving.safety import moderation
from kaiju_jax.serving.stores import characters

# The gate takes as long for a character as other work for so many bytes.
_JUDGED = 64
# Draws of a greeting until it is refused.
_DRAWS = 8
# The most bytes of a character's texts with their macros expanded: four times
# all of its fields.
_EXPANDED = 4 * card_fields.ALL


async def judge_request(
  context: context_lib.Context,
  who: auth.Caller,
  text: str,
  param: str = 'messages',
) -> tuple[moderation.Watch, bool]:
  """Reads a request's new text with the gate.

  Args:
    who: the caller, whose age sets the thresholds.
    text: the text that no earlier request had judged.
    param: the request's field that holds it.

  Returns:
    The watch that judges this request's reply; whether the gate blocks it.
  """
  watch = _watch(context, who.age, who.owner)
  if watch.mode == 'moderated' and len(text) > gate.MOST:
    raise errors.invalid(
      f'{param}: {len(text):,} characters are new; the gate reads at most'
      f' {gate.MOST:,} at once.',
      param,
      'context_length_exceeded',
    )
  size = _JUDGED * len(text)
  verdict = await context.texts.run(lambda: watch.read(text), size)
  _count(context, verdict)
  return watch, verdict.is_blocked


async def check_stored(
  context: context_lib.Context,
  who: auth.Caller,
  value: Any,
  name: str,
  is_public: bool = False,
) -> None:
  """Refuses a value to be stored if the gate blocks any of its strings.

  Args:
    value: dataclasses, mappings, sequences and strings.
    name: the request's field that holds the value.
    is_public: whether all owners may see it: then minors' thresholds apply.
  """
  watch = _watch(context, None if is_public else who.age, who.owner)
  if watch.mode == 'unmoderated':
    return
  verdict = await read_stored(context, watch, value)
  if verdict.has_failed:
    # A stored text is shown without the head's scores: only the gate reads it.
    raise gate_failed(name)
  if verdict.is_blocked:
    raise _refused(name, name)


async def check_card(
  context: context_lib.Context,
  who: auth.Caller,
  fields: card_fields.Fields,
  is_public: bool,
) -> None:
  """Refuses a card if the gate blocks a text that it is read by."""
  value = await read_card(context, fields)
  await check_stored(context, who, value, 'fields', is_public)


async def draw_greetings(
  context: context_lib.Context,
  who: auth.Caller,
  character: characters.Character,
  fields: card_fields.Fields,
) -> list[str]:
  """Returns a character's greetings for a new session, with their macros drawn.

  The gate reads each draw. Without choices, dice and the time a greeting is one
  of the texts that it read with the card.

  Args:
    character: the character; a public one is judged by minors' thresholds.
    fields: those of its version.
  """
  made = []
  for name, text in greetings(fields).items():
    draws = 0
    while True:
      write = functools.partial(store_lib.write_message, name, fields, text)
      written = await context.texts.run(write, len(text))
      if context.moderator.mode == 'unmoderated':
        break
      if is_certain(fields, text, written):
        break
      watch = _watch(
        context, None if character.is_public else who.age, character.owner
      )
      verdict = await read_stored(context, watch, written)
      if verdict.has_failed:
        raise gate_failed(name)
      if not verdict.is_blocked:
        break
      draws += 1
      if draws == _DRAWS:
        raise _refused(name, 'character')
    made.append(written)
  return made


def greetings(fields: card_fields.Fields) -> dict[str, str]:
  """Returns a character's greetings as written by field, but empty ones."""
  several = {'greeting': fields.greeting} | {
    f'alternate_greetings[{n}]': text
    for n, text in enumerate(fields.alternate_greetings)
  }
  return {name: text for name, text in several.items() if text}


def check_greetings(fields: card_fields.Fields) -> None:
  """Refuses greetings that some session could not store."""
  char = card_fields.display_name(fields)
  for name, text in greetings(fields).items():
    try:
      macros.check_all_draws(text, char)
    except macros.TooLarge as error:
      raise errors.too_long(f'{name}: {error}', name) from error


def is_certain(fields: card_fields.Fields, text: str, written: str) -> bool:
  """Returns whether `store.write_message` always makes `written` of a text.

  Otherwise it draws, or reads the clock.
  """
  try:
    char = card_fields.display_name(fields)
    return macros.expand(text, char, macros.USER) == written
  except macros.TooLarge:
    return False


def list_texts(fields: card_fields.Fields) -> list[str]:
  """Returns all texts that people or a model may read of a character.

  These are its strings as they are written; the same with their macros
  expanded, wholly or, as on the page, by names alone; and what prompts have of
  it. There is no list of fields: a new one is among them. Only the draws of
  greetings are not: they are judged when they are made
  (`draw_greetings`).
  """
  found = dict.fromkeys(leaves(fields))
  left = _EXPANDED
  try:
    # Readers who do not see the nickname see the name.
    for name in {card_fields.display_name(fields), fields.name}:
      for text in list(found):
        for made in (
          macros.expand_stable(text, name, left),
          macros.expand_names(text, name, left),
        ):
          if made not in found:
            found[made] = None
            left -= len(made.encode())
    found[prompt.persona(fields)] = None
  except macros.TooLarge as error:
    raise errors.too_long(f'fields: {error}', 'fields') from error
  found['\n'.join(lore.book(fields).texts.values())] = None
  return list(found)


def gate_failed(name: str) -> errors.ApiError:
  """Returns a 503: the gate could not read what the request calls `name`."""
  return errors.unavailable(f'{name}: the safety gate cannot read it now.')


def _refused(name: str, param: str) -> errors.ApiError:
  return errors.invalid(
    f'{name}: refused by the safety gate.', param, 'content_filter'
  )


async def read_card(context: context_lib.Context, fields: Any) -> list[str]:
  """Returns what is read of a card."""
  size = card_fields.count_bytes(fields)
  return await context.texts.run(lambda: list_texts(fields), size)


async def read_stored(
  context: context_lib.Context, watch: moderation.Watch, value: Any
) -> moderation.Verdict:
  """Returns the gate's verdict on all strings of a value."""
  text = join(value)
  size = _JUDGED * len(text)
  verdict = await context.texts.run(lambda: watch.read(text), size)
  # A stored text that the gate could not judge is refused, too.
  _count(context, verdict, is_refused=verdict.has_failed)
  return verdict


def _count(
  context: context_lib.Context,
  verdict: moderation.Verdict,
  is_refused: bool = False,
) -> None:
  """Counts a text that the gate read, if there is one."""
  if verdict.stage != 'gate':
    return
  context.metrics.judged.labels('gate', verdict.tier).inc()
  if verdict.has_failed:
    context.metrics.gate_failures.labels(verdict.tier).inc()
  if verdict.is_blocked or is_refused:
    context.metrics.refusals.labels('gate', verdict.tier).inc()


def _watch(context: context_lib.Context, age, owner: str) -> moderation.Watch:
  watch = context.moderator.watch(age, owner)
  if watch.mode == 'closed':
    raise errors.unavailable(f'{context_lib.CLOSED}.')
  return watch


def leaves(value: Any) -> Iterator[str]:
  """Yields the strings in a value of dataclasses, mappings and sequences."""
  if isinstance(value, str):
    yield value
  elif isinstance(value, Mapping):
    for name, each in value.items():
      yield from leaves(name)
      yield from leaves(each)
  elif isinstance(value, (list, tuple, set, frozenset)):
    for each in value:
      yield from leaves(each)
  elif dataclasses.is_dataclass(value):
    for field in dataclasses.fields(value):
      yield from leaves(getattr(value, field.name))


def join(value: Any) -> str:
  """Returns all strings in a value as one text, one per line.

  Strings of white space are left out. The gate cuts the text (`gate.parts`).
  """
  return '\n'.join(leaf for leaf in leaves(value) if leaf.strip())
