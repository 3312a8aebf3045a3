"""`mlx_lm.server` with the BLAS that an engine uses, and without a line for each request; the
options are its own."""

import warnings

from worker.engine.blas import load_fast_blas

if __name__ == "__main__":
    load_fast_blas()

    from mlx_lm.server import APIHandler, main

    APIHandler.log_message = lambda *_: None
    warnings.filterwarnings("ignore", "mlx_lm.server is not recommended for production")
    main()
