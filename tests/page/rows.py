"""Events as the gateway sends them to the page: rows of plausible clusters, and of hostile ones."""

import random
import time
from typing import Any

Row = dict[str, Any]

GIB = 2**30
HOSTILE = (
    "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"
    "\u202egnp.exe\u2066\x00\x1b[31m\u200b\ud800 &lt;b&gt; ${7*7} {{7*7}} ' \" `"
)
"""Markup, code, what reorders text, what has no glyph, and half a character."""
LONG = "long-" * 200_000
"""A megabyte."""
_MODELS = (
    "mlx-community/Qwen3-4B-4bit",
    "mlx-community/Llama-3.3-70B-Instruct-4bit",
    "mlx-community/Qwen3-Coder-30B-A3B-Instruct-8bit",
    "mlx-community/gpt-oss-20b-MXFP4-Q4",
    "mlx-community/bge-m3",
)
_CHIPS = ("Apple M4 Max", "Apple M2 Ultra", "Apple M3 Pro", "Apple M1")


def session(rights: str = "admin") -> Row:
    tables = ["overview", "machines", "models", "requests", "sessions", "rollout", "log"]
    views = ["requests"] if rights == "own" else tables
    return {"rights": rights, "client": "anna", "version": "0.1.0", "views": views}


def history(seed: int, length: int = 60) -> list[float | None]:
    chance = random.Random(seed)
    speed, values = 60.0, list[float | None]()
    for index in range(length):
        speed = max(0.0, speed + chance.uniform(-14, 14))
        values.append(None if seed % 3 == 0 and index < 12 else round(speed, 1))
    return values


def overview(machines: int = 2, **others: Any) -> Row:
    controllers = [
        {
            "id": f"controller-{n}",
            "state": "active" if n == 1 else "standby",
            "leader": n == 1,
            "active": 3 if n == 1 else 0,
            "waiting": 0,
            "version": "0.1.0",
            "uptime_s": 86_000.0 * n,
            "problem": None,
        }
        for n in (1, 2)
    ]
    return {
        "status": "ready",
        "problem": None,
        "leader": {"id": "controller-1", "term": 7},
        "controllers": controllers,
        "skills": {"chat": [_MODELS[0]]},
        "workers": machines,
        "ready": machines,
        "running": 3,
        "queued": 1,
        "waiting": 0,
        "tokens_per_s": 81.2,
        "memory_used_bytes": machines * 31 * GIB,
        "memory_bytes": machines * 64 * GIB,
        "history": {"step_s": 10, "tokens_per_s": history(1)},
    } | others


def machine(number: int, **others: Any) -> Row:
    size = (64, 192, 36, 16)[number % 4] * GIB
    name = f"{('studio', 'mini', 'book')[number % 3]}-{number}"
    states = ("ready", "ready", "ready", "warming", "draining", "unhealthy")
    pressure = ("none", "none", "soft", "none", "hard")[number % 5]
    used = {"none": 0.3, "soft": 0.55, "hard": 0.65}[pressure]
    memory = {
        "machine_bytes": size,
        "models_bytes": int(size * used),
        "kv_bytes": int(size * 0.08),
        "other_bytes": int(size * 0.18),
        "available_bytes": int(size * (0.74 - used)),
        "soft_bytes": int(size * 0.8),
        "hard_bytes": int(size * 0.9),
        "pressure": pressure,
    }
    return {
        "key": name,
        "id": name,
        "state": states[number % 6],
        "chip": _CHIPS[number % 4],
        "accelerator": "metal",
        "os": "macOS 26.1",
        "cores": 14,
        "version": "0.1.0",
        "uptime_s": 3600.0 * (number + 1),
        "labels": {"room": "attic"},
        "memory": memory,
        "cpu_cores": 1.4,
        "active": 2,
        "queued": {"high": 0, "medium": number % 3, "low": 0},
        "slots": 8,
        "rows": number % 8,
        "tokens_per_s": round(10 + number % 90 * 1.1, 1),
        "history": history(number),
        "models": {
            "warm": 2,
            "loading": number % 2,
            "failed": int(number % 5 == 4),
            "available": 3,
        },
        "warm": [_MODELS[0], _MODELS[4]],
        "engines": [
            {"index": n, "state": "ready", "restarts": number % 3, "step_ms": 11.2}
            for n in range(1 + number % 2)
        ],
        "breaker": (None, None, None, None, "half-open")[number % 5],
        "config_version": 3,
        "config_problem": None,
    } | others


