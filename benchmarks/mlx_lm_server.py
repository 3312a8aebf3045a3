"""`mlx_lm.server` with the BLAS that an engine uses; the options are its own."""

from worker.engine.blas import load_fast_blas

if __name__ == "__main__":
    load_fast_blas()

    from mlx_lm.server import main

    main()
