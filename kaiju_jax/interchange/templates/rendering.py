"""Renders chats with a folder's Jinja template, in a guarded process."""

from collections.abc import Sequence
import datetime
import json
import pathlib
import subprocess
import sys
import tempfile
from typing import Any
from typing import NamedTuple

_SANDBOX = pathlib.Path(__file__).with_name('sandbox.py')
_LONGEST = 2**18  # Characters of a template; those of today have up to 20,000.
_BATCH = 512  # Chats of one process.
_SECONDS = 60.0  # By the wall clock; the process limits its processor time.


class Chat(NamedTuple):
  """A chat to be rendered."""

  messages: tuple[tuple[str, str], ...]  # (role, text) of each message.
  is_open: bool = True  # Whether the opening of a reply follows.


class Refusal(NamedTuple):
  """A chat that a template does not render."""

  reason: str  # The template's or the sandbox's message.


class Renderer:
  """Renders chats with one template."""

  def __init__(
    self,
    template: str,
    variables: dict[str, Any],
    now: datetime.datetime,
  ):
    """Starts nothing yet.

    Args:
      template: the Jinja template.
      variables: the template's variables besides the messages, such as
        `bos_token`; strings, numbers and booleans.
      now: the time that the template's clock shows.

    Raises:
      ImportError: jinja2 is not installed.
      ValueError: the template has more than 2¹⁸ characters.
    """
    try:
      import jinja2  # noqa: F401
    except ImportError as error:
      raise ImportError(
        'chat_template: jinja2 is not installed: pip install'
        " 'kaiju_jax[serve]'."
      ) from error
    if len(template) > _LONGEST:
      raise ValueError(
        f'chat_template: has {len(template):,} characters: at most'
        f' {_LONGEST:,}.'
      )
    self._template = template
    self._variables = variables
    self._now = now

  def task(self, chats: Sequence[Chat]) -> dict[str, Any]:
    """Returns what `sandbox.render` takes."""
    return {
      'template': self._template,
      'variables': self._variables,
      'now': self._now.isoformat(),
      'chats': [
        {
          'messages': [
            {'role': role, 'content': text} for role, text in one.messages
          ],
          'is_open': one.is_open,
        }
        for one in chats
      ],
    }

  def render(self, chats: Sequence[Chat]) -> list[str | Refusal]:
    """Returns the text of each chat, or why the template does not render it.

    Raises:
      ValueError: the template needs too much time or memory.
    """
    return [
      one
      for begin in range(0, len(chats), _BATCH)
      for one in texts_of(run(self.task(chats[begin : begin + _BATCH])))
    ]

  def find_literals(self) -> list[str]:
    """Returns strings that the template may look for in texts.

    Those are the ones that it compares, passes to functions or assigns, and the
    names of its tokens.

    Raises:
      ValueError: the template needs too much time or memory.
    """
    names = (one for one in self._variables.values() if isinstance(one, str))
    return list(dict.fromkeys([*run(self.task(()))['literals'], *names]))


def texts_of(rendered: dict[str, Any]) -> list[str | Refusal]:
  """Returns what `sandbox.render` returned as texts and refusals."""
  return [
    one['text'] if 'text' in one else Refusal(one['error'])
    for one in rendered['chats']
  ]


def run(task: dict[str, Any]) -> dict[str, Any]:
  """Returns what `sandbox.render` returns, from a process of its own.

  Raises:
    ValueError: the template needs too much time or memory.
  """
  with tempfile.TemporaryDirectory() as folder:
    try:
      ended = subprocess.run(
        [sys.executable, '-I', '-B', str(_SANDBOX)],
        input=json.dumps(task).encode(),
        capture_output=True,
        env={},
        cwd=folder,
        timeout=_SECONDS,
      )
    except subprocess.TimeoutExpired:
      raise _too_much('did not end') from None
  if ended.returncode:
    raise _too_much(f'ended with {ended.returncode}')
  return json.loads(ended.stdout)


def _too_much(how: str) -> ValueError:
  return ValueError(
    f'chat_template: rendering {how}: it may take 2 s of processor time and'
    ' 512 MiB; give another template (--template=FILE).'
  )