def model(number: int, workers: list[str], **others: Any) -> Row:
    states = ("warm", "loading", "available", "failed", "available", "warm")
    placed = []
    for index, worker in enumerate(workers[:50]):
        state = states[(index + number) % 6]
        placed.append({
            "worker": worker,
            "state": state,
            "phase": "downloading" if state == "loading" else None,
            "progress": 0.42 if state == "loading" else None,
            "error": "not enough memory: 41.2 GB are needed" if state == "failed" else None,
            "pinned": index == 0,
            "priority": 5,
            "active": 1 if state == "warm" else 0,
            "queued": 0,
            "idle_s": 42.0,
        })  # fmt: skip
    counted = {name: sum(each["state"] == name for each in placed) for name in set(states)}
    name = _MODELS[number % 5] if number < 5 else f"{_MODELS[number % 5]}-{number}"
    return {
        "key": name,
        "id": name,
        "skills": ["embed"] if number % 5 == 4 else ["chat"],
        "abilities": ["embedding"] if number % 5 == 4 else ["tools", "schema", "reasoning"],
        "context_tokens": 40_960,
        "batching": "alone" if number % 5 == 3 else "together",
        "batching_reason": "its cache cannot be merged" if number % 5 == 3 else None,
        "states": counted,
        "active": 2,
        "queued": 1,
        "size_bytes": int((2.3 + number * 6) * GIB),
        "workers": placed,
        "warnings": ["no generation_config.json: defaults are used"] if number == 1 else [],
    } | others


def request(number: int, **others: Any) -> Row:
    states = ("running", "running", "running", "queued", "waiting", "backing_off")
    state = states[number % 6]
    status = ("running", "prefill", "running")[number % 3] if state == "running" else None
    return {
        "key": f"anna req-{number:06x}",
        "client": "anna",
        "id": f"req-{number:06x}a91c",
        "skill": "chat",
        "model": _MODELS[number % 4],
        "priority": ("high", "medium", "low")[number % 3],
        "state": state,
        "status": status,
        "progress": 0.37 if status == "prefill" else None,
        "reason": "no worker has capacity" if state == "waiting" else None,
        "worker": None if state == "waiting" else f"studio-{number % 5}",
        "attempt": 1 + (number % 7 == 1),
        "migrations": int(number % 7 == 1),
        "moved_from": "mini-4" if number % 7 == 1 else None,
        "tokens": number * 3 % 900,
        "tokens_per_s": round(20 + number % 40 * 1.3, 1) if status == "running" else 0,
        "elapsed_ms": 900 * number,
        "session_id": "notes" if number % 4 == 2 else None,
    } | others


def cached_session(number: int, **others: Any) -> Row:
    return {
        "key": f"anna s-{number}",
        "client": "anna",
        "session_id": f"notes-{number}",
        "worker": f"studio-{number % 5}",
        "model": _MODELS[number % 4],
        "turns": 2 + number,
        "cached_tokens": 1800 * number,
        "pinned": number % 3 == 0,
        "idle_s": 31.0 * number,
        "bytes": 80_000_000 * number,
    } | others


def rollout(phase: str = "baking", **others: Any) -> Row:
    now = time.time()
    one = {
        "version": 4,
        "before": 3,
        "phase": phase,
        "steps": [["studio-0"], ["mini-1", "book-2"], ["studio-3", "mini-4", "book-5"]],
        "step": 1,
        "paused": False,
        "began_at": now - 400,
        "since": now - 30,
        "by": "anna",
        "note": "smaller batches",
        "reason": None,
    }
    past = one | {"version": 3, "before": 2, "phase": "rolled_back", "began_at": now - 90_000}
    past["reason"] = "throughput of studio-0 is 0.81 of the baseline"
    return {"stable": 3, "last_version": 4, "rollout": one | others, "history": [past]}


def log(*texts: str, level: str = "info", kind: str = "worker") -> Row:
    records = [
        {"time": time.time(), "level": level, "kind": kind, "text": text, "worker": "studio-0"}
        for text in texts
    ]
    return {"records": records}


def table(rows: list[Row], **more: Any) -> Row:
    return {"whole": True, "rows": rows, "removed": [], "total": len(rows)} | more


def plausible(machines: int = 6, requests: int = 9) -> dict[str, Row]:
    """What each view begins with."""
    names = [machine(number)["id"] for number in range(machines)]
    records = log("studio-0 joined", "mini-1 joined")["records"]
    records += log("mini-4 died: no heartbeat for 3 s", level="warning")["records"]
    moved = "req-000001a91c moved from mini-4 to studio-1"
    records += log(moved, level="warning", kind="request")["records"]
    records += log("Qwen3-4B-4bit is warm on studio-0", kind="model")["records"]
    records += log("engine 0 of book-2 crashed", level="error")["records"]
    return {
        "session": session(),
        "overview": overview(machines),
        "machines": table([machine(number) for number in range(machines)]),
        "models": table([model(number, names) for number in range(5)]),
        "requests": table(
            [request(number) for number in range(requests)], states={"running": 5, "waiting": 2}
        ),
        "sessions": table([cached_session(number) for number in range(1, 6)]),
        "rollout": rollout(),
        "log": {"records": records},
    }


def hostile(text: str) -> dict[str, Row]:
    """Where a string can stand, `text` stands."""
    views = plausible(3, 3)
    return {
        name: _replaced(view, text) if name != "session" else view for name, view in views.items()
    }


_CLOSED = {"state", "status", "phase", "pressure", "key", "views", "rights", "level", "kind"}
"""Fields whose values the gateway chooses."""


def _replaced(value: Any, text: str) -> Any:
    match value:
        case str():
            return text
        case list():
            return [_replaced(each, text) for each in value]
        case dict():
            return {
                name: each if name in _CLOSED else _replaced(each, text)
                for name, each in value.items()
            }
    return value
