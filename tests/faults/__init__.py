"""Fault injection: a cluster under load, faults as data, and a judge that knows only the wire.

`make chaos` runs it (docs/chaos.md). What judges (`judge`, `footprint`) uses nothing of the code
that is judged; what sends requests uses the Python client as any user does, and a plain NATS
client.

| module | owns |
|---|---|
| `faults` | what can happen to a cluster, as a table |
| `injector` | which fault happens next, and to whom |
| `fleet`, `member` | the processes, each behind a line of its own, started again when they end |
| `asks`, `known` | the requests, and their true answers |
| `load`, `users` | who sends them |
| `records`, `evidence` | what clients saw, what happened meanwhile, what is left behind |
| `judge` | the promises, as pure functions over evidence |
| `campaign` | all of that together |
| `plants`, `child` | planted bugs, and the processes that have them |
| `traces/` | evidence of campaigns with planted bugs, recorded |
"""
