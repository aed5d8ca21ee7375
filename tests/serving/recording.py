"""Records what a server's routes hand on."""


def requests(context, monkeypatch) -> list:
  """Returns a list to which the requests of a worker will be added."""
  found = []
  submit = context.worker.submit

  async def submitted(*requests):
    found.extend(requests)
    return await submit(*requests)

  monkeypatch.setattr(context.worker, 'submit', submitted)
  return found
