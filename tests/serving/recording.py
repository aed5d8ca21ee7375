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


def results(target, name, found: list, monkeypatch) -> None:
  """Has what a method returns added to a list."""
  method = getattr(target, name)

  def noted(*arguments, **options):
    found.append(method(*arguments, **options))
    return found[-1]

  monkeypatch.setattr(target, name, noted)
