"""A load's clients, in a process of their own: server-sent events, timed.

`http_serving.py` starts it with a server's address and a model's name, so that
clients take no time from the server's interpreter. It reads JSON, {"token",
"arrivals": [{"seconds", "tokens", "max_tokens"}, …]}, and writes a list of
{"tokens", "seconds", "reused"}, one per arrival: how many tokens came, when,
and how many of the prompt were in the server's cache.
"""

import asyncio
from collections.abc import Sequence
import json
import sys
import time
from typing import Any

import httpx


async def run_load(
  address: str, model: str, token: str, arrivals: Sequence[dict[str, Any]]
) -> list[dict[str, Any]]:
  """Asks what arrives, each at its second, and returns when tokens came."""
  limits = httpx.Limits(max_connections=None)
  async with httpx.AsyncClient(
    base_url=address,
    headers={'Authorization': f'Bearer {token}'},
    timeout=600,
    limits=limits,
  ) as client:
    # A connection for each, so that none is timed that must be opened first.
    await asyncio.gather(*(client.get('/healthz') for _ in arrivals))
    begun = time.perf_counter()
    return await asyncio.gather(
      *(_run_request(client, model, one, begun) for one in arrivals)
    )


async def _run_request(client, model, arrival, begun: float) -> dict[str, Any]:
  now = time.perf_counter() - begun
  await asyncio.sleep(max(arrival['seconds'] - now, 0))
  body = {
    'model': model,
    'prompt': arrival['tokens'],
    'max_tokens': arrival['max_tokens'],
    'temperature': 0,
    'stream': True,
    'stream_options': {'include_usage': True},
    'logprobs': 0,
  }
  found: dict[str, Any] = {'tokens': 0, 'seconds': [], 'reused': 0}
  async with client.stream('POST', '/v1/completions', json=body) as answer:
    async for line in answer.aiter_lines():
      if not line.startswith('data: {'):
        continue
      now = time.perf_counter() - begun
      chunk = json.loads(line.removeprefix('data: '))
      for choice in chunk.get('choices', ()):
        count = len((choice['logprobs'] or {}).get('tokens', ()))
        found['seconds'] += [now] * count
        found['tokens'] += count
      if chunk.get('usage'):
        details = chunk['usage']['prompt_tokens_details']
        found['reused'] = details['cached_tokens']
  return found


if __name__ == '__main__':
  # The token comes with the load: a process's arguments are open to all.
  arguments = json.load(sys.stdin)
  print(json.dumps(asyncio.run(run_load(*sys.argv[1:], **arguments))))
