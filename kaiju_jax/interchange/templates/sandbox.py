"""Renders chats with a Jinja template, in a process of its own.

`rendering` starts this file as a program: it reads a task from stdin and writes
texts and literals to stdout, both JSON. The process has no environment, an
empty folder, and limits of time, memory and output, because a template comes
with a stranger's model: loops can take all processor time, and a product of
strings all memory.

Only the standard library and jinja2 are imported.
"""

import contextlib
import datetime
import json
import resource
import sys
from typing import Any

import jinja2
from jinja2 import ext
from jinja2 import nodes
from jinja2 import sandbox

SECONDS = 2  # Of processor time.
MEMORY = 512 * 2**20
CHARACTERS = 2**16  # Of a rendered chat.
LITERALS, LITERAL = 64, 64  # How many, and of how many characters.


class _Generation(ext.Extension):
  """`{% generation %}`, which marks what a model wrote, and changes no text."""

  tags = {'generation'}

  def parse(self, parser):
    line = next(parser.stream).lineno
    body = parser.parse_statements(('name:endgeneration',), drop_needle=True)
    return nodes.Scope(body).set_lineno(line)


def _limit() -> None:
  limits = {
    resource.RLIMIT_CPU: SECONDS,
    resource.RLIMIT_AS: MEMORY,
    resource.RLIMIT_FSIZE: 0,
    resource.RLIMIT_NPROC: 0,
    resource.RLIMIT_CORE: 0,
  }
  for limit, most in limits.items():
    # macOS has no limit of memory.
    with contextlib.suppress(ValueError, OSError):
      resource.setrlimit(limit, (most, most))


def _environment(now: datetime.datetime) -> jinja2.Environment:
  def fail(message):
    raise jinja2.TemplateError(str(message))

  def write_json(
    value, ensure_ascii=False, indent=None, separators=None, sort_keys=False
  ):
    return json.dumps(
      value,
      ensure_ascii=ensure_ascii,
      indent=indent,
      separators=separators,
      sort_keys=sort_keys,
    )

  made = sandbox.ImmutableSandboxedEnvironment(
    trim_blocks=True,
    lstrip_blocks=True,
    extensions=[_Generation, ext.loopcontrols],
  )
  made.filters['tojson'] = write_json
  made.globals['raise_exception'] = fail
  made.globals['strftime_now'] = now.strftime
  return made


def render(task: dict[str, Any]) -> dict[str, list]:
  """Returns what a template makes of the chats of a task.

  Args:
    task: `template`, its `variables`, `now` as ISO 8601, and `chats` with
      `messages` (role and content) and `is_open`.

  Returns:
    `chats`: {'text': …} or {'error': …} for each chat; `literals`: without any
    chats, the strings that the template compares, passes on or assigns.
  """
  try:
    environment = _environment(datetime.datetime.fromisoformat(task['now']))
    template = environment.from_string(task['template'])
    literals = []
    if not task['chats']:
      literals = _find_literals(environment.parse(task['template']))
  except Exception as error:  # Syntax; a template can raise anything.
    failed = {'error': str(error)[:200]}
    return {'chats': [failed] * len(task['chats']), 'literals': []}
  return {
    'chats': [_render(template, task['variables'], x) for x in task['chats']],
    'literals': literals,
  }


def _find_literals(tree: nodes.Template) -> list[str]:
  kinds = nodes.Compare, nodes.Call, nodes.Filter, nodes.Test, nodes.Assign
  found = (
    one.value
    for node in tree.find_all(kinds)
    for one in node.find_all(nodes.Const)
  )
  short = (one for one in found if isinstance(one, str) and len(one) <= LITERAL)
  return list(dict.fromkeys(short))[:LITERALS]


def _render(template: jinja2.Template, variables: dict, chat: dict) -> dict:
  try:
    parts, size = [], 0
    for part in template.generate(
      **{'tools': None, 'documents': None, **variables},
      messages=chat['messages'],
      add_generation_prompt=chat['is_open'],
    ):
      size += len(part)
      if size > CHARACTERS:
        return {'error': f'more than {CHARACTERS:,} characters'}
      parts.append(part)
    return {'text': ''.join(parts)}
  except MemoryError:
    return {'error': f'more than {MEMORY:,} bytes of memory'}
  except Exception as error:  # A template can raise anything.
    return {'error': str(error)[:200] or type(error).__name__}


def main() -> None:
  task = json.load(sys.stdin)
  _limit()
  json.dump(render(task), sys.stdout)


if __name__ == '__main__':
  main()
