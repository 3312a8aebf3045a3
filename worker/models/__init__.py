"""The models of a worker: their files, and when they are loaded and unloaded."""
