"""Records what a server's routes hand on."""


def requests(context, monkeypatch) -> list:
  """Returns a list to which the requests of a worker will be added."""
  found = []
  submit = context.engines.submit

  async def submitted(*requests):
    found.extend(requests)
    return await submit(*requests)

  monkeypatch.setattr(context.engines, 'submit', submitted)
  return found
