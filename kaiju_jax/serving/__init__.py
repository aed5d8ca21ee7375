"""The HTTP server: an API and a page for chats with characters, and safety.

    safety     the gate, the hold-back, certified thresholds
    stores     characters, versions and conversations, kept
    http       sockets, access, limits, errors, metrics
    replies    the engine's thread, and a reply's way out
    routing    several engines as one: replicas, the router, its policies
    routes     the addresses: completions, chats, characters, sessions
    page       the chat page: HTML, CSS and JavaScript
    operations alerts for Prometheus and a dashboard for Grafana

Characters and their prompts are `kaiju_jax/characters`, which training reads
too.
"""
