"""Fields that clients know and this server does not use, in one table a kind.

Beside such a field stand the values that ask for what the server does anyway.
Null and empty values ask for nothing, wherever they stand. Any other value
would change the answer, and is refused by the field's name.

The names are those of OpenAI's API, then of vLLM's.
"""

from collections.abc import Mapping
import json
from typing import Any

Table = Mapping[str, tuple[Any, ...]]

REQUEST: Table = {
  'audio': (),
  'frequency_penalty': (0,),
  'function_call': ('none', 'auto'),
  'functions': (),
  'logit_bias': (),
  'modalities': (['text'],),
  'moderation': (),
  'presence_penalty': (0,),
  'reasoning_effort': ('none',),
  'response_format': ({'type': 'text'},),
  'suffix': (),
  'tool_choice': ('none', 'auto'),
  'tools': (),
  'verbosity': ('medium',),
  'web_search_options': (),
  'allowed_token_ids': (),
  'bad_words': (),
  'chat_template': (),
  'documents': (),
  'include_reasoning': (True,),
  'include_stop_str_in_output': (False,),
  'length_penalty': (1,),
  'min_tokens': (0,),
  'prompt_logprobs': (),
  'skip_special_tokens': (True,),
  'spaces_between_special_tokens': (True,),
  'stop_token_ids': (),
  'structured_outputs': (),
  'truncate_prompt_tokens': (),
  'use_beam_search': (False,),
}
# `parsed` is what openai-python adds to an answer that it has parsed.
MESSAGE: Table = {
  'audio': (),
  'function_call': (),
  'parsed': (),
  'tool_call_id': (),
  'tool_calls': (),
}
# Labels of a part of a message. They steer caches, and do not change the text.
PART_LABELS = frozenset({'annotations', 'cache_control'}) | {
  'prompt_cache_breakpoint'
}


def prune(value: Any) -> Any:
  """Returns a value without what is null or empty in it; None if all is."""
  if isinstance(value, dict):
    pruned = {name: prune(one) for name, one in value.items()}
    value = {name: one for name, one in pruned.items() if one is not None}
  elif isinstance(value, list):
    value = [one for one in map(prune, value) if one is not None]
  return None if value in ('', [], {}) else value


def asks_nothing(value: Any, idle: tuple[Any, ...] = ()) -> bool:
  """Returns whether a value is null, empty, or one of `idle`."""
  pruned = prune(value)
  return pruned is None or any(
    # Python takes True for 1 and False for 0.
    pruned == one and isinstance(pruned, bool) == isinstance(one, bool)
    for one in idle
  )


def refuse(value: Any, idle: tuple[Any, ...] = ()) -> str:
  """Returns in words what a field that is not supported may be instead."""
  told = [json.dumps(one, ensure_ascii=False) for one in (*idle, value)]
  able = ', '.join(['null', 'empty', *told[:-1]])
  return f'is not supported: must be left out, {able}, not {told[-1]:.80}'
