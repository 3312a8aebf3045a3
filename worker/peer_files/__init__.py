"""Files of models from worker to worker, instead of from the hub again."""
