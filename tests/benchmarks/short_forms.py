"""The short form of each benchmark: for whether it runs, not for what it measures."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ShortForm:
    """
    Attributes:
        arguments: of the command, separated by spaces.
        figures: where the result has what the benchmark is about, as positive numbers: keys,
            separated by dots; `*` is each key of a mapping, or each item of a list.
    """

    arguments: str
    figures: tuple[str, ...]


SHORT_FORMS = {
    "adaptive": ShortForm(
        "--factor 1.3 --clients 6 --max-tokens 15 --seconds 3 --settling 1",
        ("alone_ms", "target_ms", "phases.*.*.limit"),
    ),
    "as_it_comes": ShortForm(
        "--clients 2 --requests 1 --max-tokens 3 --sharers 2 --conversations 1 --repeats 1 "
        "--sides prompt",
        ("medians.*.*.ratio", "runs.*.*.*.*"),
    ),
    "balance": ShortForm(
        "--fleets equal --policies prefix-aware --full-after 1 --seconds 3 --warm-up 1 --repeats 1",
        (
            "equal.capacity_tokens_per_s",
            "equal.runs.*.*.tokens_per_s",
            "equal.runs.*.*.first_token_ms.p50",
            "equal.runs.*.*.request_ms.p50",
        ),
    ),
    "coalescing": ShortForm(
        "--bursts 2 --size 8 --lone 1",
        ("figures.*.messages_per_burst", "figures.*.burst_p50_ms", "figures.*.lone_p50_ms"),
    ),
    "decode": ShortForm(
        "--rows 2 --repeats 1 --max-tokens 6",
        (
            "medians.*.*.*.tokens_per_s.median",
            "medians.*.*.*.of_forward.median",
            "shares.*.engine-1",
        ),
    ),
    "embeddings": ShortForm(
        "--texts 40 --repeats 1",
        ("medians.texts_per_s.median", "medians.gap_of_stall.median", "medians.beside_tokens.min"),
    ),
    "failover": ShortForm(
        "--cases kill --times 1",
        (
            "results.kill.accepted_again_s.*",
            "results.kill.calm_gap_s",
            "results.kill.requests.done",
        ),
    ),
    "gateway": ShortForm(
        "--streams 2 --max-tokens 6 --repeats 1",
        ("ratio.median", "pairs.*.direct.tokens_per_s", "pairs.*.gateway.tokens_per_s"),
    ),
    "gateway_latency": ShortForm(
        "--requests 20 --seconds 0.5 --repeats 1",
        ("runs.*.latency_ms.*.p50", "runs.*.load.*.requests_per_s"),
    ),
    "gateway_streams": ShortForm(
        "--streams 8 --ramp 0.5 --seconds 2 --repeats 1",
        (
            "runs.*.*.tokens_per_s",
            "runs.*.*.bytes_per_token",
            "runs.*.gateway.to_gateway",
            "runs.*.gateway.all",
        ),
    ),
    "kv_bits": ShortForm(
        "--texts 1 --answer 4 --forced 8",
        ("token_bytes.*.*", "outcomes.*.memory_bytes", "outcomes.*.disk_bytes"),
    ),
    "kv_gather": ShortForm(
        "--blocks 2 --repeats 3",
        ("*.bytes", "*.gather.p50", "*.copy.p50"),
    ),
    "kv_overhead": ShortForm(
        "--clients 2 --requests 2 --max-tokens 4 --starts 1 --repeats 1",
        ("speed.mean", "cpu.mean", "pairs.*.*.tokens_per_s"),
    ),
    "kv_restart": ShortForm(
        "--tokens 300 --repeats 1",
        ("runs.*.*.ttft_s", "runs.*.memory.cached_tokens", "runs.*.disk.cached_tokens"),
    ),
    "kv_shared": ShortForm(
        "--requests 2 --shared 260 --max-tokens 4 --repeats 1",
        ("runs.*.on", "runs.*.off", "runs.*.plain", "runs.*.computed"),
    ),
    "long_context": ShortForm(
        "--tokens 300 --short 20 --streams 2 --max-tokens 12 --repeats 1",
        (
            "runs.*.alone_ms",
            "runs.*.beside_ms",
            "memory.*.*",
            "plain.alone_s.*",
            "plain.beside_s.*",
            "plain.bytes.long",
        ),
    ),
    "overload": ShortForm(
        "--clients 3 --calibration 1 --alone 1 --seconds 2 --rest 1 --max-tokens 4",
        (
            "alone_s",
            "capacity_per_s",
            "outcomes.*.seconds",
            "highest_memory_bytes",
        ),
    ),
    "peer_files": ShortForm(
        "--mb 8 --trials 1",
        ("trials.*.MB/s", "trials.*.MB/s, plain TLS", "trials.*.MB/s, hashed and written"),
    ),
    "protection": ShortForm(
        "--streams 2 --max-tokens 6 --repeats 1",
        ("medians.*.ratio.median", "medians.*.with.median", "medians.*.without.median"),
    ),
    "rollback": ShortForm(
        "--trials 1 --users 4",
        ("trials.*.found out", "trials.*.gone back", "trials.*.in all"),
    ),
    "routing": ShortForm(
        "--workers 10 --warm-up 1 --seconds 1 --idle-seconds 1 --in-flight 16 --repeats 1",
        (
            "runs.*.*.*.at_rate.finished",
            "runs.*.*.*.at_rate.dispatch_ms.p50",
            "runs.*.*.*.at_rate.hop_ms.p50",
            "runs.*.*.*.many_open.requests_per_core_s",
            "decisions.*.*.choose_us",
        ),
    ),
    "schemas": ShortForm(
        "--functions 4 --demo-functions 2 --walked 20 --max-tokens 60",
        ("answers.*.asked", "answers.*.tokens", "ms.*.p50"),
    ),
    "sessions": ShortForm(
        "--sessions 4 --turns 2 --at-once 2 --max-tokens 2",
        (
            "figures.*.*.later_turns",
            "figures.*.*.later_first_token_ms.p50",
            "figures.*.*.computed_tokens",
            "figures.*.*.seconds",
        ),
    ),
    "step": ShortForm(
        "--rows 2 --repeats 1 --max-tokens 12",
        ("medians.*.*.step_ms.median", "medians.*.engine.of_plain.median"),
    ),
    "stall": ShortForm(
        "--tokens 200 --streams 2 --repeats 1",
        ("medians.*.median",),
    ),
    "structured": ShortForm(
        "--rows 2 --repeats 1 --max-tokens 12 --pairs 2",
        ("step_ms.*.*", "of_free.*.median", "first_ms.*.*"),
    ),
    "structured_peers": ShortForm(
        "--clients 2 --requests 1 --max-tokens 8",
        ("sides.*.requests", "sides.*.tokens_per_s", "sides.*.ttft_p50_ms"),
    ),
    "telemetry": ShortForm(
        "--requests 200 --repeats 1",
        ("medians.*.median", "share_of_core", "requests_per_s"),
    ),
    "throughput": ShortForm(
        "--streams 2 --repeats 1 --max-tokens 4",
        (
            "medians.*.ratio.median",
            "medians.*.plain.tokens_per_s.median",
            "medians.*.cluster.tokens_per_s.median",
        ),
    ),
    "two_models": ShortForm(
        "--clients 2 --longest 30 --seconds 3 --repeats 1",
        ("share.*", "tokens_per_s.*", "alone_tokens_per_s.*"),
    ),
    "warm_start": ShortForm(
        "--repeats 1",
        ("warm_s.*", "cold_s.*"),
    ),
    "worst_client": ShortForm(
        "--seconds 3 --attacks turns",
        ("alone.median_s", "attacks.*.median_s", "attacks.*.requests"),
    ),
    "viewers": ShortForm(
        "--workers 20 --requests 40 --viewers 1,2 --seconds 2 --repeats 1",
        ("runs.*.*.bytes_per_s", "runs.*.*.events_per_s.machines"),
    ),
}
