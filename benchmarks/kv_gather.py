"""Putting 32 kept blocks into the cache of a row, beside a plain copy of the same bytes.

    python -m benchmarks.kv_gather [--blocks 32] [--repeats 40]

For the layers of the demo model and for a shape of 48 layers. Both in turn, in one process. Writes
results/kv_gather.json.
"""

import argparse
import time
from collections.abc import Callable
from typing import Any

from benchmarks.measures import percentiles_ms, print_table, save
from worker.engine.blas import load_fast_blas

_BLOCK_TOKENS = 256


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--blocks", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=40)
    arguments = parser.parse_args()
    load_fast_blas()

    # Only now may MLX be imported.
    from worker.engine.device import retain_freed_memory

    retain_freed_memory()
    results = {
        name: _compare(network(), arguments.blocks, arguments.repeats)
        for name, network in {"demo model": _demo_network, "48 layers": _deep_network}.items()
    }
    print_table(
        f"{arguments.blocks} blocks of {_BLOCK_TOKENS} tokens, {arguments.repeats} repeats",
        ("", "MB", "gather p50 ms", "p95", "copy p50 ms", "p95", "p50 ratio", "p95 ratio"),
        [
            (
                name,
                f"{result['bytes'] / 1e6:.0f}",
                *(f"{result[side][p]:.1f}" for side in ("gather", "copy") for p in ("p50", "p95")),
                *(f"{result['gather'][p] / result['copy'][p]:.2f}" for p in ("p50", "p95")),
            )
            for name, result in results.items()
        ],
    )
    print(f"written to {save('kv_gather', results)}")


def _compare(network: Any, count: int, repeats: int) -> dict[str, Any]:
    import mlx.core as mx
    import numpy as np

    from worker.engine.array_gatherer import as_piece
    from worker.engine.cache_blocks import BlockArrays, BlockCodec, RowPrefix
    from worker.engine.caches import CacheLayout, evaluate

    layout = CacheLayout(network)
    codec = BlockCodec(layout)
    blocks = []
    for _ in range(count):
        arrays = [
            mx.random.normal((1, heads, _BLOCK_TOKENS, dim)).astype(dtype)
            for shapes in layout.shapes
            for heads, dim, dtype in shapes
        ]
        mx.eval(arrays)
        blocks.append(BlockArrays([as_piece(array) for array in arrays]))
    tokens = count * _BLOCK_TOKENS
    whole = evaluated = codec.restored([RowPrefix(blocks)], tokens, tokens)
    evaluate(whole)
    plain = [np.array(array.view(mx.uint8)) for leaf in evaluated for array in leaf.state[:2]]
    del whole, evaluated

    def gather() -> None:
        evaluate(codec.restored([RowPrefix(blocks)], tokens, tokens))

    def copy() -> None:
        _ = [array.copy() for array in plain]  # all of them at once, as a cache needs them

    took_s: dict[str, list[float]] = {"gather": [], "copy": []}
    sides: dict[str, Callable[[], None]] = {"gather": gather, "copy": copy}
    for _ in range(repeats):
        for side, run in sides.items():
            began_at = time.perf_counter()
            run()
            took_s[side].append(time.perf_counter() - began_at)
    return {
        "bytes": sum(block.nbytes for block in blocks),
        **{side: percentiles_ms(times) for side, times in took_s.items()},
    }


def _demo_network() -> Any:
    from mlx_lm.utils import load_model

    from worker.models import demo_model

    return load_model(demo_model.folder())[0]


def _deep_network() -> Any:
    """Of a model of 30 billion parameters the caches; all else is tiny."""
    import mlx.core as mx
    from mlx_lm.models import llama

    from worker.engine.device import on_gpu

    network = llama.Model(
        llama.ModelArgs(
            model_type="llama",
            hidden_size=64,
            num_hidden_layers=48,
            intermediate_size=64,
            num_attention_heads=4,
            num_key_value_heads=4,
            head_dim=128,
            rms_norm_eps=1e-5,
            vocab_size=256,
        )
    )
    network.set_dtype(mx.bfloat16 if on_gpu() else mx.float32)
    return network


if __name__ == "__main__":
    main()
